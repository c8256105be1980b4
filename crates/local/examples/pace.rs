//! How fast the store is: alone, beside another process, handing over, and after a kill.
//!
//! `cargo run --release -p tenure-local --example pace`

use std::path::Path;
use std::process::{Child, Command};

use std::time::{Duration, Instant};

use tenure_core::store::{Claim, ClaimOutcome, Clock, Store, WaitPolicy};
use tenure_core::{LockName, Mode};
use tenure_local::LocalStore;

const TURNS: usize = 500;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let (Ok(part), Some(dir)) = (std::env::var("PACE_PART"), std::env::var_os("PACE_DIR")) {
        return peer(&part, &LocalStore::open(dir)?).await;
    }
    let dir = std::env::temp_dir().join(format!("tenure-pace-{}", std::process::id()));
    let store = LocalStore::open(&dir)?;
    alone(&store).await?;
    beside_another(&store).await?;
    let mut other = start("rally", &dir)?;
    report("hand-off to a waiting process", rally(&store).await?);
    other.wait()?;
    report("from a kill to the waiter that goes on", deaths(&store, &dir).await?);
    drop(store);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

async fn alone(store: &LocalStore) -> Result<(), Box<dyn std::error::Error>> {
    let rounds = 1_000_000;
    let started = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(tenure_core::store::now());
    }
    let each = started.elapsed().as_nanos() / rounds;
    println!("reading the clock: {each} ns");
    for name in ["orders", &"a long name of a lock/".repeat(9)] {
        let claim = claim(name)?;
        let mut batches = Vec::new();
        for _ in 0..rounds / 1_000 {
            let started = Instant::now();
            for _ in 0..1_000 {
                store.claim(&claim, WaitPolicy::NoWait).await?;
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

/// Claims and releases while another process does the same with another lock.
async fn beside_another(store: &LocalStore) -> Result<(), Box<dyn std::error::Error>> {
    let mut other = start("churn", store.dir())?;
    let claim = claim("ours")?;
    while store.list("theirs").await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut times = Vec::new();
    for _ in 0..500_000 {
        let started = Instant::now();
        store.claim(&claim, WaitPolicy::NoWait).await?;
        store.release(&claim).await?;
        times.push(started.elapsed());
    }
    other.kill()?;
    other.wait()?;
    times.sort_unstable();
    report("claim and release beside another busy process", times);
    Ok(())
}

/// Kills processes that hold a lock, and waits for it.
async fn deaths(
    store: &LocalStore,
    dir: &Path,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let mut delays = Vec::new();
    for _ in 0..30 {
        let mut holder = start("hold", dir)?;
        let claim = claim("mortal")?;
        while store.list("mortal").await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let ClaimOutcome::Queued(place) = store.claim(&claim, queue()).await? else {
            continue;
        };
        let waiting = tokio::spawn({
            let (store, claim) = (store.clone(), claim.clone());
            async move { (store.wait(&claim, &place).await, Instant::now()) }
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        let killed = Instant::now();
        holder.kill()?;
        let (answer, went_on) = waiting.await?;
        if matches!(answer?, ClaimOutcome::Granted(_)) {
            delays.push(went_on - killed);
        }
        store.release(&claim).await?;
        holder.wait()?;
    }
    delays.sort_unstable();
    Ok(delays)
}

/// The other process, until it is killed or done.
async fn peer(part: &str, store: &LocalStore) -> Result<(), Box<dyn std::error::Error>> {
    match part {
        "rally" => rally(store).await.map(drop),
        "hold" => {
            store.claim(&claim("mortal")?, WaitPolicy::NoWait).await?;
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(())
        }
        _ => {
            store.claim(&claim("theirs too")?, WaitPolicy::NoWait).await?;
            let claim = claim("theirs")?;
            let end = Instant::now() + Duration::from_secs(20);
            while Instant::now() < end {
                store.claim(&claim, WaitPolicy::NoWait).await?;
                store.release(&claim).await?;
            }
            Ok(())
        }
    }
}

fn start(part: &str, dir: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env("PACE_PART", part).env("PACE_DIR", dir).spawn()
}

fn report(what: &str, sorted: Vec<Duration>) {
    let at = |part: usize| sorted.get(sorted.len() * part / 1000).copied().unwrap_or_default();
    let (half, most, worst) = (at(500), at(990), at(999));
    println!("{what}, {} times: p50 {half:?}, p99 {most:?}, p99.9 {worst:?}", sorted.len());
}

/// Takes turns with the other process, and returns how long after each release its waiter ran.
async fn rally(store: &LocalStore) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let mut delays = Vec::new();
    for _ in 0..TURNS {
        let claim = claim("rally")?;
        let mut answer = store.claim(&claim, queue()).await?;
        while let ClaimOutcome::Queued(place) = answer {
            let again = Duration::from_millis(100);
            answer = match tokio::time::timeout(again, store.wait(&claim, &place)).await {
                Ok(Ok(ClaimOutcome::Granted(grant))) => {
                    // The process that handed the lock over dates the grant, on the same clock.
                    let since = grant.since.unwrap_or_default();
                    delays.push(Clock::Monotonic.now().since(since));
                    ClaimOutcome::Granted(grant)
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
    Ok(Claim::new(LockName::new(name)?, Mode::Exclusive, Duration::from_secs(30)))
}

const fn queue() -> WaitPolicy {
    WaitPolicy::queue(Duration::from_secs(5))
}
