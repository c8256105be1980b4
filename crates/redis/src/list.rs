//! The names of locks on one server.

use tenure_core::{Error, ErrorKind, LockName, Result};

use crate::keys::Keyring;
use crate::link::Link;
use crate::wire::{Value, cmd};

const LIST: &str = "list locks";

/// Adds the locks on this server whose name begins with `prefix`. A scan blocks nobody.
pub(crate) async fn scan(
    link: &Link,
    keyring: &Keyring,
    prefix: &str,
    names: &mut Vec<LockName>,
) -> Result<()> {
    // A key of another type under a lock's name is not a lock.
    for (pattern, kind) in keyring.patterns(prefix).into_iter().zip(["string", "zset"]) {
        let mut cursor = "0".to_owned();
        loop {
            let scan = cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern);
            let scan = scan.arg("COUNT").arg("1000").arg("TYPE").arg(kind);
            let page = link.send(LIST, &scan).await?;
            let (next, keys) = read(page).ok_or_else(|| {
                let why = "the reply makes no sense: is this a Redis server?";
                Error::new(ErrorKind::Unreachable, LIST, why)
            })?;
            // Keys that are no text are no locks of ours.
            let texts = keys.iter().filter_map(|key| match key {
                Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
                _ => None,
            });
            names.extend(texts.filter_map(|key| keyring.lock_of(key)));
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(())
}

fn read(page: Value) -> Option<(String, Vec<Value>)> {
    let [next, keys] = <[Value; 2]>::try_from(page.array()?).ok()?;
    Some((next.text()?, keys.array()?))
}
