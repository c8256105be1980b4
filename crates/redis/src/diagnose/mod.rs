//! Checks whether servers are fit for locks.
//!
//! The facts that servers report are collected first ([`facts`]); each check is then a pure function over
//! them ([`checks`], [`versions`], [`nodes`]). The user's rights, and whether messages arrive, are tested
//! with a lock that no other client uses ([`probes`], [`self_test`]).

mod checks;
mod facts;
mod nodes;
mod probes;
mod quorum;
mod versions;

use tenure_core::store::{Store, self_test, self_test_on};
use tenure_core::{Finding, LockName, OwnerId, Result, Severity};

use crate::config::{RedisConfig, Topology};
use crate::link::Link;
use crate::redisson::keys_and_channels;
use crate::wire::cmd;
use facts::Facts;
use nodes::Node;
pub(crate) use quorum::diagnose as diagnose_quorum;

/// The most servers that are checked one by one.
const MOST_NODES: usize = 64;
/// The remedy if the message of a hand-off does not arrive.
const SILENCE: &str = "see that no proxy drops SUBSCRIBE and PUBLISH";

/// All findings about the servers behind these links: the one server, or the masters of a Cluster. `redisson` is
/// the prefix of locks in the layout of Redisson, if the store has those.
pub(crate) async fn diagnose(
    store: &dyn Store,
    config: &RedisConfig,
    links: &[Link],
    redisson: Option<&str>,
) -> Result<Vec<Finding>> {
    let Some(link) = links.first() else { return Ok(Vec::new()) };
    let (servers, mut findings) = match &config.topology {
        Topology::Single { .. } | Topology::Unix { .. } => {
            (vec![facts::collect(link, config.topology.servers()).await?], Vec::new())
        }
        Topology::Sentinel { .. } => sentinel(config, link).await?,
        Topology::Cluster { nodes } => cluster(config, nodes).await?,
    };
    let cluster = matches!(config.topology, Topology::Cluster { .. });
    findings.extend(summary(&servers, |facts| checks::of(facts, &config.topology)));
    findings.extend(checks::clocks_apart(&servers));
    let mut missing = Vec::new();
    for link in links.iter().take(MOST_NODES) {
        let found = probes::missing(config, link, cluster, redisson).await?;
        missing.extend(found.into_iter().map(|mut finding| {
            if cluster && finding.severity != Severity::Fine {
                finding.what = format!("{}: {}", link.name(), finding.what);
            }
            finding
        }));
    }
    // A right that all servers grant is reported once.
    let fine = missing.iter().all(|finding| finding.severity == Severity::Fine);
    missing.retain(|finding| fine || finding.severity != Severity::Fine);
    missing.dedup();
    // Without the rights, a self-test would only report the same again.
    if missing.iter().all(|finding| finding.severity != Severity::Unsafe) {
        findings.push(match redisson {
            Some(prefix) => self_test_in_redissons_layout(store, config, links, prefix).await?,
            None => self_test(store, config.timeout, SILENCE).await,
        });
    }
    findings.extend(missing);
    Ok(findings)
}

/// Takes the self-test lock's keys away afterwards: in this layout, the token of a lock has no expiry.
async fn self_test_in_redissons_layout(
    store: &dyn Store,
    config: &RedisConfig,
    links: &[Link],
    prefix: &str,
) -> Result<Finding> {
    let name = LockName::new(&format!("tenure-doctor-{}", OwnerId::random()))?;
    let finding = self_test_on(store, &name, config.timeout, SILENCE).await;
    let (keys, _) = keys_and_channels(prefix, &name);
    let delete = cmd("DEL").args(&keys);
    // Of the masters of a Cluster, all but the one that has them refuse.
    for link in links {
        let _ = link.call("remove a self-test lock", [&delete]).await;
    }
    Ok(finding)
}

/// The facts of the master and of the replicas that it reports.
async fn sentinel(config: &RedisConfig, link: &Link) -> Result<(Vec<Facts>, Vec<Finding>)> {
    let master = facts::collect(link, "the master".into()).await?;
    let replicas = nodes::replicas(&master);
    let (mut servers, findings) = collect_from(config, replicas).await;
    servers.insert(0, master);
    Ok((servers, findings))
}

/// The facts of all nodes of the Cluster, as the first of `seeds` that answers lists them.
async fn cluster(
    config: &RedisConfig,
    seeds: &[(String, u16)],
) -> Result<(Vec<Facts>, Vec<Finding>)> {
    let mut outcome = Ok(None);
    for (host, port) in seeds {
        outcome = match Link::new(&alone(config, host, *port), None) {
            Ok(seed) => nodes::ask(&seed).await,
            Err(error) => Err(error),
        };
        if outcome.is_ok() {
            break;
        }
    }
    let (state, nodes) = outcome?.unwrap_or_default();
    let nodes = nodes::parse(&nodes);
    let mut findings = nodes::check(&state, &nodes);
    let (servers, unreachable) = collect_from(config, nodes).await;
    findings.extend(unreachable);
    Ok((servers, findings))
}

/// Collects the facts of each node, on a connection of its own. A node that does not answer is a finding.
async fn collect_from(config: &RedisConfig, nodes: Vec<Node>) -> (Vec<Facts>, Vec<Finding>) {
    let (mut servers, mut findings) = (Vec::new(), Vec::new());
    for Node { host, port, .. } in nodes.into_iter().take(MOST_NODES) {
        let name = format!("{host}:{port}");
        let collected = match Link::new(&alone(config, &host, port), None) {
            Ok(link) => facts::collect(&link, name.clone()).await,
            Err(error) => Err(error),
        };
        match collected {
            Ok(facts) => servers.push(facts),
            Err(error) => findings.push(Finding::advice(
                format!("{name} could not be checked: {error}"),
                "start it if it is down; check the network between it and this machine",
            )),
        }
    }
    (servers, findings)
}

fn alone(config: &RedisConfig, host: &str, port: u16) -> RedisConfig {
    let topology = Topology::Single { server: (host.to_owned(), port) };
    RedisConfig { topology, database: 0, replicas: 0, ..config.clone() }
}

/// The findings of `check` about each server. Equal findings are merged into one that names its servers.
fn summary(servers: &[Facts], check: impl Fn(&Facts) -> Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<(Finding, Vec<&str>)> = Vec::new();
    for server in servers {
        for finding in check(server) {
            match merged.iter_mut().find(|(same, _)| *same == finding) {
                Some((_, names)) => names.push(&server.name),
                None => merged.push((finding, vec![&server.name])),
            }
        }
    }
    let alone = servers.len() == 1;
    let name = |(mut finding, names): (Finding, Vec<&str>)| {
        if !alone {
            finding.what = format!("{} (on {})", finding.what, names.join(", "));
        }
        finding
    };
    merged.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_about_several_servers_is_reported_once_and_names_them() {
        let servers = ["a:1", "b:1", "c:1"].map(|name| Facts::new(name, "", &[]));
        let check = |facts: &Facts| match facts.name.as_str() {
            "b:1" => vec![Finding::advice("odd", "mend it")],
            _ => vec![Finding::fine("even")],
        };
        let found = summary(&servers, check);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].what, "even (on a:1, c:1)");
        assert_eq!(found[1].what, "odd (on b:1)");
        assert_eq!(summary(&servers[..1], check)[0].what, "even");
    }
}
