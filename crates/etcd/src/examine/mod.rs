//! Whether this cluster is fit to lock on.
//!
//! What the members say of themselves is collected first ([`facts`]); each check is then a pure
//! function over it ([`checks`]). What no member says is tried out on a lock that nobody else uses
//! ([`trial`]).

mod checks;
mod facts;
mod trial;

use tenure_core::{Finding, Result, Store};

use crate::inner::Inner;

/// Everything there is to say about the cluster.
pub(crate) async fn examine(store: &dyn Store, inner: &Inner) -> Result<Vec<Finding>> {
    let facts = facts::collect(inner).await;
    let mut findings = checks::of(&facts);
    findings.push(trial::trial(store, inner.members.timeout()).await);
    Ok(findings)
}
