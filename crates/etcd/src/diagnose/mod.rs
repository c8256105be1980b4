//! Whether this cluster is fit to lock on.
//!
//! What the members report is collected first ([`facts`]); each check is then a pure function of it
//! ([`checks`]). What no member reports is tried on a lock of its own ([`self_test`]).

mod checks;
mod facts;

use tenure_core::store::{Store, self_test};
use tenure_core::{Finding, Result};

use crate::engine::EtcdEngine;

/// The remedy if a waiter is not notified of a release.
const SILENCE: &str = "see that no proxy holds watches back";

/// All findings about the cluster.
pub(crate) async fn diagnose(store: &dyn Store, engine: &EtcdEngine) -> Result<Vec<Finding>> {
    let facts = facts::collect(engine).await;
    let mut findings = checks::of(&facts);
    findings.push(self_test(store, engine.endpoints.step_limit(), SILENCE).await);
    Ok(findings)
}
