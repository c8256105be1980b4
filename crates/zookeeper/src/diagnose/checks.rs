//! What the facts mean for locks.

use std::time::Duration;

use tenure_core::{Finding, Options};

use super::facts::Facts;
use crate::four_letter_words::Answer;
use crate::names::Limits;
use crate::session::GRACE;

pub(crate) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![quorum(facts)];
    findings.extend(words(facts));
    findings.extend(versions(facts));
    findings.extend(terms(facts));
    findings.push(access(facts));
    findings.extend(numbers(facts));
    findings
}

fn quorum(facts: &Facts) -> Finding {
    let servers = &facts.servers;
    let silent: Vec<_> = servers
        .iter()
        .filter_map(|(name, answer)| answer.fault().map(|why| format!("{name} ({why})")))
        .collect();
    if !silent.is_empty() {
        let what = format!("{} does not serve: fewer failures are survived", silent.join(", "));
        return Finding::advice(what, "see whether it runs, and whether this machine reaches it");
    }
    let Some(voters) = facts.voters else {
        return Finding::advice(
            "the number of servers could not be checked",
            "let the user read /zookeeper/config, or look there by hand",
        );
    };
    if voters < 3 {
        let what = match voters {
            1 => "one server is alone: its loss stops all locks".into(),
            _ => format!("{voters} servers vote: the loss of one stops all locks"),
        };
        return Finding::advice(what, "run three servers or five");
    }
    if servers.len() < voters {
        let (named, what) = (servers.len(), "the others are not asked when these fail");
        let what = format!("the store's URL names {named} of {voters} servers: {what}");
        return Finding::advice(what, "name all servers in the URL");
    }
    let leads = |answer: &Answer| matches!(answer, Answer::Serves { mode, .. } if mode == "leader");
    let leaders = servers.iter().filter(|(_, answer)| leads(answer)).count();
    let known = servers.iter().all(|(_, answer)| matches!(answer, Answer::Serves { .. }));
    if known && servers.len() == voters && leaders != 1 {
        let what = format!("{leaders} of the servers say that they lead");
        return Finding::advice(what, "they may be electing one: look again");
    }
    let spare = (voters - 1) / 2;
    Finding::fine(match known {
        true => format!("all of {voters} servers serve: {spare} may fail"),
        false => format!("{voters} servers vote: {spare} may fail"),
    })
}

fn words(facts: &Facts) -> Option<Finding> {
    let mute = facts.servers.iter().any(|(_, answer)| *answer == Answer::Mute);
    let what = match (mute, facts.settings) {
        (true, _) => {
            "four-letter words are off: the state and the settings of the servers could not be checked"
        }
        (false, None) => "the four-letter word conf is off: how the servers are set is not known",
        (false, Some(_)) => return None,
    };
    Some(Finding::advice(what, "4lw.commands.whitelist=srvr,conf in zoo.cfg"))
}

fn versions(facts: &Facts) -> Vec<Finding> {
    let version = |(_, answer): &(String, Answer)| match answer {
        Answer::Serves { version, .. } => Some(version.clone()),
        _ => None,
    };
    let mut told: Vec<String> = facts.servers.iter().filter_map(version).collect();
    told.sort_unstable();
    told.dedup();
    let alone = facts.voters == Some(1);
    told.iter().map(|version| of_version(version, alone)).collect()
}

fn of_version(version: &str, alone: bool) -> Finding {
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    let [major, minor, ..] = numbers[..] else {
        let what = format!("the version {version:?} is not known");
        return Finding::advice(what, "use a release of ZooKeeper, 3.5 or later");
    };
    match (major, minor) {
        (..3, _) | (3, ..5) => Finding::danger(
            format!("ZooKeeper {version} is too old: tenure needs 3.5"),
            "upgrade to the current release",
        ),
        (3, ..8) => Finding::advice(
            format!("ZooKeeper {version} is not maintained any more"),
            "upgrade to the current release",
        ),
        // ZOOKEEPER-4785 and 4712. The notes of 3.8.4 do not name them.
        (3, 8 | 9) if !alone && matches!(numbers[1..], [8, ..=4, ..] | [9, ..=2, ..]) => {
            let what = format!(
                "ZooKeeper {version} has known faults in which servers come to differ after a crash: a \
                 lock may be stuck, or have two holders"
            );
            Finding::advice(what, "upgrade to 3.9.3 or later; send tokens")
        }
        _ => Finding::fine(format!("ZooKeeper {version} is recent enough")),
    }
}

fn terms(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let longest = facts.settings.map_or(facts.life, |settings| settings.longest);
    let longest = longest.saturating_sub(GRACE);
    let default = Duration::from_secs(30);
    if longest < default {
        let what = format!(
            "a TTL above {longest:?} is refused, and the default is {longest:?} instead of 30s"
        );
        findings.push(Finding::advice(what, "raise maxSessionTimeout, or use a shorter TTL"));
    } else if facts.settings.is_some() {
        let longest = longest.min(Options::MAX_TTL);
        findings.push(Finding::fine(format!("a TTL may be as long as {longest:?}")));
    } else {
        findings.push(Finding::fine("a TTL of 30s, the default, is within the servers' limits"));
    }
    if facts.uneven {
        let what = "the servers differ in maxSessionTimeout: a session that comes to one that allows \
                    less may end before its holder gives up, and the lock is granted again";
        findings.push(Finding::danger(what, "set the same maxSessionTimeout on all servers"));
    }
    let Some(settings) = facts.settings else { return findings };
    if settings.shortest > Duration::from_secs(10) {
        let what = format!(
            "a lock of a dead holder is free after {:?} at the earliest, whatever its TTL",
            settings.shortest
        );
        findings.push(Finding::advice(what, "lower minSessionTimeout"));
    }
    if settings.tick > GRACE {
        let what = format!(
            "a tick of {:?} is long: if a server dies, the leader may end a session that it has \
             not heard of for so long, before its holder gives up",
            settings.tick
        );
        findings.push(Finding::advice(what, "lower tickTime to 2000 or less"));
    }
    findings
}

fn access(facts: &Facts) -> Finding {
    match (facts.open, facts.logs_in, facts.encrypted) {
        (Some(true), ..) => Finding::advice(
            "the nodes are open to the world: every client that reaches ZooKeeper can delete every lock",
            "name a user in the URL, and set the prefix node's rights with `setAcl`",
        ),
        (_, false, _) => Finding::advice(
            "no user logs in: locks will be open to every client that reaches ZooKeeper",
            "name a user in the URL: zk://user:password@host",
        ),
        (_, true, false) => {
            Finding::advice("the password and locks travel without encryption", "use zks://")
        }
        (_, true, true) => Finding::fine("users log in, over TLS"),
    }
}

fn numbers(facts: &Facts) -> Option<Finding> {
    let (lock, given) = facts.numbers.as_ref()?;
    let limit = i64::from(Limits::default().last);
    let share = given.saturating_mul(100) / limit;
    let remedy = "when no claim holds or waits, delete the lock's node: numbers begin anew";
    Some(if *given >= limit {
        let what = format!("the numbers of {lock:?} are used up: it cannot be taken");
        Finding::danger(what, remedy)
    } else if share >= 50 {
        let what =
            format!("the numbers of {lock:?} are used up to {share} %: at the end it is refused");
        Finding::advice(what, remedy)
    } else {
        Finding::fine("no lock comes near the end of its numbers")
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::Settings;
    use super::*;
    use tenure_core::Severity;

    fn facts(version: &str, servers: usize) -> Facts {
        let mode = |number| if number == 0 { "leader" } else { "follower" };
        let serves = |number| Answer::Serves { version: version.into(), mode: mode(number).into() };
        let seconds = Duration::from_secs;
        Facts {
            servers: (0..servers).map(|number| (format!("h{number}"), serves(number))).collect(),
            voters: Some(servers),
            life: seconds(32),
            settings: Some(Settings {
                tick: seconds(2),
                shortest: seconds(4),
                longest: seconds(40),
            }),
            uneven: false,
            open: Some(false),
            logs_in: true,
            encrypted: true,
            numbers: Some(("a".into(), 17)),
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
    fn a_sound_ensemble_is_fine() {
        assert_eq!(worst(&facts("3.8.6", 3)).0, Severity::Fine);
        assert_eq!(worst(&facts("3.9.3", 5)).0, Severity::Fine);
    }

    #[test]
    fn each_weakness_is_named() {
        let with = |change: fn(&mut Facts)| {
            let mut facts = facts("3.9.3", 3);
            change(&mut facts);
            facts
        };
        for (facts, word) in [
            (facts("3.9.3", 1), "its loss stops"),
            (facts("3.9.3", 2), "2 servers vote"),
            (with(|it| it.servers[1].1 = Answer::Silence("refused".into())), "h1 (refused)"),
            (with(|it| it.servers[1].1 = Answer::Idle), "no quorum"),
            (with(|it| it.servers[1].1 = Answer::Stuck), "h1 (it takes connections"),
            (with(|it| it.servers[1].1 = Answer::HangsUp), "h1 (it hangs up)"),
            (with(|it| drop(it.servers.pop())), "names 2 of 3"),
            (with(|it| it.voters = None), "number of servers"),
            (with(|it| it.servers[0] = it.servers[1].clone()), "0 of the servers say"),
            (with(|it| it.servers[0].1 = Answer::Mute), "four-letter words"),
            (with(|it| it.servers[1].1 = Answer::Distrust("expired".into())), "h1 (expired)"),
            (with(|it| it.settings = None), "word conf is off"),
            (with(|it| it.settings.as_mut().unwrap().longest = GRACE * 5), "above 8s"),
            (with(|it| it.settings.as_mut().unwrap().shortest = GRACE * 10), "after 20s"),
            (with(|it| it.settings.as_mut().unwrap().tick = GRACE * 2), "a tick of 4s"),
            (with(|it| it.open = Some(true)), "open to the world"),
            (with(|it| it.logs_in = false), "no user logs in"),
            (with(|it| it.encrypted = false), "without encryption"),
            (with(|it| it.numbers = Some(("b".into(), 1 << 30))), "\"b\" are used up to 50 %"),
            (facts("3.6.3", 3), "not maintained"),
            (facts("nightly", 3), "not known"),
            (facts("3.8.0", 3), "come to differ"),
            (facts("3.9.2", 3), "come to differ"),
        ] {
            let (severity, what) = worst(&facts);
            assert_eq!(severity, Severity::Advice, "{what}");
            assert!(what.contains(word), "{word}: {what}");
        }
    }

    #[test]
    fn servers_that_report_nothing_are_not_reported_as_serving() {
        let mut facts = facts("3.9.3", 3);
        facts.servers[1].1 = Answer::Mute;
        let findings = of(&facts);
        assert!(findings.iter().any(|one| one.what == "3 servers vote: 1 may fail"));
        assert!(findings.iter().all(|one| !one.what.contains("all of 3")), "{findings:?}");
    }

    #[test]
    fn faults_that_lose_locks_are_unsafe() {
        let mut used_up = facts("3.9.3", 3);
        used_up.numbers = Some(("b".into(), i64::from(i32::MAX)));
        let mut uneven = facts("3.9.3", 3);
        uneven.uneven = true;
        let old = facts("3.4.14", 3);
        for (facts, word) in [(used_up, "cannot be taken"), (old, "too old"), (uneven, "differ in")]
        {
            let (severity, what) = worst(&facts);
            assert_eq!(severity, Severity::Unsafe, "{what}");
            assert!(what.contains(word), "{word}: {what}");
        }
    }
}
