//! `tenure watch`: prints a line for every change.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tenure::{Change, ChangedClaim, Intervention, WatchEvent};
use tokio::time::interval;

use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome, line};
use crate::output::{Output, note, printable, report};
use crate::signals::Signals;
use crate::{args, show};

pub(crate) async fn execute(store: &str, arguments: &args::Watch, output: &Output) -> Outcome {
    if arguments.every.is_zero() {
        return Err(Failure::new(exit::USAGE, "--every must be above zero, such as 100ms"));
    }
    let mut signals = Signals::listen()?;
    // An interrupt is the normal end of a watch.
    let Ok(connection) = signals.unless_interrupted(Connection::open(store)).await else {
        return Ok(exit::OK);
    };
    let connection = connection?;
    let watching = watch(&connection, arguments, output);
    let outcome = signals.unless_interrupted(watching).await.unwrap_or(Ok(exit::OK));
    connection.close(&outcome).await;
    outcome
}

async fn watch(connection: &Connection, arguments: &args::Watch, output: &Output) -> Outcome {
    let mut watch = connection.client.watch(&arguments.prefix).every(arguments.every);
    let (mut begun, mut failing) = (false, false);
    loop {
        let event = tokio::select! {
            biased;
            event = watch.next() => event,
            () = end_of_reader(arguments.every) => return Ok(exit::OK),
        };
        let changes = match event {
            Ok(WatchEvent::Snapshot(locks)) => {
                begun = true;
                if std::mem::take(&mut failing) {
                    report("the store answers again");
                }
                if let Some(none) = show::no_locks(&arguments.prefix).filter(|_| locks.is_empty()) {
                    note(&format!("{none}; waiting for changes"));
                }
                Change::from_snapshot(&locks)
            }
            Ok(WatchEvent::Change(change)) => vec![change],
            Ok(WatchEvent::Recovered) => {
                report("the store answers again");
                failing = false;
                continue;
            }
            Ok(_) => continue,
            // An outage after the start does not end the watch.
            Err(error) if error.is_transient() && (begun || watch.locks().next().is_some()) => {
                if !failing {
                    report(&format!("{}; still watching", line(&error)));
                }
                failing = true;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for change in changes {
            if let Err(closed) = output.result(&object(&change), text(&change)) {
                return closed.outcome();
            }
        }
    }
}

/// Resolves when standard output has no reader any more, which no write detects while nothing changes.
async fn end_of_reader(every: Duration) {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        let stdout = io::stdout();
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = Timespec::default();
        if poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready > 0)
            && asked[0].revents().contains(PollFlags::ERR)
        {
            return;
        }
    }
}

fn text(change: &Change) -> String {
    let (time, name, event) = (utc(since_1970(change)), &change.lock, change.kind);
    let process =
        |claim: &ChangedClaim| show::process(claim.host.as_deref(), claim.pid, &claim.label);
    let mut text = format!("{time} {name} {event} {}", process(&change.claim));
    if let Some(from) = &change.from {
        text.push_str(&format!(" from {}", process(from)));
    }
    if let Some(token) = change.claim.token {
        text.push_str(&format!(" token {token}"));
    }
    if let Some(Intervention { host, pid, reason, .. }) = &change.by {
        text.push_str(&format!(" by {host}:{pid}: {reason}"));
    }
    printable(&text)
}

#[derive(Serialize)]
struct ChangeObject<'a> {
    at: String,
    lock: &'a str,
    event: &'static str,
    #[serde(flatten)]
    claim: ClaimObject<'a>,
    from: Option<ClaimObject<'a>>,
    /// Only of an eviction or revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<InterventionObject<'a>>,
}

#[derive(Serialize)]
struct InterventionObject<'a> {
    host: &'a str,
    pid: u32,
    reason: &'a str,
}

#[derive(Serialize)]
struct ClaimObject<'a> {
    owner: &'a str,
    token: Option<u64>,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: &'a str,
}

impl<'a> From<&'a ChangedClaim> for ClaimObject<'a> {
    fn from(claim: &'a ChangedClaim) -> Self {
        Self {
            owner: &claim.owner,
            token: claim.token.map(|token| token.get()),
            host: claim.host.as_deref(),
            pid: claim.pid,
            label: &claim.label,
        }
    }
}

fn object(change: &Change) -> ChangeObject<'_> {
    ChangeObject {
        at: utc(since_1970(change)),
        lock: change.lock.as_str(),
        event: change.kind.as_str(),
        claim: (&change.claim).into(),
        from: change.from.as_ref().map(ClaimObject::from),
        by: change.by.as_ref().map(|Intervention { host, pid, reason, .. }| InterventionObject {
            host,
            pid: *pid,
            reason,
        }),
    }
}

fn since_1970(change: &Change) -> Duration {
    change.at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A time since 1970 as `2026-11-15T22:10:21.042Z`.
fn utc(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millisecond = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

/// The Gregorian date so many days after 1970-01-01, counted in years that begin in March, so that
/// the leap day is the last of its year.
const fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_the_calendar_has_them() {
        for (milliseconds, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_794_780_621_042, "2026-11-15T22:10:21.042Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(Duration::from_millis(milliseconds)), shown);
        }
    }
}
