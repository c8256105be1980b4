//! `tenure release`: releases a lock on behalf of its owner, or evicts its holders.

use std::time::Duration;

use serde::Serialize;
use tenure::store::{Claim, Eviction, Released};
use tenure::{LockName, Mode, OwnerId, Result};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Output, printable};
use crate::{args, show};

pub(crate) async fn execute(store: &str, arguments: &args::Release, output: &Output) -> Outcome {
    let name = LockName::new(&arguments.name)?;
    let reason = arguments.reason.as_deref().unwrap_or_default();
    Connection::with(store, async |connection| match arguments.owner {
        Some(owner) => release(connection, name, owner, output).await,
        None => evict(connection, &name, reason, output).await,
    })
    .await
}

async fn release(
    connection: &Connection,
    name: LockName,
    owner: OwnerId,
    output: &Output,
) -> Outcome {
    let released = release_for(connection, name.clone(), owner).await?;
    let id = owner.to_string();
    let object =
        |released| ReleaseObject { owner: Some(&id), ..ReleaseObject::new(&name, released) };
    let (code, written) = match released {
        Released::Released => {
            (exit::OK, output.say(&object(true), format_args!("released {name}")))
        }
        Released::NotHeld => {
            let text = format!(
                "{name} is not held by this owner; if it was waiting, it has left the queue"
            );
            (exit::NOTHING_DONE, output.say(&object(false), text))
        }
    };
    output::exit_code(written, code)
}

/// Releases a lock on behalf of its owner.
pub(crate) async fn release_for(
    connection: &Connection,
    name: LockName,
    owner: OwnerId,
) -> Result<Released> {
    // A release uses only the name and the owner of the claim.
    let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(30)).with_owner(owner);
    connection.within("release", connection.client.store().release(&claim)).await
}

/// Evicts each current holder; owners that acquire the lock afterwards keep it.
async fn evict(connection: &Connection, name: &LockName, reason: &str, output: &Output) -> Outcome {
    let state = connection.client.inspect(name.as_str()).await?;
    let store = connection.client.store();
    // All evictions come before the output, which may fail.
    let mut evicted = Vec::new();
    for holder in &state.holders {
        let eviction = Eviction::new(name.clone(), &holder.owner, reason);
        let outcome = connection.within("evict", store.evict(&eviction)).await;
        if outcome.map_err(|error| error.about(name))? == Released::Released {
            evicted.push(holder);
        }
    }
    for holder in &evicted {
        let process = show::whereabouts(holder.host.as_deref(), holder.pid, &holder.label);
        let owner = printable(&holder.owner);
        let text = format!("evicted {process} from {name}, owner {owner}");
        let object = ReleaseObject {
            owner: Some(&holder.owner),
            host: holder.host.as_deref(),
            pid: holder.pid,
            label: Some(&holder.label),
            reason: Some(reason),
            ..ReleaseObject::new(name, true)
        };
        if let Err(closed) = output.say(&object, text) {
            return closed.outcome();
        }
    }
    if !evicted.is_empty() {
        return Ok(exit::OK);
    }
    let object = ReleaseObject::new(name, false);
    let written = output.say(&object, format_args!("{name} is not held"));
    output::exit_code(written, exit::NOTHING_DONE)
}

/// The JSON object for one release or eviction.
#[derive(Default, Serialize)]
struct ReleaseObject<'a> {
    lock: &'a str,
    released: bool,
    owner: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> ReleaseObject<'a> {
    fn new(name: &'a LockName, released: bool) -> Self {
        Self { lock: name.as_str(), released, ..Self::default() }
    }
}
