//! `tenure blame`: which process waited for which, longest first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure::{LongWait, LongWaits, Party};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Closed, Output, note, printable};
use crate::{args, show};

const HEADINGS: [&str; 8] =
    ["LOCK", "WAITER", "BLOCKED BY", "TOKEN", "WAITS", "TOTAL", "LONGEST", "ENDED"];

pub(crate) async fn execute(store: &str, arguments: &args::Blame, output: &Output) -> Outcome {
    Connection::with(store, async |connection| {
        let args::Blame { prefix, since } = arguments;
        let found = connection.client.long_waits(prefix, *since).await?;
        if !found.has_history {
            note("this store remembers no waits: only those that are not over are shown");
        }
        if found.unread > 0 {
            let unread = found.unread;
            note(&format!("present waits for {unread} more locks are not shown: name a prefix"));
        }
        if found.waits.is_empty() {
            let since = show::duration(*since);
            note(&format!("no wait of more than a second in the last {since}"));
        }
        output::exit_code(write(&found, output), exit::OK)
    })
    .await
}

fn write(found: &LongWaits, output: &Output) -> Result<(), Closed> {
    if output.is_json() {
        for cycle in &found.deadlocks {
            let deadlock: Vec<_> = cycle.iter().map(object).collect();
            output.object(&Deadlock { deadlock })?;
        }
        return found.waits.iter().try_for_each(|wait| output.object(&object(wait)));
    }
    for cycle in &found.deadlocks {
        output.line(printable(&deadlock(cycle)))?;
    }
    match found.waits.is_empty() {
        true => Ok(()),
        false => output.table(&HEADINGS, found.waits.iter().map(row).collect()),
    }
}

/// `deadlock: x waits for "a" of y; y waits for "b" of x`
fn deadlock(cycle: &[LongWait]) -> String {
    let step = |wait: &LongWait| {
        let verb = if wait.is_waiting { "waits" } else { "waited" };
        let blocker = wait.blocker.as_ref().map_or_else(String::new, ToString::to_string);
        format!("{} {verb} for {:?} of {blocker}", wait.waiter, wait.lock.as_str())
    };
    format!("deadlock: {}", cycle.iter().map(step).collect::<Vec<_>>().join("; "))
}

fn row(wait: &LongWait) -> Vec<String> {
    let ended = SystemTime::now().duration_since(wait.until).unwrap_or(Duration::ZERO);
    let process = |party: &Party| show::process(party.host.as_deref(), party.pid, &party.label);
    vec![
        printable(wait.lock.as_str()),
        process(&wait.waiter),
        wait.blocker.as_ref().map_or_else(|| "unknown".into(), process),
        wait.token.map_or_else(|| "-".into(), |token| token.to_string()),
        wait.waits.to_string(),
        show::duration(wait.total),
        show::duration(wait.longest),
        if wait.is_waiting { "waiting".into() } else { format!("{} ago", show::duration(ended)) },
    ]
}

#[derive(Serialize)]
struct Deadlock<'a> {
    deadlock: Vec<WaitObject<'a>>,
}

#[derive(Serialize)]
struct WaitObject<'a> {
    lock: &'a str,
    waiter: PartyObject<'a>,
    blocker: Option<PartyObject<'a>>,
    token: Option<u64>,
    since_unix_ms: u64,
    until_unix_ms: u64,
    waits: u32,
    total_ms: u64,
    longest_ms: u64,
    waiting: bool,
}

#[derive(Serialize)]
struct PartyObject<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    label: &'a str,
}

impl<'a> From<&'a Party> for PartyObject<'a> {
    fn from(party: &'a Party) -> Self {
        Self { host: party.host.as_deref(), pid: party.pid, label: &party.label }
    }
}

fn object(wait: &LongWait) -> WaitObject<'_> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let unix = |time: SystemTime| millis(time.duration_since(UNIX_EPOCH).unwrap_or_default());
    WaitObject {
        lock: wait.lock.as_str(),
        waiter: (&wait.waiter).into(),
        blocker: wait.blocker.as_ref().map(PartyObject::from),
        token: wait.token.map(|token| token.get()),
        since_unix_ms: unix(wait.since),
        until_unix_ms: unix(wait.until),
        waits: wait.waits,
        total_ms: millis(wait.total),
        longest_ms: millis(wait.longest),
        waiting: wait.is_waiting,
    }
}
