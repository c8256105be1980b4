//! Whether these servers are fit to be a quorum.

use tenure_core::{Finding, Result, Store};

use super::Quorum;
use crate::examine::examine_quorum;

pub(super) async fn examine(store: &dyn Store, quorum: &Quorum) -> Result<Vec<Finding>> {
    let configs = &quorum.config.nodes;
    let nodes: Vec<_> = quorum
        .nodes
        .list
        .iter()
        .zip(configs)
        .map(|(node, config)| (node.name.as_str(), &node.link, config))
        .collect();
    examine_quorum(store, &nodes, quorum.config.max_ttl).await
}
