//! Runs a job at most once per hour, whatever the number of processes and machines that try.
//!
//! A lock says that no two runs overlap. It does not remember that a run has taken place: after the
//! release, the next process would run the job again. [`tenure::Once`] remembers it in the store, for an hour.
//!
//! ```text
//! cargo run --example once_per_hour
//! cargo run --example once_per_hour      # skips
//! ```
//!
//! For a command instead of a function: `tenure run --once-per 1h NAME -- COMMAND`.

use std::error::Error;
use std::time::{Duration, SystemTime};

use tenure::OnceOutcome;

const PERIOD: Duration = Duration::from_secs(60 * 60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store that all machines share, such as redis://host: then it is once per hour for all of them.
    let client = tenure::connect("local").await?;
    let report = client.once::<u64>("hourly-report")?.ttl(PERIOD);

    // A run that fails or dies is not remembered: the next process runs the job.
    let outcome = report.try_run(async |_guard| {
        // The job. Send _guard.token() along with what it writes.
        Ok::<_, tenure::Error>(now())
    });
    match outcome.await? {
        OnceOutcome::Ran(_) => println!("ran the job"),
        OnceOutcome::Replayed(at) => {
            println!("skipped: the last run was {} s ago", now().saturating_sub(at));
        }
        _ => println!("skipped: another process runs the job now"),
    }
    client.close().await;
    Ok(())
}

/// For people: the hour itself is measured by the store.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}
