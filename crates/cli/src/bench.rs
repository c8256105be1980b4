//! `tenure bench`: how fast locks are on the store of the command line.

use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::{Client, Mutex, OwnerId};
use tokio::task::JoinSet;

use crate::args;
use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::Output;

/// How long a waiter has waited when the lock is released.
const WAIT: Duration = Duration::from_millis(20);

/// Times of the same operation.
struct Measured {
    what: String,
    /// In ascending order.
    times: Vec<Duration>,
    /// How long all of them took together. `None` where there was a pause between two of them.
    elapsed: Option<Duration>,
}

pub(crate) async fn execute(store: &str, arguments: &args::Bench, output: &Output) -> Outcome {
    Connection::with(store, async |connection| {
        // For hand-offs, and with connections of its own.
        let other = Connection::open(store).await?;
        let outcome = measure(connection, &other, arguments, output).await;
        other.close(&outcome).await;
        outcome
    })
    .await
}

async fn measure(
    connection: &Connection,
    other: &Connection,
    arguments: &args::Bench,
    output: &Output,
) -> Outcome {
    let client = &connection.client;
    let prefix = format!("bench/{}", OwnerId::random());
    let mutex = |name: &str| client.mutex(&format!("{prefix}/{name}"));
    let time = arguments.time;
    let free = mutex("free")?;
    let (measured, elapsed) = looks(client, free.name().as_str(), time).await?;
    let mut rows = vec![Measured::new("look at a free lock", measured, Some(elapsed))];
    let (measured, elapsed) = pairs(&free, time).await?;
    rows.push(Measured::new("acquire + release", measured, Some(elapsed)));
    if arguments.tasks > 1 {
        let locks: Result<Vec<Mutex>, _> =
            (0..arguments.tasks).map(|task| mutex(&format!("task-{task}"))).collect();
        let (measured, elapsed) = all_pairs(locks?, time).await?;
        let what = format!("acquire + release, {} tasks", arguments.tasks);
        rows.push(Measured::new(what, measured, Some(elapsed)));
    }
    let memory = connection.url.scheme().name() == "memory";
    if !memory {
        let name = format!("{prefix}/hand-off");
        let measured = hand_offs([client, &other.client], &name, time).await?;
        rows.push(Measured::new("release to the next holder", measured, None));
    }
    print(&rows, output)
}

/// Looks at a lock for so long, at least once.
async fn looks(
    client: &Client,
    name: &str,
    time: Duration,
) -> tenure::Result<(Vec<Duration>, Duration)> {
    client.inspect(name).await?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begin.elapsed() < time {
        let start = Instant::now();
        client.inspect(name).await?;
        times.push(start.elapsed());
    }
    Ok((times, begin.elapsed()))
}

/// Takes the lock for so long, at least once.
async fn pairs(mutex: &Mutex, time: Duration) -> tenure::Result<(Vec<Duration>, Duration)> {
    // The first call may connect, and finds out what the server can do.
    mutex.acquire().await?.release().await?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begin.elapsed() < time {
        let start = Instant::now();
        mutex.acquire().await?.release().await?;
        times.push(start.elapsed());
    }
    Ok((times, begin.elapsed()))
}

/// All locks at once, each by a task of its own.
async fn all_pairs(locks: Vec<Mutex>, time: Duration) -> tenure::Result<(Vec<Duration>, Duration)> {
    let (begin, mut tasks, mut times) = (Instant::now(), JoinSet::new(), Vec::new());
    for mutex in locks {
        tasks.spawn(async move { pairs(&mutex, time).await });
    }
    // A task that panicked would have stopped the program.
    for task in tasks.join_all().await {
        times.extend(task?.0);
    }
    Ok((times, begin.elapsed()))
}

/// The times from a release by one client to the moment in which the other one holds.
async fn hand_offs(
    [one, other]: [&Client; 2],
    name: &str,
    time: Duration,
) -> tenure::Result<Vec<Duration>> {
    let (held, wanted) = (one.mutex(name)?, other.mutex(name)?);
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begin.elapsed() < time {
        let guard = held.acquire().await?;
        let waiter = async {
            let guard = wanted.acquire().await?;
            let granted = Instant::now();
            guard.release().await.map(|()| granted)
        };
        let releaser = async {
            tokio::time::sleep(WAIT).await;
            let start = Instant::now();
            guard.release().await.map(|()| start)
        };
        let (granted, released) = tokio::join!(waiter, releaser);
        times.push(granted?.saturating_duration_since(released?));
    }
    Ok(times)
}

impl Measured {
    fn new(what: impl Into<String>, mut times: Vec<Duration>, elapsed: Option<Duration>) -> Self {
        times.sort_unstable();
        Self { what: what.into(), times, elapsed }
    }

    /// The time within which so many of a thousand operations ended, in microseconds.
    fn per_mille(&self, share: usize) -> f64 {
        let at = (self.times.len() * share / 1000).min(self.times.len().saturating_sub(1));
        self.times.get(at).map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
    }

    fn per_second(&self) -> Option<f64> {
        self.elapsed.map(|elapsed| self.times.len() as f64 / elapsed.as_secs_f64())
    }
}

/// The JSON object for one row.
#[derive(Serialize)]
struct RowObject<'a> {
    measured: &'a str,
    count: usize,
    median_us: f64,
    p99_us: f64,
    p999_us: f64,
    per_second: Option<f64>,
}

fn print(rows: &[Measured], output: &Output) -> Outcome {
    let written = if output.is_json() {
        rows.iter().try_for_each(|row| {
            output.object(&RowObject {
                measured: &row.what,
                count: row.times.len(),
                median_us: row.per_mille(500),
                p99_us: row.per_mille(990),
                p999_us: row.per_mille(999),
                per_second: row.per_second(),
            })
        })
    } else {
        let cells = |row: &Measured| {
            let time = |share| format!("{:.1} us", row.per_mille(share));
            let per_second = row.per_second().map_or("-".into(), |rate| format!("{rate:.0}"));
            vec![row.what.clone(), time(500), time(990), time(999), per_second]
        };
        let headings = ["MEASURED", "MEDIAN", "99 %", "99.9 %", "PER SECOND"];
        output.table(&headings, rows.iter().map(cells).collect())
    };
    written.map_or_else(|closed| closed.outcome(), |()| Ok(exit::OK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_sorted_times() {
        let times = (1..=1000).rev().map(Duration::from_micros).collect();
        let measured = Measured::new("x", times, Some(Duration::from_secs(2)));
        assert_eq!([500, 990, 999].map(|share| measured.per_mille(share)), [501.0, 991.0, 1000.0]);
        assert_eq!(measured.per_second(), Some(500.0));
    }

    #[tokio::test]
    async fn every_operation_is_measured_at_least_once_and_leaves_the_locks_free() {
        let client = tenure::connect("memory:").await.unwrap();
        let other = client.clone();
        let (times, _) = pairs(&client.mutex("a").unwrap(), Duration::ZERO).await.unwrap();
        assert_eq!(times.len(), 1);
        let locks = ["b", "c"].map(|name| client.mutex(name).unwrap()).into();
        let (times, _) = all_pairs(locks, Duration::ZERO).await.unwrap();
        assert_eq!(times.len(), 2);
        assert_eq!(hand_offs([&client, &other], "d", Duration::ZERO).await.unwrap().len(), 1);
        for name in ["a", "b", "c", "d"] {
            client.mutex(name).unwrap().try_acquire().await.unwrap().release().await.unwrap();
        }
    }
}
