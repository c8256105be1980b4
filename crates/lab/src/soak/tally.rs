//! What has happened so far, judged window by window, so that memory does not grow with time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tenure_testkit::{GENEROUS, Process};

use crate::history::{Access, Grant, History, Kind, Stamp, now};
use crate::judge::{Finding, belief_end, judge};
use crate::report::explain;

/// How long an event can still matter: longer than a process is stopped.
const MEMORY: u64 = 60_000_000_000;

/// The figures of a soak.
#[derive(Debug, Default, Serialize)]
pub struct Tally {
    /// Successful acquires.
    pub acquisitions: u64,
    /// Writes that reached the resource.
    pub writes: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Pairs of beliefs that overlapped.
    pub overlaps: u64,
    /// Stale accesses that the resource rejected.
    pub stale_rejected: u64,
    /// Stale accesses that the resource accepted.
    pub stale_accepted: u64,
    /// The longest time, in milliseconds, that a lock had waiters and no holder.
    pub worst_gap_ms: u64,
    /// What it must not exceed.
    pub gap_bound_ms: u64,
    /// Locks that were still taken at the end, after every TTL.
    pub orphans: u64,
    /// What went wrong.
    pub violations: BTreeSet<String>,
    #[serde(skip)]
    grants: BTreeMap<String, Grant>,
    #[serde(skip)]
    accesses: Vec<Access>,
    #[serde(skip)]
    rejected: BTreeSet<(Stamp, String)>,
    #[serde(skip)]
    dead: Vec<(String, Stamp, Process)>,
    /// When each lock was free again, at the earliest.
    #[serde(skip)]
    free: BTreeMap<String, Stamp>,
}

impl Tally {
    pub(crate) fn new(ttl: Duration) -> Self {
        // A dead holder and dead waiters in a row, each for a TTL, on a busy machine.
        let bound = ttl * 6 + Duration::from_secs(10);
        Self { gap_bound_ms: bound.as_millis() as u64, ..Self::default() }
    }

    pub(crate) fn fault(&mut self, kind: &str) {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
    }

    pub(crate) fn violation(&mut self, what: String) {
        self.violations.insert(what);
    }

    /// Whether nothing went wrong.
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.orphans == 0 && self.worst_gap_ms <= self.gap_bound_ms
    }

    /// Notes that a process was killed.
    pub(crate) fn died(&mut self, name: String, at: Stamp, process: Process) {
        self.dead.push((name, at, process));
    }

    /// Records the last words of processes that were killed. A dead process believes nothing.
    pub(crate) async fn listen_to_the_dead(&mut self) {
        for (name, at, mut process) in std::mem::take(&mut self.dead) {
            while let Some(line) = process.line(GENEROUS).await {
                self.hear(&line);
            }
            for grant in self.grants.values_mut().filter(|grant| grant.client == name) {
                grant.lost.get_or_insert(at);
            }
        }
    }

    /// Records a line of a process: `held GRANT LOCK INVOKED HELD TOKEN DEADLINE`, or `done GRANT AT`.
    pub(crate) fn hear(&mut self, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["held", id, lock, invoked, held, token, deadline] => {
                let number = |text: &str| text.parse().ok();
                let grant = Grant {
                    id: id.to_owned(),
                    client: id.split('.').next().unwrap_or(id).to_owned(),
                    lock: lock.to_owned(),
                    invoked: number(invoked).unwrap_or(0),
                    held: number(held).unwrap_or(0),
                    token: number(token),
                    deadline: number(deadline),
                    ..Grant::default()
                };
                self.acquisitions += 1;
                self.grants.insert(grant.id.clone(), grant);
            }
            ["done", id, at] => {
                if let Some(grant) = self.grants.get_mut(id) {
                    grant.released = at.parse().ok();
                }
            }
            ["failed", ..] => self.violation(line.to_owned()),
            _ => {}
        }
    }

    /// Judges what has happened since the last time, together with what may still matter. Of later grants than
    /// `until`, not everything is known yet.
    pub(crate) fn judge(&mut self, fresh: Vec<Access>, until: Stamp) {
        self.writes += fresh.iter().filter(|access| access.kind == Kind::Write).count() as u64;
        self.accesses.extend(fresh);
        let accesses = std::mem::take(&mut self.accesses);
        let is_known = |grant: &&Grant| grant.held < until;
        let grants = self.grants.values().filter(is_known).cloned().collect();
        let history = History { grants, accesses, end: until, ..History::default() };
        for finding in judge(&history).findings {
            self.count(&finding, &history);
        }
        self.gaps(until);
        let horizon = now().saturating_sub(MEMORY);
        self.accesses = history.accesses;
        self.accesses.retain(|access| access.at > horizon);
        let used: BTreeSet<&str> = self.accesses.iter().map(|access| &*access.grant).collect();
        self.grants.retain(|id, grant| belief_end(grant) > horizon || used.contains(&**id));
        self.rejected.retain(|(at, _)| *at > horizon);
    }

    fn count(&mut self, finding: &Finding, history: &History) {
        match finding {
            Finding::StaleRejected(index) => {
                let access = &history.accesses[*index];
                if self.rejected.insert((access.at, access.grant.clone())) {
                    self.stale_rejected += 1;
                }
            }
            other => {
                if self.violations.insert(explain(other, history)) {
                    self.overlaps += u64::from(matches!(other, Finding::Overlap { .. }));
                    self.stale_accepted += u64::from(matches!(other, Finding::StaleAccepted(_)));
                }
            }
        }
    }

    /// Finds the longest time between two holders. All processes ask all the time.
    fn gaps(&mut self, until: Stamp) {
        let known = self.grants.values().filter(|grant| grant.held < until);
        let mut sorted: Vec<&Grant> = known.collect();
        sorted.sort_by_key(|grant| grant.held);
        for grant in sorted {
            let end = belief_end(grant);
            let free = self.free.entry(grant.lock.clone()).or_insert(grant.held);
            // Not before someone asked.
            let gap = grant.held.saturating_sub((*free).max(grant.invoked));
            self.worst_gap_ms = self.worst_gap_ms.max(gap / 1_000_000);
            if end != Stamp::MAX {
                *free = (*free).max(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Tally {
        let mut tally = Tally::new(Duration::from_secs(1));
        lines.iter().for_each(|line| tally.hear(line));
        tally
    }

    #[test]
    fn a_grant_whose_predecessor_may_still_report_its_end_is_judged_later() {
        let mut tally = heard(&["held p1.0.1 a 1 10 1 900", "held p2.0.1 a 5 60 2 900"]);
        tally.judge(Vec::new(), 50);
        assert!(tally.is_sound(), "{:?}", tally.violations);
        tally.hear("done p1.0.1 55");
        tally.judge(Vec::new(), 100);
        assert!(tally.is_sound(), "{:?}", tally.violations);
        assert_eq!(tally.acquisitions, 2);
    }

    #[test]
    fn an_overlap_is_a_violation_and_counted_once() {
        let mut tally = heard(&["held p1.0.1 a 1 10 1 -", "held p2.0.1 a 5 60 2 -"]);
        let horizon = now() + 1;
        // Both still hold it, so both still matter in the next window.
        tally.judge(Vec::new(), horizon);
        tally.judge(Vec::new(), horizon);
        assert_eq!(tally.overlaps, 1);
        assert!(!tally.is_sound());
    }
}
