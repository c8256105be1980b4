//! The table of results.

use std::time::Duration;

/// One comparison.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) ours: f64,
    pub(crate) against: String,
    pub(crate) theirs: f64,
    pub(crate) unit: &'static str,
    /// The highest acceptable ratio. `None` if the row is for information only.
    pub(crate) bound: Option<f64>,
}

impl Row {
    /// A comparison of two times.
    pub(crate) fn of_times(
        what: impl Into<String>,
        ours: Duration,
        against: impl Into<String>,
        theirs: Duration,
        bound: Option<f64>,
    ) -> Self {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let (what, against) = (what.into(), against.into());
        let (ours, theirs) = (micros(ours), micros(theirs));
        Self { what, ours, against, theirs, unit: "us", bound }
    }

    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    pub(crate) fn is_within_bound(&self) -> bool {
        self.bound.is_none_or(|bound| self.ratio() <= bound)
    }
}

/// Why a row may be above its bound, by the beginning of what it measures.
const KNOWN_REASONS: &[(&str, &str)] = &[
    (
        "etcd: hand-off to another client",
        "the event is read on the store's thread, which wakes the waiter's: one wake-up more",
    ),
    (
        "etcd: hand-off, the waiter arrived 500 ms before",
        "the waiter is woken on another thread than the one that reads the event",
    ),
    (
        "zookeeper: acquire + release, free",
        "the transaction also writes to the fence, and a look at the lock follows it",
    ),
    (
        "redlock: acquire + release, free, one task, 5 nodes",
        "the store's thread serves the connections, so that a blocked runtime loses no lock, and wakes \
         the caller",
    ),
    (
        "redis: commands per hand-off",
        "among 2 the queue is often empty, and such a hand-off takes fewer commands",
    ),
    (
        "redis: read + release, free",
        "readers are counted: their claim runs the script for queues and pools, not the four commands that \
         take a free mutex",
    ),
    (
        "redis: acquire + release, four free locks",
        "the four claims share a round trip, but the server runs four scripts one after the other",
    ),
    ("redis: 16 tasks, fenced", TOKEN),
    ("redis: 64 tasks, fenced", TOKEN),
    ("redis: 1,024 tasks, fenced, server CPU", TOKEN),
    ("valkey 9: 1,024 tasks, fenced", TOKEN),
];

/// Why locks with tokens cost a Redis server more.
const TOKEN: &str = "a token needs a script (1.8 us of the server's time if empty) and the server's clock \
                     (TIME, 0.65 us), which keeps tokens rising after a failover";

fn known_reason(what: &str) -> &'static str {
    let known = KNOWN_REASONS.iter().find(|(begins, _)| what.starts_with(begins));
    known.map_or("", |(_, reason)| reason)
}

pub(crate) fn print(rows: &[Row]) {
    println!("| measured | | against | | ratio | bound | |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let Row { what, ours, against, theirs, unit, .. } = row;
        let verdict = match row.bound {
            None => "for information".to_owned(),
            Some(_) if row.is_within_bound() => "holds".to_owned(),
            Some(_) => format!("ABOVE {}", known_reason(what)).trim_end().to_owned(),
        };
        let bound = row.bound.map_or("-".into(), |bound| format!("{bound:.2}"));
        let ratio = row.ratio();
        println!(
            "| {what} | {ours:.2} {unit} | {against} | {theirs:.2} {unit} | {ratio:.2} | {bound} | \
             {verdict} |"
        );
    }
}

/// The median of several times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
