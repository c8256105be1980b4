//! Whether this ensemble is fit to lock on.
//!
//! What the servers say of themselves is collected first ([`facts`]); each check is then a pure
//! function over it ([`checks`]). What no server says is tried out on a lock that nobody else uses.

mod checks;
mod facts;

use tenure_core::{Finding, Result, Store, trial};

use crate::inner::Inner;

/// What to do where no news of a hand-over comes.
const SILENCE: &str = "see that no proxy holds watches back";

/// Everything there is to say about the ensemble.
pub(crate) async fn examine(store: &dyn Store, inner: &Inner) -> Result<Vec<Finding>> {
    let facts = facts::collect(inner).await?;
    let mut findings = checks::of(&facts);
    findings.push(trial(store, inner.config.timeout, SILENCE).await);
    Ok(findings)
}
