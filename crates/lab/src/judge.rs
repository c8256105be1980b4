//! The verdict on a history.
//!
//! Three checks of safety: beliefs of two clients do not overlap; the fenced resource accepts no stale access,
//! while its unfenced twin, which accepts everything, shows the damage; and tokens rise with the order of the
//! acquires in real time. Two of progress: what had to happen within a bound did, and a release wakes one waiter.
//! Each check sorts once: O(n log n).

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::history::{Access, Grant, History, Kind, Stamp};

/// What an experiment showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// At most one client at a time believed that it held the lock, and nothing stale was written.
    Safe,
    /// Beliefs overlapped or a stale write was sent, and the resource rejected every stale write.
    Fenced,
    /// A stale write was accepted, tokens did not rise, a holder was refused, or clients were stuck.
    Broken,
    /// The experiment showed nothing: beliefs overlapped, and even the unfenced resource took no damage.
    Void,
}

/// Something that is wrong in a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Two clients believed that they held a lock at the same time.
    Overlap {
        /// The grant that came first.
        first: String,
        /// The grant that began before the first one ended.
        second: String,
        /// When the second one began.
        from: Stamp,
        /// When the first of the two ended.
        until: Stamp,
    },
    /// The resource accepted a stale write.
    StaleAccepted(usize),
    /// The resource rejected a stale access.
    StaleRejected(usize),
    /// The resource refused a write that was not stale.
    HolderRefused(usize),
    /// A later grant has a token that is not greater.
    TokenOrder {
        /// The grant that had returned before.
        before: String,
        /// The grant whose token is not greater.
        after: String,
    },
    /// Something that had to happen within a bound did not.
    Stuck(String),
    /// A release caused at least one request for each waiter.
    Herd {
        /// Claims that waited.
        waiters: u64,
        /// Requests that the release caused.
        requests: u64,
    },
}

/// A verdict with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Stale writes that the unfenced twin accepted.
    pub damage: u64,
}

/// The rules of the judge. Its tests break them one by one, and look whether a history shows it.
#[derive(Clone, Copy, Debug)]
struct Rules {
    belief_begins_when_acquire_returns: bool,
    deadline_ends_belief: bool,
    release_ends_belief: bool,
    loss_ends_belief: bool,
    locks_are_separate: bool,
    overlaps_beyond_the_next_grant: bool,
    stale_accesses: bool,
    rejected_accesses_have_no_effect: bool,
    reads_count: bool,
    running_maximum: bool,
    refused_holders: bool,
    token_order: bool,
    equal_tokens: bool,
    concurrent_acquires_are_unordered: bool,
    progress: bool,
    herd: bool,
    needs_damage: bool,
}

const RULES: Rules = Rules {
    belief_begins_when_acquire_returns: true,
    deadline_ends_belief: true,
    release_ends_belief: true,
    loss_ends_belief: true,
    locks_are_separate: true,
    overlaps_beyond_the_next_grant: true,
    stale_accesses: true,
    rejected_accesses_have_no_effect: true,
    reads_count: true,
    running_maximum: true,
    refused_holders: true,
    token_order: true,
    equal_tokens: true,
    concurrent_acquires_are_unordered: true,
    progress: true,
    herd: true,
    needs_damage: true,
};

/// Judges a history.
pub fn judge(history: &History) -> Judgement {
    RULES.judge(history)
}

/// When a client stopped believing that it holds the lock. Its own release, the end of its lease or the news
/// of a loss end it, whichever came first; without any of these, nothing does.
pub fn belief_end(grant: &Grant) -> Stamp {
    RULES.belief_end(grant)
}

impl Rules {
    fn judge(&self, history: &History) -> Judgement {
        let mut findings = Vec::new();
        for grants in self.by_lock(&history.grants, |grant| &grant.lock) {
            self.find_overlaps(&grants, &mut findings);
            self.check_tokens(&grants, &mut findings);
        }
        let overlaps = findings.iter().any(|one| matches!(one, Finding::Overlap { .. }));
        let held = history.grants.iter().map(|grant| (&*grant.id, grant.held)).collect();
        let mut damage = 0;
        let accesses: Vec<(usize, &Access)> = history.accesses.iter().enumerate().collect();
        for accesses in self.by_lock(accesses, |(_, access)| &access.lock) {
            damage += self.check_accesses(&accesses, &held, &mut findings);
        }
        self.check_progress(history, &mut findings);
        let is_broken = findings
            .iter()
            .any(|finding| !matches!(finding, Finding::Overlap { .. } | Finding::StaleRejected(_)));
        let verdict = match (is_broken, overlaps, findings.is_empty()) {
            (true, ..) => Verdict::Broken,
            (false, true, _) if self.needs_damage && damage == 0 => Verdict::Void,
            (false, _, false) => Verdict::Fenced,
            (false, _, true) => Verdict::Safe,
        };
        Judgement { verdict, findings, damage }
    }

    fn by_lock<T>(
        &self,
        all: impl IntoIterator<Item = T>,
        lock: impl Fn(&T) -> &String,
    ) -> Vec<Vec<T>> {
        let mut groups: BTreeMap<String, Vec<T>> = BTreeMap::new();
        for one in all {
            let name = if self.locks_are_separate { lock(&one).clone() } else { String::new() };
            groups.entry(name).or_default().push(one);
        }
        groups.into_values().collect()
    }

    fn belief_end(&self, grant: &Grant) -> Stamp {
        let ends = [
            grant.deadline.filter(|_| self.deadline_ends_belief),
            grant.released.filter(|_| self.release_ends_belief),
            grant.lost.filter(|_| self.loss_ends_belief),
        ];
        ends.into_iter().flatten().min().unwrap_or(Stamp::MAX)
    }

    fn find_overlaps(&self, grants: &[&Grant], findings: &mut Vec<Finding>) {
        let begin = |grant: &Grant| match self.belief_begins_when_acquire_returns {
            true => grant.held,
            false => grant.invoked,
        };
        let mut sorted: Vec<&Grant> = grants.to_vec();
        sorted.sort_by_key(|grant| begin(grant));
        // The grant with the latest end so far.
        let mut last: Option<&Grant> = None;
        for grant in sorted {
            let (from, end) = (begin(grant), self.belief_end(grant));
            if from >= end {
                continue;
            }
            if let Some(first) = last.filter(|first| self.belief_end(first) > from) {
                findings.push(Finding::Overlap {
                    first: first.id.clone(),
                    second: grant.id.clone(),
                    from,
                    until: end.min(self.belief_end(first)),
                });
            }
            let outlasts = last.is_none_or(|last| end > self.belief_end(last));
            if outlasts || !self.overlaps_beyond_the_next_grant {
                last = Some(grant);
            }
        }
    }

    /// Tokens rise in real time: an acquire that returned before another was invoked has the smaller one. No two
    /// grants have the same.
    fn check_tokens(&self, grants: &[&Grant], findings: &mut Vec<Finding>) {
        let with_tokens = || grants.iter().filter_map(|grant| Some((*grant, grant.token?)));
        let mut returned: Vec<(&Grant, u64)> = with_tokens().collect();
        returned.sort_by_key(|(grant, _)| grant.held);
        let mut invoked = returned.clone();
        invoked.sort_by_key(|(grant, _)| match self.concurrent_acquires_are_unordered {
            true => grant.invoked,
            false => grant.held,
        });
        let mut returned = returned.into_iter().peekable();
        let (mut greatest, mut seen): (Option<(&Grant, u64)>, HashMap<u64, &Grant>) =
            (None, HashMap::new());
        for (grant, token) in invoked {
            let start = match self.concurrent_acquires_are_unordered {
                true => grant.invoked,
                false => grant.held,
            };
            while let Some(before) = returned.next_if(|(before, _)| before.held < start) {
                if greatest.is_none_or(|(_, most)| before.1 >= most) {
                    greatest = Some(before);
                }
            }
            let beaten = greatest.filter(|(_, most)| *most >= token && self.token_order);
            let same = seen.insert(token, grant).filter(|_| self.equal_tokens);
            if let Some(before) = beaten.map(|(before, _)| before).or(same) {
                let (before, after) = (before.id.clone(), grant.id.clone());
                findings.push(Finding::TokenOrder { before, after });
            }
        }
    }

    /// An access is stale if a grant that returned later has accessed the resource before, with effect. Returns
    /// how many writes were stale for the unfenced twin, on which every access has an effect.
    fn check_accesses(
        &self,
        accesses: &[(usize, &Access)],
        held: &HashMap<&str, Stamp>,
        findings: &mut Vec<Finding>,
    ) -> u64 {
        let (mut damage, mut greatest) = (0, 0);
        // When the latest grant that had an effect returned.
        let (mut fenced, mut twin): (Stamp, Stamp) = (0, 0);
        for &(index, access) in accesses {
            let held = held.get(&*access.grant).copied().unwrap_or(0);
            let is_write = access.kind == Kind::Write;
            let is_stale = held < fenced;
            damage += u64::from(is_write && held < twin);
            let below = access.token.is_some_and(|token| token < greatest);
            if access.accepted {
                greatest = greatest.max(access.token.unwrap_or(0));
            }
            match access.accepted {
                true if is_stale && is_write && self.stale_accesses => {
                    findings.push(Finding::StaleAccepted(index));
                }
                true if below && self.running_maximum => {
                    findings.push(Finding::StaleAccepted(index));
                }
                false if is_stale => findings.push(Finding::StaleRejected(index)),
                false if self.refused_holders => findings.push(Finding::HolderRefused(index)),
                _ => {}
            }
            if self.reads_count || is_write {
                twin = twin.max(held);
                if access.accepted || !self.rejected_accesses_have_no_effect {
                    fenced = fenced.max(held);
                }
            }
        }
        damage
    }

    fn check_progress(&self, history: &History, findings: &mut Vec<Finding>) {
        if self.progress {
            let unmet = history.expectations.iter().filter(|expected| !expected.met);
            findings.extend(unmet.map(|expected| Finding::Stuck(expected.what.clone())));
        }
        if let Some(wakeups) = history.wakeups
            && wakeups.requests >= wakeups.waiters
            && self.herd
        {
            let (waiters, requests) = (wakeups.waiters, wakeups.requests);
            findings.push(Finding::Herd { waiters, requests });
        }
    }
}

#[cfg(test)]
mod tests;
