//! What the facts mean for locks.

use std::time::Duration;

use tenure_core::Finding;

use super::facts::{Answer, Facts};
use crate::rpc::AlarmType;

pub(crate) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![quorum(facts), leader(facts), alarms(facts)];
    findings.extend(versions(facts));
    findings.push(access(facts));
    findings.extend(facts.shortest_lease.map(shortest_term));
    findings
}

fn quorum(facts: &Facts) -> Finding {
    let known = &facts.known;
    let silent: Vec<_> = known
        .iter()
        .filter_map(|(name, answer)| match answer {
            Answer::Silence(why) => Some(format!("{name} ({why})")),
            Answer::Status { .. } => None,
        })
        .collect();
    if !silent.is_empty() {
        let what = format!("{} does not answer: fewer failures are survived", silent.join(", "));
        return Finding::advice(what, "see whether it runs, and whether this machine reaches it");
    }
    let Some((members, voters)) = facts.members else {
        return Finding::advice(
            "the number of members could not be checked",
            "look with `etcdctl member list`, as root",
        );
    };
    if voters < 3 {
        let what = format!("{voters} of {members} members vote: the loss of one stops all locks");
        return Finding::advice(what, "run three members or five");
    }
    if known.len() < members {
        let (named, what) = (known.len(), "no client can connect when these fail");
        let what = format!("the store's URL names {named} of {members} members: {what}");
        return Finding::advice(what, "name all members in the URL");
    }
    let spare = (voters - 1) / 2;
    Finding::fine(format!("all {members} members answer: the loss of {spare} is survived"))
}

fn leader(facts: &Facts) -> Finding {
    let mut leaders: Vec<u64> = facts
        .known
        .iter()
        .filter_map(|(_, answer)| match answer {
            Answer::Status { leader, .. } => Some(*leader),
            Answer::Silence(_) => None,
        })
        .collect();
    leaders.sort_unstable();
    leaders.dedup();
    match leaders[..] {
        [leader] if leader != 0 => Finding::fine("the members agree on a leader"),
        _ => Finding::advice(
            "the members do not agree on a leader: locks wait for an election",
            "look again; if it stays so, see whether the members reach each other",
        ),
    }
}

fn alarms(facts: &Facts) -> Finding {
    let Some(alarms) = &facts.alarms else {
        return Finding::advice(
            "alarms could not be checked: only root may list them",
            "look with `etcdctl alarm list`, as root",
        );
    };
    if alarms.contains(&AlarmType::Corrupt) {
        return Finding::danger(
            "a member's data is corrupt: members may disagree on which claim holds a lock",
            "replace the corrupt member (`etcdctl alarm list` names it)",
        );
    }
    if alarms.contains(&AlarmType::Nospace) {
        return Finding::danger(
            "etcd is out of space (alarm NOSPACE): no lock can be taken",
            "`etcdctl compact`, `etcdctl defrag`, then `etcdctl alarm disarm`",
        );
    }
    Finding::fine("no alarm is on")
}

/// A release line, and the first of its releases without a fault.
type Fixed = &'static [(u32, u32, u32)];

/// A former leader revokes leases that its successor keeps alive (etcd issue 15247).
const LEASES_KEPT: Fixed = &[(3, 4, 31), (3, 5, 13)];
/// Users get around the rights of their roles (CVE-2026-33343, CVE-2026-44283, and earlier ones).
const RIGHTS_KEPT: Fixed = &[(3, 4, 44), (3, 5, 30), (3, 6, 11)];

fn versions(facts: &Facts) -> Vec<Finding> {
    let mut told: Vec<&str> = facts
        .known
        .iter()
        .filter_map(|(_, answer)| match answer {
            Answer::Status { version, .. } => Some(version.as_str()),
            Answer::Silence(_) => None,
        })
        .collect();
    told.sort_unstable();
    told.dedup();
    told.into_iter().flat_map(|version| of_version(version, facts)).collect()
}

fn of_version(version: &str, facts: &Facts) -> Vec<Finding> {
    let Some(number) = parse(version) else {
        let what = format!("the version {version:?} is not known");
        return vec![Finding::advice(what, "use a release of etcd, 3.4 or later")];
    };
    if number < (3, 4, 0) {
        let what = format!("etcd {version} is too old: tenure needs 3.4");
        return vec![Finding::danger(what, "upgrade to the current release")];
    }
    let mut findings = Vec::new();
    if ((3, 5, 0)..(3, 5, 3)).contains(&number) {
        let what = format!("etcd {version} can lose data when it crashes: locks are lost with it");
        findings.push(Finding::danger(what, "upgrade to the current release of 3.5"));
    }
    if lacks(number, LEASES_KEPT) && facts.members.is_none_or(|(_, voters)| voters > 1) {
        let what = format!(
            "etcd {version}: a leader that was stuck for longer than a lease, on a slow disk or CPU, \
             ends leases that its successor keeps alive: two claims hold until the first one learns of it"
        );
        findings.push(Finding::danger(what, "upgrade to 3.4.31, 3.5.13 or later; send tokens"));
    }
    if lacks(number, RIGHTS_KEPT) && facts.guarded {
        let what = format!(
            "etcd {version} has known holes in its access control: a user may read or lock what \
             its roles do not allow"
        );
        findings.push(Finding::advice(what, "upgrade to 3.4.44, 3.5.30, 3.6.11 or later"));
    }
    if findings.is_empty() {
        findings.push(Finding::fine(format!("etcd {version} has no fault known to matter here")));
    }
    findings
}

fn lacks(number: (u32, u32, u32), fixed: Fixed) -> bool {
    let line = fixed.iter().find(|(major, minor, _)| (*major, *minor) == (number.0, number.1));
    line.is_some_and(|fixed| number < *fixed)
}

fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let plain = version.split(['-', '+']).next()?;
    let numbers: Vec<u32> =
        plain.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [major, minor, patch] => Some((major, minor, patch)),
        _ => None,
    }
}

fn access(facts: &Facts) -> Finding {
    match (facts.guarded, facts.encrypted) {
        (false, _) => Finding::advice(
            "no user has to log in: every client that reaches etcd can take and delete every lock",
            "make users and roles, then `etcdctl auth enable`",
        ),
        (true, false) => {
            Finding::advice("passwords and locks travel without encryption", "use TLS (etcds://)")
        }
        (true, true) => Finding::fine("users log in, over TLS"),
    }
}

fn shortest_term(shortest: Duration) -> Finding {
    if shortest > Duration::from_secs(5) {
        let what = format!(
            "a lock of a dead holder is free after {shortest:?} at the earliest, whatever its TTL: \
             etcd grants no lease shorter than its election timeout allows"
        );
        return Finding::advice(what, "lower --election-timeout where the network is quick");
    }
    Finding::fine(format!("a TTL may be as short as {shortest:?}; a shorter one ends no sooner"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Severity;

    fn facts(version: &str, members: usize) -> Facts {
        let status = |id| Answer::Status { version: version.into(), id, leader: 1 };
        let known = (1..=members as u64).map(|id| (format!("m{id}"), status(id))).collect();
        Facts {
            known,
            members: Some((members, members)),
            alarms: Some(Vec::new()),
            guarded: true,
            encrypted: true,
            shortest_lease: Some(Duration::from_secs(2)),
        }
    }

    /// The highest severity that is found, and the texts of the findings that have it.
    fn worst(facts: &Facts) -> (Severity, String) {
        let findings = of(facts);
        let worst = findings.iter().map(|finding| finding.severity).max().unwrap();
        let texts = findings.into_iter().filter(|finding| finding.severity == worst);
        (worst, texts.map(|finding| finding.what).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn a_sound_cluster_is_fine() {
        assert_eq!(worst(&facts("3.6.11", 3)).0, Severity::Fine);
        assert_eq!(worst(&facts("3.7.1", 5)).0, Severity::Fine);
    }

    #[test]
    fn each_weakness_is_named() {
        let sound = || facts("3.6.11", 3);
        let mut silent = sound();
        silent.known[1].1 = Answer::Silence("refused".into());
        let mut split = sound();
        split.known[1].1 = Answer::Status { version: "3.6.11".into(), id: 2, leader: 0 };
        let mut unnamed = sound();
        unnamed.known.pop();
        let [mut open, mut plain, mut slow, mut hidden, mut uncounted] = [(); 5].map(|()| sound());
        uncounted.members = None;
        open.guarded = false;
        plain.encrypted = false;
        slow.shortest_lease = Some(Duration::from_secs(30));
        hidden.alarms = None;
        for (facts, word) in [
            (facts("3.6.11", 1), "the loss of one"),
            (silent, "m2 (refused)"),
            (split, "agree"),
            (unnamed, "names 2 of 3"),
            (open, "log in"),
            (plain, "encryption"),
            (slow, "30s"),
            (hidden, "only root may"),
            (uncounted, "number of members"),
            (facts("3.5.29", 3), "holes"),
            (facts("nightly", 3), "not known"),
        ] {
            let (severity, what) = worst(&facts);
            assert_eq!(severity, Severity::Advice, "{what}");
            assert!(what.contains(word), "{word}: {what}");
        }
    }

    #[test]
    fn faults_that_lose_locks_are_unsafe() {
        let [mut full, mut corrupt] = [(); 2].map(|()| facts("3.6.11", 3));
        full.alarms = Some(vec![AlarmType::Nospace]);
        corrupt.alarms = Some(vec![AlarmType::Nospace, AlarmType::Corrupt]);
        for (facts, word) in [
            (full, "NOSPACE"),
            (corrupt, "corrupt"),
            (facts("3.5.12", 3), "stuck"),
            (facts("3.5.2", 3), "lose data"),
            (facts("3.3.27", 3), "too old"),
        ] {
            let (severity, what) = worst(&facts);
            assert_eq!(severity, Severity::Unsafe, "{what}");
            assert!(what.contains(word), "{word}: {what}");
        }
    }
}
