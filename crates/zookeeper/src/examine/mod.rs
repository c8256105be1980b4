//! Whether this ensemble is fit to lock on.

mod trial;

use tenure_core::{Finding, Result, Store};

use crate::inner::Inner;

/// Everything there is to say about the ensemble.
pub(crate) async fn examine(store: &dyn Store, inner: &Inner) -> Result<Vec<Finding>> {
    Ok(vec![trial::trial(store, inner.config.timeout).await])
}
