//! What has happened so far, judged window by window, so that memory does not grow with time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tenure_testkit::{GENEROUS, Process};

use crate::history::{Access, Grant, History, Kind, Stamp, now};
use crate::judge::{Finding, belief_end, judge};
use crate::report::explain;

use super::gaps::Gaps;

/// How long an event can still matter: longer than a process is stopped.
const MEMORY: u64 = 60_000_000_000;

/// Acquisitions in a second without which a soak shows nothing.
const LEAST_RATE: f64 = 5.0;

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
    /// Writes that arrived after a later holder had used the resource.
    pub stale_attempted: u64,
    /// Those that the resource rejected.
    pub stale_rejected: u64,
    /// Those that the resource accepted.
    pub stale_accepted: u64,
    /// The longest time, in milliseconds, that processes asked for a lock which had no holder.
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
    /// Processes that were killed, and when. What they said last is still in their pipes.
    #[serde(skip)]
    killed: Vec<(String, Stamp, Process)>,
    #[serde(skip)]
    gaps: Gaps,
}

impl Tally {
    /// Figures of a soak with this TTL, whose servers are down for `longest_outage` at most.
    pub(crate) fn new(ttl: Duration, longest_outage: Duration) -> Self {
        // A dead holder and dead waiters in a row, each for a TTL, on a busy machine; and two outages in a row.
        let bound = ttl * 6 + Duration::from_secs(10) + longest_outage * 2;
        Self { gap_bound_ms: bound.as_millis() as u64, ..Self::default() }
    }

    pub(crate) fn fault(&mut self, kind: &str) {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
    }

    pub(crate) fn violation(&mut self, what: String) {
        self.violations.insert(what);
    }

    /// Why a soak of this duration shows nothing, if it does not: it had no faults, or hardly any load.
    pub fn void(&self, duration: Duration) -> Option<String> {
        let floor = (duration.as_secs_f64() * LEAST_RATE) as u64;
        if self.acquisitions < floor {
            let Self { acquisitions, .. } = self;
            return Some(format!("{acquisitions} acquisitions, at least {floor} are needed"));
        }
        self.faults.is_empty().then(|| "no fault was injected".into())
    }

    /// Whether nothing went wrong.
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.orphans == 0 && self.worst_gap_ms <= self.gap_bound_ms
    }

    /// Notes that a process was killed.
    pub(crate) fn died(&mut self, name: String, at: Stamp, process: Process) {
        self.killed.push((name, at, process));
    }

    /// Records the last reports of processes that were killed. A dead process believes nothing.
    pub(crate) async fn drain_killed(&mut self) {
        for (name, at, mut process) in std::mem::take(&mut self.killed) {
            while let Some(line) = process.line(GENEROUS).await {
                self.hear(&line);
            }
            for grant in self.grants.values_mut().filter(|grant| grant.client == name) {
                grant.lost.get_or_insert(at);
            }
        }
    }

    /// Records a line of a process: `held GRANT LOCK INVOKED HELD TOKEN DEADLINE`, `until GRANT DEADLINE` after a
    /// renewal, `done GRANT AT`, `failed GRANT WHY`, or `refused LOCK INVOKED RETURNED` of an acquire that got no
    /// lock. Other lines are not about locks.
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
            ["until", id, deadline] => {
                if let Some(grant) = self.grants.get_mut(id) {
                    grant.deadline = grant.deadline.max(deadline.parse().ok());
                }
            }
            ["done", id, at] => {
                if let Some(grant) = self.grants.get_mut(id) {
                    grant.released = at.parse().ok();
                }
            }
            ["refused", lock, invoked, returned] => {
                if let (Ok(invoked), Ok(returned)) = (invoked.parse(), returned.parse()) {
                    self.gaps.refused(lock, invoked, returned);
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
        let mut accesses = std::mem::take(&mut self.accesses);
        // An access of a grant after `until` waits, also where a process on a busy machine is late with its report.
        let is_early = |it: &Access| it.at >= until || !self.grants.contains_key(&it.grant);
        let early = accesses.iter().position(is_early);
        let later = early.map_or(Vec::new(), |place| accesses.split_off(place));
        let until = later.first().map_or(until, |access| access.at.min(until));
        let is_known = |grant: &&Grant| grant.held < until;
        let grants = self.grants.values().filter(is_known).cloned().collect();
        let history = History { grants, accesses, end: until, ..History::default() };
        for finding in judge(&history).findings {
            self.count(&finding, &history);
        }
        self.gaps.measure(self.grants.values(), until);
        self.worst_gap_ms = self.gaps.worst / 1_000_000;
        let horizon = now().saturating_sub(MEMORY);
        self.accesses = history.accesses;
        // A rejected access has no effect on later ones. Judged again when what made it stale is forgotten, it would
        // look like that of a holder.
        self.accesses.retain(|access| access.accepted && access.at > horizon);
        self.accesses.extend(later);
        let used: BTreeSet<&str> = self.accesses.iter().map(|access| &*access.grant).collect();
        self.grants.retain(|id, grant| belief_end(grant) > horizon || used.contains(&**id));
        self.rejected.retain(|(at, _)| *at > horizon);
    }

    /// Notes accesses of grants that no process has reported, when all processes have ended.
    pub(crate) fn find_unknown_accesses(&mut self) {
        let unknown = self.accesses.iter().find(|it| !self.grants.contains_key(&it.grant));
        if let Some(what) = unknown.map(|it| format!("an access of {}, an unknown grant", it.grant))
        {
            self.violation(what);
        }
    }

    fn count(&mut self, finding: &Finding, history: &History) {
        match finding {
            Finding::StaleRejected(index) => {
                let access = &history.accesses[*index];
                let is_new = self.rejected.insert((access.at, access.grant.clone()));
                if is_new && access.kind == Kind::Write {
                    self.stale_rejected += 1;
                    self.stale_attempted += 1;
                }
            }
            other => {
                if self.violations.insert(explain(other, history)) {
                    self.overlaps += u64::from(matches!(other, Finding::Overlap { .. }));
                    let is_stale = matches!(other, Finding::StaleAccepted(_));
                    self.stale_accepted += u64::from(is_stale);
                    self.stale_attempted += u64::from(is_stale);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Tally {
        let mut tally = Tally::new(Duration::from_secs(1), Duration::ZERO);
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

    fn write(grant: &str, at: Stamp) -> Access {
        let (grant, lock, kind) = (grant.to_owned(), "a".to_owned(), Kind::Write);
        Access { at, grant, lock, kind, token: Some(1), accepted: true }
    }

    #[test]
    fn an_access_is_judged_when_its_grant_is_known_and_must_be_known_at_the_end() {
        let mut tally = heard(&["held p1.0.1 a 1 10 1 900"]);
        let begin = now();
        tally.judge(vec![write("p1.0.1", begin), write("p2.0.1", begin + 1)], begin + 2);
        assert!(tally.is_sound(), "{:?}", tally.violations);
        tally.hear("held p2.0.1 a 902 1000 2 2000");
        tally.judge(Vec::new(), begin + 3);
        tally.find_unknown_accesses();
        assert!(tally.is_sound(), "{:?}", tally.violations);
        assert_eq!(tally.writes, 2);
        tally.judge(vec![write("p3.0.1", begin + 4)], begin + 5);
        tally.find_unknown_accesses();
        assert!(!tally.is_sound());
    }

    #[test]
    fn an_access_after_the_window_is_judged_with_its_grant_in_the_next_one() {
        let begin = now();
        let mut tally = heard(&["held p1.0.1 a 1 10 1 900"]);
        tally.hear(&format!("held p2.0.1 a {begin} {} 2 -", begin + 2));
        // The second grant is later than the window, and its read makes the first one's write stale.
        let read = Access { kind: Kind::Read, token: Some(2), ..write("p2.0.1", begin + 3) };
        let refused = Access { accepted: false, ..write("p1.0.1", begin + 4) };
        tally.judge(vec![read, refused], begin + 1);
        assert!(tally.is_sound(), "{:?}", tally.violations);
        tally.judge(Vec::new(), begin + 5);
        assert!(tally.is_sound(), "{:?}", tally.violations);
        assert_eq!(tally.stale_rejected, 1);
    }

    #[test]
    fn a_rejected_access_is_judged_once() {
        let begin = now();
        let mut tally = heard(&["held p1.0.1 a 1 10 1 20", "held p2.0.1 a 5 60 2 90"]);
        let newer = Access { token: Some(2), ..write("p2.0.1", begin) };
        let stale = Access { accepted: false, ..write("p1.0.1", begin + 1) };
        tally.judge(vec![newer, stale], begin + 2);
        assert_eq!((tally.stale_attempted, tally.stale_rejected), (1, 1));
        // What made it stale is forgotten.
        tally.accesses.retain(|access| access.at > begin);
        tally.judge(Vec::new(), begin + 3);
        assert!(tally.is_sound(), "{:?}", tally.violations);
    }

    #[test]
    fn rejected_reads_are_no_stale_writes() {
        let begin = now();
        let mut tally = heard(&["held p1.0.1 a 1 10 1 20", "held p2.0.1 a 5 60 2 90"]);
        let newer = Access { token: Some(2), ..write("p2.0.1", begin) };
        let read = Access { kind: Kind::Read, accepted: false, ..write("p1.0.1", begin + 1) };
        tally.judge(vec![newer, read], begin + 2);
        assert_eq!((tally.stale_attempted, tally.stale_rejected), (0, 0));
    }

    #[test]
    fn refused_acquires_of_a_free_lock_are_a_gap() {
        let second = 1_000_000_000;
        let mut tally = heard(&["held p1.0.1 a 1 10 1 -", "done p1.0.1 20"]);
        tally.hear(&format!("refused a 30 {second}"));
        tally.hear(&format!("refused a {} {}", 40 * second, 41 * second));
        tally.judge(Vec::new(), 50 * second);
        assert_eq!(tally.worst_gap_ms, 40_999);
        assert!(!tally.is_sound(), "{tally:?}");
    }

    #[test]
    fn a_soak_without_load_or_faults_is_void() {
        let time = Duration::from_secs(10);
        let mut tally = Tally { acquisitions: 49, ..Tally::default() };
        tally.fault("process killed");
        assert!(tally.void(time).is_some());
        tally.acquisitions = 50;
        assert_eq!(tally.void(time), None);
        assert!(Tally { acquisitions: 50, ..Tally::default() }.void(time).is_some());
    }

    #[test]
    fn a_renewed_lease_excludes_others_for_longer() {
        let mut tally =
            heard(&["held p1.0.1 a 1 10 1 50", "until p1.0.1 90", "held p2.0.1 a 5 60 2 -"]);
        tally.judge(Vec::new(), 100);
        assert_eq!(tally.overlaps, 1);
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
