//! Whether these servers are fit to be a quorum.

use tenure_core::store::Store;
use tenure_core::{Finding, Result};

use super::Quorum;
use crate::diagnose::diagnose_quorum;

pub(super) async fn diagnose(store: &dyn Store, quorum: &Quorum) -> Result<Vec<Finding>> {
    let configs = &quorum.config.nodes;
    let nodes: Vec<_> = quorum
        .nodes
        .list
        .iter()
        .zip(configs)
        .map(|(node, config)| (node.name.as_str(), &node.link, config))
        .collect();
    diagnose_quorum(store, &nodes, quorum.config.max_ttl).await
}
