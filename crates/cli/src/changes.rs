//! What changed between two looks at a store. No clock, no store: two lists in, changes out.

use std::collections::BTreeMap;

use tenure::{Holder, LockName, LockState, Token, Waiter};

/// One thing that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) lock: LockName,
    pub(crate) event: Event,
    /// Who it happened to.
    pub(crate) who: Who,
    /// Who had the lock before, if it was handed over.
    pub(crate) from: Option<Who>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Holds now, and was not seen before.
    Acquired,
    /// Held before, and no longer does.
    Released,
    /// Waited before, and holds now, in the place of one who no longer does.
    HandedOver,
    /// Waits now.
    Waiting,
    /// Waited before, and neither waits nor holds now.
    Gone,
}

impl Event {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Released => "released",
            Self::HandedOver => "handed over",
            Self::Waiting => "waiting",
            Self::Gone => "gone",
        }
    }
}

/// A holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) owner: String,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) label: String,
    pub(crate) token: Option<Token>,
}

/// What happened between two looks, lock by lock in the order of names.
pub(crate) fn between(before: &[LockState], after: &[LockState]) -> Vec<Change> {
    let mut locks: BTreeMap<&LockName, (Option<&LockState>, Option<&LockState>)> = BTreeMap::new();
    before.iter().for_each(|state| locks.entry(&state.name).or_default().0 = Some(state));
    after.iter().for_each(|state| locks.entry(&state.name).or_default().1 = Some(state));
    let mut changes = Vec::new();
    for (name, (before, after)) in locks {
        let free = LockState::free(name.clone());
        one_lock(before.unwrap_or(&free), after.unwrap_or(&free), &mut changes);
    }
    changes
}

fn one_lock(before: &LockState, after: &LockState, changes: &mut Vec<Change>) {
    let held = |state: &LockState, owner: &str| state.holders.iter().any(|h| h.owner == owner);
    let waited = |state: &LockState, owner: &str| state.waiters.iter().any(|w| w.owner == owner);
    let mut add = |event, who: Who, from| {
        let lock = after.name.clone();
        changes.push(Change { lock, event, who, from });
    };
    let mut left = before.holders.iter().filter(|holder| !held(after, &holder.owner));
    let came = after.holders.iter().filter(|holder| !held(before, &holder.owner));
    let (heirs, newcomers): (Vec<_>, Vec<_>) =
        came.partition(|holder| waited(before, &holder.owner));
    let mut acquired = newcomers;
    for heir in heirs {
        match left.next() {
            Some(predecessor) => add(Event::HandedOver, heir.into(), Some(predecessor.into())),
            // One who waited for more permits than were left, or for no one we saw.
            None => acquired.push(heir),
        }
    }
    left.for_each(|holder| add(Event::Released, holder.into(), None));
    acquired.into_iter().for_each(|holder| add(Event::Acquired, holder.into(), None));
    for waiter in &after.waiters {
        if !waited(before, &waiter.owner) && !held(before, &waiter.owner) {
            add(Event::Waiting, waiter.into(), None);
        }
    }
    for waiter in &before.waiters {
        if !waited(after, &waiter.owner) && !held(after, &waiter.owner) {
            add(Event::Gone, waiter.into(), None);
        }
    }
}

impl From<&Holder> for Who {
    fn from(holder: &Holder) -> Self {
        Self {
            owner: holder.owner.clone(),
            host: holder.host.clone(),
            pid: holder.pid,
            label: holder.label.clone(),
            token: holder.token,
        }
    }
}

impl From<&Waiter> for Who {
    fn from(waiter: &Waiter) -> Self {
        Self {
            owner: waiter.owner.clone(),
            host: waiter.host.clone(),
            pid: waiter.pid,
            label: waiter.label.clone(),
            token: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Mode;

    /// `"a: x y | z"`: the lock `a`, held by x and y, waited for by z.
    fn look(text: &str) -> Vec<LockState> {
        text.split_terminator(';').map(state).collect()
    }

    fn state(text: &str) -> LockState {
        let (name, who) = text.split_once(':').unwrap();
        let (holders, waiters) = who.split_once('|').unwrap_or((who, ""));
        let holder = |owner: &str| Holder::new(owner, Mode::Shared);
        let waiter = |owner: &str| Waiter::new(owner, Mode::Shared);
        LockState::new(
            name.trim().parse().unwrap(),
            holders.split_whitespace().map(holder).collect(),
            waiters.split_whitespace().map(waiter).collect(),
        )
    }

    fn told(before: &str, after: &str) -> Vec<String> {
        let tell = |change: Change| {
            let from = change.from.map_or(String::new(), |from| format!(" from {}", from.owner));
            format!("{} {} {}{from}", change.lock, change.event.name(), change.who.owner)
        };
        between(&look(before), &look(after)).into_iter().map(tell).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        for (before, after, expected) in [
            ("", "", &[][..]),
            ("a: x | y", "a: x | y", &[]),
            ("", "a: x", &["a acquired x"]),
            ("a: x", "", &["a released x"]),
            ("a: x", "a: x | y", &["a waiting y"]),
            ("a: x | y", "a: x", &["a gone y"]),
            ("a: x | y", "a: y", &["a handed over y from x"]),
            ("a: x | y z", "a: y | z", &["a handed over y from x"]),
            ("a: x", "a: y", &["a released x", "a acquired y"]),
            ("a: x | y", "a: x y", &["a acquired y"]),
            ("a: w | r s", "a: r s", &["a handed over r from w", "a acquired s"]),
            ("a: x | y", "", &["a released x", "a gone y"]),
            ("a: x; b: y", "b: z", &["a released x", "b released y", "b acquired z"]),
        ] {
            assert_eq!(told(before, after), expected, "{before} -> {after}");
        }
    }
}
