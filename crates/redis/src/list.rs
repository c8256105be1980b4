//! The names of locks on one server.

use rustis::client::Client;
use rustis::resp::{BulkString, cmd};
use tenure_core::{LockName, Result};

use crate::fault::fault;
use crate::keys::Keyring;

/// Adds the locks on this server whose name begins with `prefix`. A scan blocks nobody.
pub(crate) async fn scan(
    client: &Client,
    keyring: &Keyring,
    prefix: &str,
    names: &mut Vec<LockName>,
) -> Result<()> {
    for pattern in keyring.patterns(prefix) {
        let mut cursor = "0".to_owned();
        loop {
            let scan = cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern);
            let scan = scan.arg("COUNT").arg(1000);
            let page = client.send::<(String, Vec<BulkString>)>(scan, None).await;
            let (next, keys) = page.map_err(|error| fault("list locks", error))?;
            // Keys that are no text are no locks of ours.
            let texts = keys.iter().filter_map(|key| std::str::from_utf8(key.as_bytes()).ok());
            names.extend(texts.filter_map(|key| keyring.lock_of(key)));
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(())
}
