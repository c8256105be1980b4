//! How fast the store is: claim and release alone, and a hand-off between two processes.
//!
//! `cargo run --release -p tenure-local --example pace`

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Answer, Claim, LockName, Mode, Origin, OwnerId, Patience, Store};
use tenure_local::LocalStore;

const TURNS: usize = 2_000;

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
    let took = rally(&store).await?;
    peer.wait()?;
    println!(
        "hand-off and back between two processes: {:.1} us each way",
        took.as_secs_f64() * 1e6 / (2.0 * TURNS as f64)
    );
    drop(store);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

async fn alone(store: &LocalStore) -> Result<(), Box<dyn std::error::Error>> {
    let rounds = 1_000_000;
    for name in ["orders", &"a long name of a lock/".repeat(9)] {
        let claim = claim(name)?;
        let started = Instant::now();
        for _ in 0..rounds {
            store.claim(&claim, Patience::None).await?;
            store.release(&claim).await?;
        }
        let each = started.elapsed().as_nanos() / rounds;
        println!("claim and release, {} bytes of name: {each} ns", name.len());
    }
    Ok(())
}

/// Takes turns: each process queues behind the other before it lets go.
async fn rally(store: &LocalStore) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut started = Instant::now();
    for turn in 0..TURNS {
        let claim = claim("rally")?;
        let mut answer = store.claim(&claim, queue()).await?;
        while let Answer::Queued(place) = answer {
            let again = Duration::from_millis(100);
            answer = match tokio::time::timeout(again, store.wait(&claim, &place)).await {
                Ok(Ok(Answer::Granted(grant))) => Answer::Granted(grant),
                _ => store.claim(&claim, queue()).await?,
            };
        }
        // Until the other one is in line, at most at the end of its run.
        let mut looks = 0;
        while store.inspect(&claim.name).await?.waiters.is_empty() && looks < 100_000 {
            looks += 1;
        }
        if turn == 0 {
            started = Instant::now();
        }
        store.release(&claim).await?;
    }
    Ok(started.elapsed())
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
