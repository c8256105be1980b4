//! Whether this cluster is fit to lock on.
//!
//! What the members say of themselves is collected first ([`facts`]); each check is then a pure
//! function over it ([`checks`]). What no member says is tried out on a lock that nobody else uses
//! ([`self_test`]).

mod checks;
mod facts;

use tenure_core::store::{Store, self_test};
use tenure_core::{Finding, Result};

use crate::engine::EtcdEngine;

/// What to do where no news of a hand-over comes.
const SILENCE: &str = "see that no proxy holds watches back";

/// Everything there is to say about the cluster.
pub(crate) async fn diagnose(store: &dyn Store, engine: &EtcdEngine) -> Result<Vec<Finding>> {
    let facts = facts::collect(engine).await;
    let mut findings = checks::of(&facts);
    findings.push(self_test(store, engine.endpoints.timeout(), SILENCE).await);
    Ok(findings)
}
