//! The configuration of a quorum.

use std::time::Duration;

use tenure_core::{Error, ErrorKind, Result};
use tenure_proto::quorum::check_nodes;

use crate::config::{RedisConfig, Topology};

/// Which servers are the quorum, and how it locks.
#[derive(Clone, Debug)]
pub struct RedlockConfig {
    /// The servers, each independent ([`Topology::Single`]): an odd number, at least three. All have the
    /// same prefix.
    pub nodes: Vec<RedisConfig>,
    /// How long a server may take to answer before it counts as silent. Without it, a two hundredth
    /// of the TTL, from 5 to 50 ms.
    pub node_timeout: Option<Duration>,
    /// The longest TTL that any client uses on these servers; a longer one is refused. A server that
    /// restarted is not counted for that long.
    pub max_ttl: Duration,
}

impl RedlockConfig {
    /// The longest TTL, unless another is given.
    pub const MAX_TTL: Duration = Duration::from_secs(60);

    /// The defaults for these servers.
    pub const fn new(nodes: Vec<RedisConfig>) -> Self {
        Self { nodes, node_timeout: None, max_ttl: Self::MAX_TTL }
    }

    pub(super) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, "use this quorum", why));
        if let Err(why) = check_nodes::<()>(&vec![None; self.nodes.len()]) {
            return invalid(&why.to_string());
        }
        if self.nodes.iter().any(|node| !matches!(node.topology, Topology::Single { .. })) {
            return invalid("every server of a quorum is independent: name single servers");
        }
        self.nodes.iter().try_for_each(RedisConfig::check)?;
        if self.nodes.iter().any(|node| node.prefix != self.nodes[0].prefix) {
            return invalid("all servers of a quorum have the same prefix");
        }
        if self.nodes.iter().any(|node| !node.fencing || node.replicas > 0) {
            return invalid("a quorum always fences, and counts servers instead of replicas");
        }
        if self.max_ttl.is_zero() || self.node_timeout.is_some_and(|limit| limit.is_zero()) {
            return invalid("the longest TTL and a server's time to answer are above zero");
        }
        // Tokens run ahead of the clocks by as much; a server that lost its data must catch up
        // with them while it is not counted.
        if self.node_timeout.is_some_and(|limit| limit > self.max_ttl / 2) {
            return invalid(
                "a server's time to answer is at most half of the longest TTL: shorten \
                 node-timeout=, or set max-ttl= to the longest in use",
            );
        }
        Ok(())
    }
}
