//! Whether these servers are fit to be a quorum.

use tenure_core::{Finding, Result, Store};

use super::Quorum;

pub(super) async fn examine(_store: &dyn Store, quorum: &Quorum) -> Result<Vec<Finding>> {
    let nodes = quorum.nodes.list.len();
    Ok(vec![Finding::fine(format!(
        "{nodes} different servers, of which {} may fail",
        (nodes - 1) / 2
    ))])
}
