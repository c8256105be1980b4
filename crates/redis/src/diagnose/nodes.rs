//! The servers of a Cluster, and the replicas of a master.

use tenure_core::{Finding, Result};

use super::facts::Facts;
use crate::link::Link;
use crate::wire::cmd;

/// A server that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// The id of the master it follows, if it is a replica.
    pub(super) follows: Option<String>,
    pub(super) failed: bool,
    pub(super) has_slots: bool,
}

/// `CLUSTER INFO` and `CLUSTER NODES`; `None` where the user may not ask.
pub(super) async fn ask(seed: &Link) -> Result<Option<(String, String)>> {
    let ask = async |what| match seed.send("diagnose the Cluster", &cmd("CLUSTER").arg(what)).await
    {
        Ok(answer) => Ok(answer.text()),
        Err(error) if error.is_transient() => Err(error),
        Err(_) => Ok(None),
    };
    Ok(ask("INFO").await?.zip(ask("NODES").await?))
}

/// Reads `CLUSTER NODES`:
/// `<id> <host:port@bus[,name]> <flags> <master id or -> <ping> <pong> <epoch> <link> [slots]`
pub(super) fn parse(text: &str) -> Vec<Node> {
    let node = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = words.get(1)?.split(['@', ',']).next()?;
        let (host, port) = address.rsplit_once(':')?;
        let flags: Vec<&str> = words.get(2)?.split(',').collect();
        if flags.iter().any(|flag| matches!(*flag, "noaddr" | "handshake")) {
            return None;
        }
        Some(Node {
            id: (*words.first()?).to_owned(),
            host: host.to_owned(),
            port: port.parse().ok()?,
            follows: words.get(3).filter(|id| **id != "-").map(|id| (*id).to_owned()),
            failed: flags.iter().any(|flag| matches!(*flag, "fail" | "fail?")),
            has_slots: words.len() > 8,
        })
    };
    text.lines().filter_map(node).collect()
}

/// What is wrong with the Cluster as a whole.
pub(super) fn check(info: &str, nodes: &[Node]) -> Vec<Finding> {
    if nodes.is_empty() {
        return vec![Finding::advice(
            "this user may not ask for the Cluster's state (CLUSTER INFO, CLUSTER NODES), so its \
             nodes were not looked at",
            "diagnose it as a user with +cluster|info +cluster|nodes",
        )];
    }
    let mut findings = Vec::new();
    let facts = Facts::new("", info, &[]);
    if facts.info("cluster_state") != Some("ok") {
        findings.push(Finding::danger(
            "the Cluster is down: not every slot is served",
            "see `redis-cli --cluster check`",
        ));
    }
    let name = |node: &Node| format!("{}:{}", node.host, node.port);
    let is_backed = |master: &&Node| {
        nodes.iter().any(|node| !node.failed && node.follows.as_ref() == Some(&master.id))
    };
    let masters = nodes.iter().filter(|node| node.has_slots && !node.failed);
    let (backed, bare): (Vec<_>, Vec<_>) = masters.partition(is_backed);
    if !bare.is_empty() {
        let names: Vec<_> = bare.iter().map(|node| name(node)).collect();
        findings.push(Finding::advice(
            format!(
                "without a replica: {}; when it fails, its locks are out of reach",
                names.join(", ")
            ),
            "give every master a replica",
        ));
    }
    if findings.is_empty() {
        let masters = backed.len();
        findings.push(Finding::fine(format!("all {masters} masters are up and have replicas")));
    }
    findings
}

/// The replicas that a master names in `INFO`: `slave0:ip=…,port=…,state=…`.
pub(super) fn replicas(master: &Facts) -> Vec<Node> {
    let replica = |number: u64| {
        let text = master.info(&format!("slave{number}"))?;
        let field = |name: &str| {
            let mut fields = text.split(',').filter_map(|field| field.split_once('='));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        Some(Node {
            id: String::new(),
            host: field("ip")?,
            port: field("port")?.parse().ok()?,
            follows: None,
            failed: false,
            has_slots: false,
        })
    };
    let count = master.number("connected_slaves").unwrap_or(0).min(64);
    (0..count).filter_map(replica).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Severity::{Advice, Fine, Unsafe};

    const NODES: &str = "\
07c3 127.0.0.1:7004@17004,host4 slave e7d1 0 1426238317239 4 connected
67ed 127.0.0.1:7002@17002 master - 0 1426238316232 2 connected 5461-10922
6ec2 ::1:7005@17005 slave 67ed 0 1426238316232 5 connected
e7d1 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5460
aaaa :0@0 slave,noaddr 67ed 0 0 0 disconnected
";

    #[test]
    fn nodes_and_replicas_are_read() {
        let nodes = parse(NODES);
        assert_eq!(nodes.len(), 4);
        assert_eq!((nodes[2].host.as_str(), nodes[2].port), ("::1", 7005));
        assert_eq!(nodes[0].follows.as_deref(), Some("e7d1"));
        assert!(nodes[1].has_slots && nodes[1].follows.is_none() && !nodes[0].has_slots);
        let info = "connected_slaves:1\r\nslave0:ip=10.0.0.2,port=6380,state=online,lag=0\r\n";
        let replicas = replicas(&Facts::new("a", info, &[]));
        assert_eq!((replicas[0].host.as_str(), replicas[0].port), ("10.0.0.2", 6380));
    }

    #[test]
    fn a_cluster_is_fine_when_it_is_up_and_every_master_has_a_replica() {
        let severities = |state: &str, nodes: &str| -> Vec<_> {
            check(state, &parse(nodes)).iter().map(|finding| finding.severity).collect()
        };
        assert_eq!(severities("cluster_state:ok\r\n", NODES), [Fine]);
        assert_eq!(severities("cluster_state:fail\r\n", NODES), [Unsafe]);
        assert_eq!(
            severities("cluster_state:ok\r\n", &NODES.replace("slave 67ed", "slave,fail 67ed")),
            [Advice]
        );
        assert_eq!(severities("", ""), [Advice]);
    }
}
