//! `tenure release`: releases a lock on behalf of its owner, or evicts its holders.

use serde::Serialize;
use tenure::{Client, Holder, LockName, OwnerId};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Output, printable};
use crate::{args, show};

pub(crate) async fn execute(store: &str, arguments: &args::Release, output: &Output) -> Outcome {
    let name = LockName::new(&arguments.name)?;
    let reason = arguments.reason.as_deref().unwrap_or_default();
    Connection::with(store, async |connection| match arguments.owner {
        Some(owner) => release(connection, name, owner, output).await,
        None => force(connection, &name, reason, output).await,
    })
    .await
}

async fn release(
    connection: &Connection,
    name: LockName,
    owner: OwnerId,
    output: &Output,
) -> Outcome {
    let released = connection.client.release(name.as_str(), owner).await?;
    let id = owner.to_string();
    let object = ReleaseObject { owner: Some(&id), ..ReleaseObject::new(&name, released) };
    let (code, text) = match released {
        true => (exit::OK, format!("released {name}")),
        false => {
            let text = format!(
                "{name} is not held by this owner; if it was waiting, it has left the queue"
            );
            (exit::NOTHING_DONE, text)
        }
    };
    output::exit_code(output.result(&object, text), code)
}

/// Evicts each current holder; owners that acquire the lock afterwards keep it.
async fn evict(client: &Client, name: &LockName, reason: &str) -> tenure::Result<Vec<Holder>> {
    let holders = client.inspect(name.as_str()).await?.holders;
    evict_each(client, name, holders, reason).await
}

/// Evicts those of these holders that still hold the lock, and returns them.
pub(crate) async fn evict_each(
    client: &Client,
    name: &LockName,
    holders: impl IntoIterator<Item = Holder>,
    reason: &str,
) -> tenure::Result<Vec<Holder>> {
    let mut evicted = Vec::new();
    for holder in holders {
        if client.evict(name.as_str(), &holder.owner, reason).await? {
            evicted.push(holder);
        }
    }
    Ok(evicted)
}

async fn force(connection: &Connection, name: &LockName, reason: &str, output: &Output) -> Outcome {
    // All evictions come before the output, which may fail.
    let evicted = evict(&connection.client, name, reason).await?;
    for holder in &evicted {
        let process = show::process(holder.host.as_deref(), holder.pid, &holder.label);
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
        if let Err(closed) = output.result(&object, text) {
            return closed.outcome();
        }
    }
    if !evicted.is_empty() {
        return Ok(exit::OK);
    }
    let object = ReleaseObject::new(name, false);
    let written = output.result(&object, format_args!("{name} is not held"));
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
