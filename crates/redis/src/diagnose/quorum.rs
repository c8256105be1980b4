//! Checks the servers of a quorum, each alone and all together.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::store::{Store, self_test};
use tenure_core::{Error, ErrorKind, Finding, Result, Severity};

use super::facts::{self, Facts};
use super::{SILENCE, checks, probes, summary, versions as version};
use crate::config::RedisConfig;
use crate::link::Link;

/// All findings about the servers behind these links. `longest` is the longest TTL.
pub(crate) async fn diagnose(
    store: &dyn Store,
    nodes: &[(&str, &Link, &RedisConfig)],
    longest: Duration,
) -> Result<Vec<Finding>> {
    let collections = nodes.iter().map(|(name, link, _)| async move {
        // A server that refuses the login must not pass for one that refuses only INFO and CONFIG.
        link.connection().await?;
        facts::collect(link, (*name).to_owned()).await
    });
    let (mut servers, mut findings, mut reachable) = (Vec::new(), Vec::new(), Vec::new());
    for (collected, node) in
        futures_util::future::join_all(collections).await.into_iter().zip(nodes)
    {
        match collected {
            Ok(facts) => {
                servers.push(facts);
                reachable.push(node);
            }
            Err(error) => findings.push(unreachable(node.0, &error)),
        }
    }
    findings.insert(0, size(nodes.len(), servers.len()));
    findings.extend(summary(&servers, checks::of_node));
    findings.extend(clocks(&servers, longest));
    findings.extend(versions(&servers));
    let mut able = true;
    for (name, link, config) in reachable {
        let mut missing = match probes::missing(config, link, false, None).await {
            Ok(missing) => missing,
            Err(error) => vec![unreachable(name, &error)],
        };
        missing.retain(|finding| finding.severity != Severity::Fine);
        able &= missing.iter().all(|finding| finding.severity != Severity::Unsafe);
        for finding in missing.iter_mut().filter(|finding| !finding.what.starts_with(name)) {
            finding.what = format!("{name}: {}", finding.what);
        }
        findings.extend(missing);
    }
    if able {
        let timeout = nodes.iter().map(|(_, _, config)| config.timeout).max();
        findings.push(self_test(store, timeout.unwrap_or_default(), SILENCE).await);
    }
    Ok(findings)
}

/// A server that does not answer, or refuses the login.
fn unreachable(name: &str, error: &Error) -> Finding {
    let remedy = match error.kind() {
        ErrorKind::Denied => "give it the users, passwords and certificates of the others",
        _ => "start it if it is down; check the network between it and this machine",
    };
    Finding::advice(format!("{name} could not be checked: {error}"), remedy)
}

/// How many of the servers answer, and how many more may fail.
fn size(nodes: usize, reachable: usize) -> Finding {
    let may_fail = (nodes - 1) / 2;
    match (nodes - reachable).cmp(&may_fail) {
        _ if reachable == nodes => Finding::fine(format!(
            "{nodes} different servers, of which {may_fail} of {nodes} may fail"
        )),
        std::cmp::Ordering::Less => Finding::advice(
            format!("{reachable} of {nodes} servers answer, and {may_fail} of {nodes} may fail"),
            "restart the others",
        ),
        std::cmp::Ordering::Equal => Finding::advice(
            format!(
                "only {reachable} of {nodes} servers answer: if one more fails, no lock can be acquired"
            ),
            "restart the others before another fails",
        ),
        std::cmp::Ordering::Greater => Finding::danger(
            format!("only {reachable} of {nodes} servers answer: no lock can be acquired"),
            "restart the others",
        ),
    }
}

/// Whether a restart of this server loses locks.
pub(super) fn persistence(facts: &Facts) -> Option<Finding> {
    let alone = checks::persistence(facts)?;
    Some(match alone.severity {
        Severity::Fine => alone,
        _ if checks::keeps_a_log(facts) == Some(true) => Finding::fine(
            "a crash loses no lock (appendonly yes), a power cut may; after every restart, clients \
             leave the server out until the longest TTL has passed",
        ),
        _ => Finding::advice(
            "a restart loses its locks and its counter: clients then leave the server out until the \
             longest TTL has passed, and tokens continue from its clock; if most servers restart \
             at the same time, a lock that is held can be granted again",
            "CONFIG SET appendonly yes and appendfsync always, in redis.conf too, on a majority \
             of the servers; or never restart them together, and check the fencing token",
        ),
    })
}

/// Whether the server is a master, and what a promotion of one of its replicas means.
pub(super) fn replication(facts: &Facts) -> Option<Finding> {
    if facts.info("role")? != "master" {
        return Some(Finding::danger(
            "this server is a replica: it grants no locks, and counts as a failed server",
            "name an independent master; a replica of a server of this quorum would fail with it",
        ));
    }
    (facts.number("connected_slaves")? > 0).then(|| {
        Finding::fine(
            "its replicas may lack the latest locks: if one is promoted, clients leave it out until \
             the longest TTL has passed",
        )
    })
}

/// Each server ends its holds by its own clock, which is also the lower bound of its tokens.
fn clocks(servers: &[Facts], longest: Duration) -> Option<Finding> {
    let (first, last, apart) = checks::furthest_apart(servers)?;
    let words = format!("the clocks of {first} and {last} are {apart} ms apart");
    let remedy = "keep all servers in time with NTP, which slews";
    Some(match u128::from(apart.unsigned_abs()) >= longest.as_millis() {
        true => Finding::danger(
            format!(
                "{words}, more than the longest TTL: a server that restarts may repeat a token"
            ),
            remedy,
        ),
        false => Finding::advice(
            format!("{words}: if one is corrected in one step, holds end early or late by as much"),
            remedy,
        ),
    })
}

fn versions(servers: &[Facts]) -> Option<Finding> {
    let versions: BTreeSet<String> =
        servers.iter().filter_map(version::product).map(|(shown, ..)| shown).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    (versions.len() > 1).then(|| {
        Finding::fine(format!(
            "the servers' versions differ ({}), which is fine",
            versions.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::facts::Clock;
    use tenure_core::Severity::{Advice, Fine, Unsafe};

    #[test]
    fn a_quorum_is_judged_by_how_many_more_servers_may_fail() {
        let severities = [5, 4, 3, 2].map(|there| size(5, there).severity);
        assert_eq!(severities, [Fine, Advice, Advice, Unsafe]);
    }

    #[test]
    fn clocks_apart_by_more_than_the_longest_ttl_are_unsafe() {
        let server = |name, ahead| {
            let mut facts = Facts::new(name, "", &[]);
            facts.clock = Some(Clock { ahead, margin: 1 });
            facts
        };
        let severity = |ahead| {
            let servers = [server("a", 0), server("b", ahead), server("c", 1)];
            clocks(&servers, Duration::from_secs(60)).map(|finding| finding.severity)
        };
        assert_eq!(severity(3), None);
        assert_eq!(severity(31_000), Some(Advice));
        assert_eq!(severity(-61_000), Some(Unsafe));
    }

    #[test]
    fn a_server_without_persistence_is_advice_in_a_quorum() {
        let node = |log, sync| {
            Facts::new("a", "", &[("appendonly", log), ("appendfsync", sync), ("save", "")])
        };
        let severity = |log, sync| persistence(&node(log, sync)).unwrap().severity;
        assert_eq!(severity("no", "everysec"), Advice);
        assert_eq!(severity("yes", "everysec"), Fine);
        assert_eq!(severity("yes", "always"), Fine);
        let hidden = Facts::new("a", "aof_enabled:1\r\n", &[]);
        assert_eq!(persistence(&hidden).unwrap().severity, Fine, "also if CONFIG is not allowed");
    }

    #[test]
    fn a_replica_as_a_member_is_unsafe_and_a_member_with_replicas_is_fine() {
        let severity = |info: &str| replication(&Facts::new("a", info, &[])).map(|it| it.severity);
        assert_eq!(severity("role:slave\r\n"), Some(Unsafe));
        assert_eq!(severity("role:master\r\nconnected_slaves:1\r\n"), Some(Fine));
        assert_eq!(severity("role:master\r\nconnected_slaves:0\r\n"), None);
    }

    #[test]
    fn different_versions_are_named() {
        let server = |version: &str| Facts::new("a", &format!("redis_version:{version}\r\n"), &[]);
        assert!(versions(&[server("7.0.15"), server("7.0.15")]).is_none());
        let found = versions(&[server("7.0.15"), server("8.2.0")]).unwrap();
        assert!(found.what.contains("Redis 7.0.15, Redis 8.2.0"));
        let valkey = |version: &str| {
            // The version of Redis that it is compatible with, whatever its own.
            let info = format!("redis_version:7.2.4\r\nvalkey_version:{version}\r\n");
            Facts::new("a", &info, &[])
        };
        let found = versions(&[valkey("8.1.7"), valkey("9.0.4")]).unwrap();
        assert!(found.what.contains("Valkey 8.1.7, Valkey 9.0.4"));
    }
}
