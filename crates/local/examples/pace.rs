//! How fast the store is: claim and release alone, and a hand-off between two processes.
//!
//! `cargo run --release -p tenure-local --example pace`

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Answer, Claim, LockName, Mode, Origin, OwnerId, Patience, Store};
use tenure_local::LocalStore;

const TURNS: usize = 500;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(dir) = std::env::var_os("PACE_PEER") {
        return rally(&LocalStore::open(dir)?).await.map(drop);
    }
    let dir = std::env::temp_dir().join(format!("tenure-pace-{}", std::process::id()));
    let store = LocalStore::open(&dir)?;
    alone(&store).await?;
    let mut peer = Command::new(std::env::current_exe()?)
        .env("PACE_PEER", &dir)
        .stdout(Stdio::null())
        .spawn()?;
    let delays = rally(&store).await?;
    peer.wait()?;
    let at = |part: usize| delays.get(delays.len() * part / 100).copied();
    println!(
        "hand-off to a waiting process, {} times: p50 {:?}, p99 {:?}",
        delays.len(),
        at(50).unwrap_or_default(),
        at(99).unwrap_or_default()
    );
    drop(store);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

async fn alone(store: &LocalStore) -> Result<(), Box<dyn std::error::Error>> {
    let rounds = 1_000_000;
    let started = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(tenure_core::now());
    }
    let each = started.elapsed().as_nanos() / rounds;
    println!("reading the clock: {each} ns");
    for name in ["orders", &"a long name of a lock/".repeat(9)] {
        let claim = claim(name)?;
        let mut batches = Vec::new();
        for _ in 0..rounds / 1_000 {
            let started = Instant::now();
            for _ in 0..1_000 {
                store.claim(&claim, Patience::None).await?;
                store.release(&claim).await?;
            }
            batches.push(started.elapsed().as_nanos() / 1_000);
        }
        batches.sort_unstable();
        let (best, median) = (batches[0], batches[batches.len() / 2]);
        println!("claim and release, {} bytes of name: {median} ns (best {best} ns)", name.len());
    }
    Ok(())
}

/// Takes turns with the other process, and returns how long after each release its waiter ran.
async fn rally(store: &LocalStore) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let mut delays = Vec::new();
    for _ in 0..TURNS {
        let claim = claim("rally")?;
        let mut answer = store.claim(&claim, queue()).await?;
        while let Answer::Queued(place) = answer {
            let again = Duration::from_millis(100);
            answer = match tokio::time::timeout(again, store.wait(&claim, &place)).await {
                Ok(Ok(Answer::Granted(grant))) => {
                    // The grant is dated by whoever handed the lock over, on the same clock.
                    let since = grant.since.unwrap_or_default();
                    delays.push(tenure_core::now().since(since));
                    Answer::Granted(grant)
                }
                _ => store.claim(&claim, queue()).await?,
            };
        }
        // Time for the other one to queue up again, and to fall asleep.
        tokio::time::sleep(Duration::from_millis(2)).await;
        store.release(&claim).await?;
    }
    delays.sort_unstable();
    Ok(delays)
}

fn claim(name: &str) -> Result<Claim, tenure_core::Error> {
    Ok(Claim {
        name: LockName::new(name)?,
        owner: OwnerId::random(),
        mode: Mode::Exclusive,
        ttl: Duration::from_secs(30),
        origin: Origin::here(),
        label: Arc::from(""),
    })
}

const fn queue() -> Patience {
    Patience::Queue(Duration::from_secs(5))
}
