//! `tenure release`: somebody else's claim undone.

use std::time::Duration;

use serde::Serialize;
use tenure::store::{Claim, Eviction, Released};
use tenure::{LockName, Mode, OwnerId, Result};

use crate::args;
use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{Closed, Output, printable};
use crate::show;

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
    let released = release_of(connection, name.clone(), owner).await?;
    let id = owner.to_string();
    let object =
        |released| ReleaseObject { owner: Some(&id), ..ReleaseObject::new(&name, released) };
    let (code, told) = match released {
        Released::Released => {
            (exit::OK, output.say(&object(true), format_args!("released {name}")))
        }
        Released::NotHeld => {
            let text = format!("{name} is not held by this owner; if it waited, it lost its place");
            (exit::NOTHING_DONE, output.say(&object(false), text))
        }
    };
    finish(told, code)
}

/// Releases a lock in the name of its owner.
pub(crate) async fn release_of(
    connection: &Connection,
    name: LockName,
    owner: OwnerId,
) -> Result<Released> {
    // Of a claim that is released, only the name and the owner matter.
    let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(30)).with_owner(owner);
    connection.within("release", connection.client.store().release(&claim)).await
}

/// Takes the lock from each holder that is seen now; whoever comes after is left alone.
async fn evict(connection: &Connection, name: &LockName, reason: &str, output: &Output) -> Outcome {
    let state = connection.client.inspect(name.as_str()).await?;
    let store = connection.client.store();
    // All of them first: a closed output must not save anybody.
    let mut evicted = Vec::new();
    for holder in &state.holders {
        let eviction = Eviction::new(name.clone(), &holder.owner, reason);
        let outcome = connection.within("evict", store.evict(&eviction)).await;
        if outcome.map_err(|error| error.about(name))? == Released::Released {
            evicted.push(holder);
        }
    }
    for holder in &evicted {
        let who = show::whereabouts(holder.host.as_deref(), holder.pid, &holder.label);
        let owner = printable(&holder.owner);
        let text = format!("evicted {who} from {name}, owner {owner}");
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
    finish(output.say(&object, format_args!("nobody holds {name}")), exit::NOTHING_DONE)
}

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

fn finish(told: Result<(), Closed>, code: u8) -> Outcome {
    match told {
        Ok(()) => Ok(code),
        Err(closed) => closed.outcome(),
    }
}
