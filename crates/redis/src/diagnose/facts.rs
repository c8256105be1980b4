//! Facts that a server reports about itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{ErrorKind, Result};

use crate::link::Link;
use crate::wire::{Value, cmd};

/// The facts of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Its host and port.
    pub(super) name: String,
    /// `INFO`, field by field; empty if the user may not run it.
    pub(super) info: HashMap<String, String>,
    /// `CONFIG GET` of [`SETTINGS`]; empty if the user may not run it.
    pub(super) settings: HashMap<String, String>,
    pub(super) clock: Option<Clock>,
}

/// A server's clock, compared with this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// How far it is ahead, in milliseconds.
    pub(super) ahead: i64,
    /// The error of that: request and reply may take different times.
    pub(super) margin: i64,
}

const SETTINGS: [&str; 6] =
    ["maxmemory", "maxmemory-policy", "save", "appendonly", "appendfsync", "min-replicas-to-write"];

const DIAGNOSE: &str = "diagnose the server";

/// Asks a server for its facts, except for those that the user has no right to read.
pub(super) async fn collect(link: &Link, name: String) -> Result<Facts> {
    let info = allowed(link.send(DIAGNOSE, &cmd("INFO")).await)?;
    let info = info.and_then(|info| info.text()).unwrap_or_default();
    let mut facts = Facts::new(&name, &info, &[]);
    for setting in SETTINGS {
        let get = cmd("CONFIG").arg("GET").arg(setting);
        let Some(answer) = allowed(link.send(DIAGNOSE, &get).await)? else { break };
        if let Some(value) = answer.field(setting).and_then(Value::text) {
            facts.settings.insert(setting.to_owned(), value);
        }
    }
    facts.clock = clock(link).await?;
    Ok(facts)
}

async fn clock(link: &Link) -> Result<Option<Clock>> {
    let before = wall_ms();
    let answer = allowed(link.send(DIAGNOSE, &cmd("TIME")).await)?;
    let after = wall_ms();
    Ok(answer.and_then(Value::texts).and_then(|words| {
        let [seconds, micros] = &words[..] else { return None };
        let (seconds, micros): (i64, i64) = (seconds.parse().ok()?, micros.parse().ok()?);
        let server = seconds.checked_mul(1000)?.checked_add(micros / 1000)?;
        Some(Clock::measured(before, server, after))
    }))
}

/// `None` if the user has no right to the command, or the server does not have it: managed servers often
/// hide `CONFIG`.
fn allowed(answer: Result<Value>) -> Result<Option<Value>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::Unreachable => Err(error),
        Err(_) => Ok(None),
    }
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Facts {
    /// The facts in these texts.
    pub(super) fn new(name: &str, info: &str, settings: &[(&str, &str)]) -> Self {
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self {
            name: name.to_owned(),
            info: lines.map(pair).collect(),
            settings: settings.iter().copied().map(pair).collect(),
            clock: None,
        }
    }

    /// A field of `INFO`.
    pub(super) fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    /// A number in `INFO`.
    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    /// A setting.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

impl Clock {
    /// From this machine's time before the request and after the reply, and the server's between.
    pub(super) fn measured(before: i64, server: i64, after: i64) -> Self {
        let trip = after.saturating_sub(before).max(0);
        let middle = before.saturating_add(trip / 2);
        // One millisecond more, because both times were rounded.
        Self { ahead: server.saturating_sub(middle), margin: trip / 2 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_field_by_field() {
        let text = "# Server\r\nredis_version:7.0.15\r\n\r\n# Replication\r\nrole:master\r\n\
                    slave0:ip=10.0.0.2,port=6379,state=online\r\nconnected_slaves:1\r\n";
        let facts = Facts::new("a", text, &[("save", "")]);
        assert_eq!(facts.info("redis_version"), Some("7.0.15"));
        assert_eq!(facts.info("slave0"), Some("ip=10.0.0.2,port=6379,state=online"));
        assert_eq!(facts.number("connected_slaves"), Some(1));
        assert_eq!((facts.setting("save"), facts.setting("maxmemory")), (Some(""), None));
    }

    #[test]
    fn a_slow_trip_widens_the_margin_and_not_the_difference() {
        assert_eq!(Clock::measured(1000, 1000, 1000), Clock { ahead: 0, margin: 1 });
        assert_eq!(Clock::measured(1000, 1500, 2000), Clock { ahead: 0, margin: 501 });
        assert_eq!(Clock::measured(1000, 400, 1010), Clock { ahead: -605, margin: 6 });
    }
}
