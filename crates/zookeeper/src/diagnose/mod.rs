//! Whether this ensemble is fit to lock on.
//!
//! What the servers say of themselves is collected first ([`facts`]); each check is then a pure
//! function over it ([`checks`]). What no server tells is tried out on a lock of its own.

mod checks;
mod facts;

use tenure_core::store::{Store, self_test};
use tenure_core::{Finding, Result};

use crate::engine::ZooKeeperEngine;

/// What to do if a waiter is not told of a release.
const SILENCE: &str = "see that no proxy holds watches back";

/// Everything there is to say about the ensemble.
pub(crate) async fn diagnose(store: &dyn Store, engine: &ZooKeeperEngine) -> Result<Vec<Finding>> {
    let facts = facts::collect(engine).await?;
    let mut findings = checks::of(&facts);
    findings.push(self_test(store, engine.config.timeout, SILENCE).await);
    Ok(findings)
}
