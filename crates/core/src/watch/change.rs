//! What changed between two looks at a lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::{AuditEvent, AuditRecord, Holder, LockName, LockState, OwnerId, Token, Waiter};

/// One change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Change {
    /// When it was seen, by this machine's clock.
    pub at: SystemTime,
    /// The lock.
    pub lock: LockName,
    /// What happened.
    pub kind: ChangeKind,
    /// The claim that it happened to.
    pub claim: ChangedClaim,
    /// The claim that held the lock before, if it was handed over.
    pub from: Option<ChangedClaim>,
    /// The process that evicted the claim or asked it to let go, with its reason.
    pub by: Option<Intervention>,
}

/// What happened to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ChangeKind {
    /// It holds the lock, and was not seen to wait for it, or took it from no holder that was seen.
    Acquired,
    /// It held the lock and no longer does. It gave the lock up, or its process died on a store that notices
    /// that at once.
    Released,
    /// It waited, and holds the lock now in the place of a holder that no longer does.
    HandedOver,
    /// It began to wait.
    Waiting,
    /// It waited, and neither waits nor holds now.
    GivenUp,
    /// It holds the lock, and renewed its lease when less than half of it was left.
    RenewedLate,
    /// It held the lock until its lease ended without a renewal.
    Lost,
    /// The lock, or its place in the queue, was taken from it by force.
    Evicted,
    /// It held the lock, was asked to let go, and no longer holds it.
    Revoked,
}

/// A holder or waiter of which a [`Change`] speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChangedClaim {
    /// The owner id, as the store spells it.
    pub owner: String,
    /// Its machine, if known.
    pub host: Option<String>,
    /// Its process id, if known.
    pub pid: Option<u32>,
    /// What the lock is held for. May be empty.
    pub label: String,
    /// The fencing token, for a holder on a store that gives one.
    pub token: Option<Token>,
}

/// What an operator did to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Intervention {
    /// The operator's machine.
    pub host: String,
    /// The operator's process there.
    pub pid: u32,
    /// Why, in one line.
    pub reason: String,
}

impl ChangeKind {
    /// In two words at most: "acquired", "handed over", "renewed late" and so on.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Released => "released",
            Self::HandedOver => "handed over",
            Self::Waiting => "waiting",
            Self::GivenUp => "given up",
            Self::RenewedLate => "renewed late",
            Self::Lost => "lost",
            Self::Evicted => "evicted",
            Self::Revoked => "revoked",
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Change {
    /// The changes that lead from a store without locks to this snapshot: a holder was acquired, a waiter
    /// waits. For a program that shows a snapshot as it shows changes.
    pub fn from_snapshot(snapshot: &[LockState]) -> Vec<Self> {
        let (now, at) = (Instant::now(), SystemTime::now());
        let of_one = |state: &LockState| {
            Seen::free(state.name.clone(), now).changes(state, &[], Look { now, at })
        };
        let by_name: BTreeMap<_, _> = snapshot.iter().map(|state| (&state.name, state)).collect();
        by_name.into_values().flat_map(of_one).collect()
    }
}

/// A lock as it was seen at some moment.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) state: LockState,
    pub(super) at: Instant,
    /// The longest time that each holder was seen to have left.
    terms: HashMap<String, Duration>,
}

/// When the store was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: Instant,
    /// The same moment, by the machine's clock.
    pub(super) at: SystemTime,
}

/// How long ago an eviction may have been recorded to explain that a claim of another client has gone, whose
/// owner id may come again. The record is dated by another machine.
const RECENT: Duration = Duration::from_secs(300);

impl Seen {
    pub(super) fn free(name: LockName, now: Instant) -> Self {
        Self { state: LockState::free(name), at: now, terms: HashMap::new() }
    }

    /// What is known of the lock after this look.
    pub(super) fn then(mut self, state: LockState, now: Instant) -> Self {
        let term = |holder: &Holder| {
            let left = holder.expires_in?;
            let before = self.terms.remove(&holder.owner).unwrap_or_default();
            Some((holder.owner.clone(), left.max(before)))
        };
        let terms = state.holders.iter().filter_map(term).collect();
        Self { state, at: now, terms }
    }

    /// Whether a claim that was seen neither holds nor waits now.
    pub(super) fn lacks_a_claim(&self, after: &LockState) -> bool {
        let (Self { state, .. }, after) = (self, Owners::of(after));
        state.holders.iter().any(|holder| !after.has_holder(&holder.owner))
            || state.waiters.iter().any(|waiter| !after.has_claim(&waiter.owner))
    }

    /// The changes since, in the order in which they must have come. `records` are those of the lock, newest
    /// first.
    pub(super) fn changes(
        &self,
        after: &LockState,
        records: &[AuditRecord],
        look: Look,
    ) -> Vec<Change> {
        let before = &self.state;
        let (owners, owners_after) = (Owners::of(before), Owners::of(after));
        let mut changes = Vec::new();
        let mut add = |kind, claim: ChangedClaim, from, by| {
            let lock = after.name.clone();
            changes.push(Change { at: look.at, lock, kind, claim, from, by });
        };
        let mut left = Vec::new();
        for holder in before.holders.iter().filter(|holder| !owners_after.has_holder(&holder.owner))
        {
            match self.end(holder, records, look) {
                (ChangeKind::Released, _) => left.push((holder, true)),
                (kind, by) => {
                    add(kind, holder.into(), None, by);
                    left.push((holder, false));
                }
            }
        }
        let mut left = left.into_iter();
        let came = after.holders.iter().filter(|holder| !owners.has_holder(&holder.owner));
        let (heirs, mut acquired): (Vec<_>, Vec<_>) =
            came.partition(|holder| owners.waiters.contains(&*holder.owner));
        for heir in heirs {
            match left.next() {
                Some((predecessor, _)) => {
                    add(ChangeKind::HandedOver, heir.into(), Some(predecessor.into()), None);
                }
                // The claim waited for more permits than were left, or for a holder that was not seen.
                None => acquired.push(heir),
            }
        }
        for (holder, _) in left.filter(|(_, unexplained)| *unexplained) {
            add(ChangeKind::Released, holder.into(), None, None);
        }
        acquired.iter().for_each(|holder| add(ChangeKind::Acquired, (*holder).into(), None, None));
        for holder in &after.holders {
            let was = owners.holders.get(&*holder.owner);
            if was.is_some_and(|was| self.renewed_late(was, holder, look.now)) {
                add(ChangeKind::RenewedLate, holder.into(), None, None);
            }
        }
        for waiter in &after.waiters {
            if !owners.has_claim(&waiter.owner) {
                add(ChangeKind::Waiting, waiter.into(), None, None);
            }
        }
        for waiter in &before.waiters {
            if !owners_after.has_claim(&waiter.owner) {
                let by = record_of(&waiter.owner, None, records, look, AuditEvent::Evicted);
                let evicted = by.is_some();
                let kind = if evicted { ChangeKind::Evicted } else { ChangeKind::GivenUp };
                add(kind, waiter.into(), None, by);
            }
        }
        changes
    }

    /// How a hold ended.
    fn end(
        &self,
        holder: &Holder,
        records: &[AuditRecord],
        look: Look,
    ) -> (ChangeKind, Option<Intervention>) {
        for (event, kind) in
            [(AuditEvent::Evicted, ChangeKind::Evicted), (AuditEvent::Revoked, ChangeKind::Revoked)]
        {
            let by = record_of(&holder.owner, holder.token, records, look, event);
            if by.is_some() {
                return (kind, by);
            }
        }
        let term = self.terms.get(&holder.owner).copied().unwrap_or_default();
        let ran_out = holder.expires_in.is_some_and(|left| {
            // A holder that renews in time has more than half of its term left whenever it is seen.
            left < term / 2 && left <= look.now.saturating_duration_since(self.at)
        });
        (if ran_out { ChangeKind::Lost } else { ChangeKind::Released }, None)
    }

    fn renewed_late(&self, was: &Holder, holder: &Holder, now: Instant) -> bool {
        let (Some(was_left), Some(is_left)) = (was.expires_in, holder.expires_in) else {
            return false;
        };
        let Some(term) = self.terms.get(&holder.owner) else { return false };
        // Clocks are read at either end of a call: a little more time than was left is no renewal.
        let passed = now.saturating_duration_since(self.at);
        was_left < *term / 2 && is_left > was_left && is_left + passed > was_left + *term / 4
    }
}

/// The claims on a lock by owner, so that a look at a long queue takes no longer than its length.
struct Owners<'a> {
    holders: HashMap<&'a str, &'a Holder>,
    waiters: HashSet<&'a str>,
}

impl<'a> Owners<'a> {
    fn of(state: &'a LockState) -> Self {
        Self {
            holders: state.holders.iter().map(|holder| (&*holder.owner, holder)).collect(),
            waiters: state.waiters.iter().map(|waiter| &*waiter.owner).collect(),
        }
    }

    fn has_holder(&self, owner: &str) -> bool {
        self.holders.contains_key(owner)
    }

    fn has_claim(&self, owner: &str) -> bool {
        self.has_holder(owner) || self.waiters.contains(owner)
    }
}

fn record_of(
    owner: &str,
    token: Option<Token>,
    records: &[AuditRecord],
    look: Look,
    event: AuditEvent,
) -> Option<Intervention> {
    let is_recent = |at: SystemTime| look.at.duration_since(at).is_ok_and(|ago| ago <= RECENT);
    let never_comes_again = owner.parse::<OwnerId>().is_ok();
    let record = records.iter().find(|record| {
        record.event == event
            && record.owner == owner
            && (record.token.is_none() || token.is_none() || record.token == token)
            && (never_comes_again || record.at.is_some_and(is_recent))
    })?;
    let (host, pid, reason) = (record.by.host.clone(), record.by.pid, record.reason.clone());
    Some(Intervention { host, pid, reason })
}

impl From<&Holder> for ChangedClaim {
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

impl From<&Waiter> for ChangedClaim {
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
pub(super) mod tests {
    use super::*;
    use crate::Mode;

    /// `"x y | z"`: the lock `a`, held by x and y, waited for by z. `x:5` has 5 s left.
    fn state(claims: &str) -> LockState {
        let (holders, waiters) = claims.split_once('|').unwrap_or((claims, ""));
        let holder = |text: &str| {
            let (owner, left) = text.split_once(':').unwrap_or((text, "30"));
            let mut holder = Holder::new(owner, Mode::Shared);
            holder.expires_in = Some(Duration::from_secs(left.parse().unwrap()));
            holder
        };
        LockState::new(
            "a".parse().unwrap(),
            holders.split_whitespace().map(holder).collect(),
            waiters.split_whitespace().map(|owner| Waiter::new(owner, Mode::Shared)).collect(),
        )
    }

    pub(crate) fn text(change: &Change) -> String {
        let from = change.from.as_ref().map(|from| format!(" from {}", from.owner));
        let from = from.unwrap_or_default();
        let by = change.by.as_ref().map(|by| format!(": {}", by.reason)).unwrap_or_default();
        format!("{} {}{from}{by}", change.kind, change.claim.owner)
    }

    /// The changes between successive looks, five seconds apart.
    fn history(looks: &[&str], records: &[AuditRecord]) -> Vec<String> {
        let (mut now, at) = (Instant::now(), SystemTime::now());
        let mut seen = Seen::free("a".parse().unwrap(), now);
        let mut changes = Vec::new();
        for (number, look) in looks.iter().enumerate() {
            let after = state(look);
            if number > 0 {
                changes.extend(seen.changes(&after, records, Look { now, at }).iter().map(text));
            }
            seen = seen.then(after, now);
            now += Duration::from_secs(5);
        }
        changes
    }

    #[test]
    fn each_change_is_reported_once() {
        for (before, after, expected) in [
            ("", "", &[][..]),
            ("x | y", "x | y", &[]),
            ("", "x", &["acquired x"]),
            ("x", "", &["released x"]),
            ("x", "x | y", &["waiting y"]),
            ("x | y", "x", &["given up y"]),
            ("x | y", "y", &["handed over y from x"]),
            ("x | y z", "y | z", &["handed over y from x"]),
            ("x", "y", &["released x", "acquired y"]),
            ("x | y", "x y", &["acquired y"]),
            ("w | r s", "r s", &["handed over r from w", "acquired s"]),
            ("x | y", "", &["released x", "given up y"]),
        ] {
            assert_eq!(history(&[before, after], &[]), expected, "{before} -> {after}");
        }
    }

    #[test]
    fn a_lease_that_ran_out_is_lost_and_one_that_nearly_did_is_renewed_late() {
        for (looks, expected) in [
            (&["x:30", "x:25", "x:30", "x:28"][..], &[][..]),
            (&["x:30", "x:10", "x:29"], &["renewed late x"]),
            (&["x:30", "x:10", "x:11"], &[]),
            (&["x:30", "x:4", ""], &["lost x"]),
            (&["x:30 | y", "x:4 | y", "y"], &["lost x", "handed over y from x"]),
            (&["x:30", "x:16", ""], &["released x"]),
            // More time was left to the claim than has passed.
            (&["x:30", "x:10", ""], &["released x"]),
            // A term that is shorter than the time between two looks.
            (&["x:4", "x:3", ""], &["released x"]),
        ] {
            assert_eq!(history(looks, &[]), expected, "{looks:?}");
        }
    }

    #[test]
    fn a_claim_whose_eviction_or_revocation_is_on_record_has_not_just_gone() {
        let record = |event, owner, reason| AuditRecord::new(event, owner, None, reason);
        let records = [
            record(AuditEvent::Evicted, "x", "hung"),
            record(AuditEvent::Revoked, "x", "deploy"),
            record(AuditEvent::Revoked, "y", "deploy"),
            record(AuditEvent::Evicted, "z", "stray"),
        ];
        for (before, after, expected) in [
            ("x | w", "w", &["evicted x: hung", "handed over w from x"][..]),
            ("y", "", &["revoked y: deploy"]),
            ("v | z", "v", &["evicted z: stray"]),
            ("v", "", &["released v"]),
        ] {
            assert_eq!(history(&[before, after], &records), expected, "{before} -> {after}");
        }
        // Other clients use an owner id again: an old record says nothing about this hold.
        let mut old = record(AuditEvent::Evicted, "x", "hung");
        old.at = Some(SystemTime::now() - 2 * RECENT);
        assert_eq!(history(&["x", ""], &[old]), ["released x"]);
        let mut other = record(AuditEvent::Evicted, "x", "hung");
        other.token = Some(Token::new(7));
        let mut held = Holder::new("x", Mode::Exclusive);
        held.token = Some(Token::new(8));
        let look = Look { now: Instant::now(), at: SystemTime::now() };
        let seen = Seen::free("a".parse().unwrap(), look.now);
        assert_eq!(seen.end(&held, &[other], look).0, ChangeKind::Released);
    }
}
