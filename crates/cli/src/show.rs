//! The state of a lock, in words and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tenure::{Holder, LockState, Mode, Waiter};

use crate::output::printable;

/// The object that `status` and `ls` print.
pub(crate) fn state(state: &LockState) -> Value {
    json!({
        "lock": state.name.as_str(),
        "mode": state.holders.first().map(|holder| mode_name(holder.mode)),
        "holders": state.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": state.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

fn holder(holder: &Holder) -> Value {
    let mut object = json!({
        "owner": holder.owner,
        "token": holder.token.map(|token| token.get()),
        "host": holder.host,
        "pid": holder.pid,
        "label": holder.label,
        "age_ms": milliseconds(holder.age),
        "expires_in_ms": holder.expires_in.map(milliseconds),
    });
    add_permits(&mut object, holder.mode);
    object
}

fn waiter(waiter: &Waiter) -> Value {
    let mut object = json!({
        "owner": waiter.owner,
        "mode": mode_name(waiter.mode),
        "host": waiter.host,
        "pid": waiter.pid,
        "label": waiter.label,
        "age_ms": milliseconds(waiter.age),
    });
    add_permits(&mut object, waiter.mode);
    object
}

fn add_permits(object: &mut Value, mode: Mode) {
    if let (Mode::Permits { take, of }, Some(fields)) = (mode, object.as_object_mut()) {
        fields.extend(Map::from_iter([("take".into(), take.into()), ("of".into(), of.into())]));
    }
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

/// A mode in a table.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, of } => format!("permits {take}/{of}"),
        mode => mode_name(mode).into(),
    }
}

/// Where a holder or waiter is and what it says it does: `host:pid (label)`.
pub(crate) fn whereabouts(host: Option<&str>, pid: Option<u32>, label: &str) -> String {
    let place = match (host, pid) {
        (Some(host), Some(pid)) => format!("{host}:{pid}"),
        (Some(host), None) => host.into(),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => "unknown".into(),
    };
    printable(&match label {
        "" => place,
        label => format!("{place} ({label})"),
    })
}

/// A duration for people: `850ms`, `12s`, `3m07s`, `2h05m`, `3d04h`.
pub(crate) fn span(duration: Duration) -> String {
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
    fn a_state_is_the_object_that_the_contract_shows() {
        let name = LockName::new("a").unwrap();
        let free = LockState::free(name.clone());
        let shown = r#"{"lock":"a","mode":null,"holders":[],"waiters":[]}"#;
        assert_eq!(state(&free), serde_json::from_str::<Value>(shown).unwrap());
        let held = LockState {
            name,
            holders: vec![Holder {
                owner: "ab".into(),
                mode: Mode::Permits { take: 2, of: 5 },
                token: Some(Token::new(17)),
                host: Some("h".into()),
                pid: Some(1),
                label: "l".into(),
                age: Duration::from_millis(5),
                expires_in: Some(Duration::from_secs(29)),
            }],
            waiters: vec![],
        };
        let shown = r#"{"lock":"a","mode":"permits","holders":[{"owner":"ab","token":17,"host":"h",
            "pid":1,"label":"l","age_ms":5,"expires_in_ms":29000,"take":2,"of":5}],"waiters":[]}"#;
        assert_eq!(state(&held), serde_json::from_str::<Value>(shown).unwrap());
    }

    #[test]
    fn spans_have_two_units_at_most() {
        for (milliseconds, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (59_999, "59s"),
            (187_000, "3m07s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(span(Duration::from_millis(milliseconds)), shown);
        }
    }

    #[test]
    fn whereabouts_say_what_is_known() {
        assert_eq!(whereabouts(Some("h"), Some(3), "backup"), "h:3 (backup)");
        assert_eq!(whereabouts(None, None, ""), "unknown");
        assert_eq!(whereabouts(Some("h"), None, "\x1b[2J"), "h (\u{fffd}[2J)");
    }
}
