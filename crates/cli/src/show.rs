//! The state of a lock as text and as JSON.

use std::time::Duration;

use serde::Serialize;
use tenure::{Holder, LockState, Mode, Waiter};

use crate::output::printable;

/// The object that `status` and `ls` print.
#[derive(Debug, Serialize)]
pub(crate) struct StateObject<'a> {
    lock: &'a str,
    mode: Option<&'static str>,
    holders: Vec<HolderObject<'a>>,
    waiters: Vec<WaiterObject<'a>>,
}

#[derive(Debug, Serialize)]
struct HolderObject<'a> {
    owner: &'a str,
    token: Option<u64>,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: &'a str,
    age_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entered: Option<u64>,
    #[serde(flatten)]
    permits: Option<Permits>,
}

#[derive(Debug, Serialize)]
struct WaiterObject<'a> {
    owner: &'a str,
    mode: &'static str,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: &'a str,
    age_ms: u64,
    #[serde(flatten)]
    permits: Option<Permits>,
}

#[derive(Debug, Serialize)]
struct Permits {
    take: u32,
    of: u32,
}

impl<'a> From<&'a LockState> for StateObject<'a> {
    fn from(state: &'a LockState) -> Self {
        Self {
            lock: state.name.as_str(),
            mode: state.holders.first().map(|holder| mode_name(holder.mode)),
            holders: state.holders.iter().map(holder).collect(),
            waiters: state.waiters.iter().map(waiter).collect(),
        }
    }
}

fn holder(holder: &Holder) -> HolderObject<'_> {
    HolderObject {
        owner: &holder.owner,
        token: holder.token.map(|token| token.get()),
        host: holder.host.as_deref(),
        pid: holder.pid,
        label: &holder.label,
        age_ms: holder.age.map(milliseconds),
        expires_in_ms: holder.expires_in.map(milliseconds),
        entered: holder.entered,
        permits: permits(holder.mode),
    }
}

fn waiter(waiter: &Waiter) -> WaiterObject<'_> {
    WaiterObject {
        owner: &waiter.owner,
        mode: mode_name(waiter.mode),
        host: waiter.host.as_deref(),
        pid: waiter.pid,
        label: &waiter.label,
        age_ms: milliseconds(waiter.age),
        permits: permits(waiter.mode),
    }
}

const fn permits(mode: Mode) -> Option<Permits> {
    match mode {
        Mode::Permits { take, of } => Some(Permits { take, of }),
        Mode::Exclusive | Mode::Shared => None,
    }
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

/// Says that no lock has this prefix, if there is one.
pub(crate) fn no_locks(prefix: &str) -> Option<String> {
    let some = !prefix.is_empty();
    some.then(|| format!("no lock whose name begins with {prefix:?} is held or waited for"))
}

/// A mode as text.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, of } => format!("permits {take}/{of}"),
        mode => mode_name(mode).into(),
    }
}

/// The process and the label of a holder or waiter: `host:pid (label)`.
pub(crate) fn process(host: Option<&str>, pid: Option<u32>, label: &str) -> String {
    let process = match (host, pid) {
        (Some(host), Some(pid)) => format!("{host}:{pid}"),
        (Some(host), None) => host.into(),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => "unknown".into(),
    };
    printable(&match label {
        "" => process,
        label => format!("{process} ({label})"),
    })
}

/// A duration in at most two units: `850ms`, `12s`, `3m07s`, `2h05m`, `3d04h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::{LockName, Token};

    #[test]
    fn the_json_of_a_state_has_its_documented_keys() {
        let json = |state: &LockState| serde_json::to_string(&StateObject::from(state)).unwrap();
        let name = LockName::new("a").unwrap();
        let free = LockState::free(name.clone());
        assert_eq!(json(&free), r#"{"lock":"a","mode":null,"holders":[],"waiters":[]}"#);
        let mut holder = Holder::new("ab", Mode::Permits { take: 2, of: 5 });
        holder.token = Some(Token::new(17));
        holder.host = Some("h".into());
        holder.pid = Some(1);
        holder.label = "l".into();
        holder.age = Some(Duration::from_millis(5));
        holder.expires_in = Some(Duration::from_secs(29));
        let held = LockState::new(name, vec![holder], vec![]);
        let holder = r#"{"owner":"ab","token":17,"host":"h","pid":1,"label":"l","age_ms":5,"expires_in_ms":29000,"take":2,"of":5}"#;
        let shown = format!(r#"{{"lock":"a","mode":"permits","holders":[{holder}],"waiters":[]}}"#);
        assert_eq!(json(&held), shown);
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (milliseconds, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (59_999, "59s"),
            (187_000, "3m07s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), shown);
        }
    }

    #[test]
    fn a_process_is_shown_as_far_as_it_is_known() {
        assert_eq!(process(Some("h"), Some(3), "backup"), "h:3 (backup)");
        assert_eq!(process(None, None, ""), "unknown");
        assert_eq!(process(Some("h"), None, "\x1b[2J"), "h (\u{fffd}[2J)");
    }
}
