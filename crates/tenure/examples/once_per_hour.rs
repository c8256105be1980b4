//! Runs a job at most once per hour, whatever the number of processes that try.
//!
//! A lock says that no two runs overlap. It does not remember that a run has taken place: after the
//! release, the next process could run the job again. So the time of the last run is kept beside the
//! lock, and is read and written under it.
//!
//! ```text
//! cargo run --example once_per_hour
//! cargo run --example once_per_hour      # skips
//! ```

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tenure::ErrorKind;

const PERIOD: Duration = Duration::from_secs(60 * 60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let record = std::env::temp_dir().join("tenure-once-per-hour");
    let client = tenure::connect("local").await?;

    let guard = match client.mutex("hourly-report")?.try_acquire().await {
        Ok(guard) => guard,
        Err(error) if error.kind() == ErrorKind::Busy => {
            println!("skipped: another process runs the job now");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let outcome = guard.run(async { run_if_due(&record) }).await?;
    println!("{}", outcome?);
    guard.release().await?;
    client.close().await;
    Ok(())
}

/// Runs the job if its last run is an hour ago, and notes the time.
fn run_if_due(record: &Path) -> std::io::Result<String> {
    let last = fs::metadata(record).and_then(|file| file.modified()).ok();
    // A time in the future means that the clock was set back: the job is due.
    let age = last.and_then(|last| SystemTime::now().duration_since(last).ok());
    if let Some(age) = age.filter(|age| *age < PERIOD) {
        return Ok(format!("skipped: the last run was {} s ago", age.as_secs()));
    }
    // The job. It is noted afterwards: a run that fails is tried again.
    fs::write(record, "")?;
    Ok("ran the job".into())
}
