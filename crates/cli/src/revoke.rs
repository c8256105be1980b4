//! `tenure revoke`: asks the holders of a lock to let go, and evicts them after a grace period.

use std::time::Duration;

use serde::Serialize;
use tenure::{ErrorKind, LockName, RevokedHolder};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output, note, printable};
use crate::{args, show};

/// After this time, the command says what it waits for.
const NOTE_AFTER: Duration = Duration::from_secs(3);

pub(crate) async fn execute(store: &str, arguments: &args::Revoke, output: &Output) -> Outcome {
    let name = LockName::new(&arguments.name)?;
    Connection::with(store, async |connection| {
        let mut revoke = connection.client.revoke(name.as_str(), &arguments.reason);
        if let Some(grace) = arguments.grace {
            revoke = revoke.grace(grace);
        }
        if let Some(limit) = arguments.wait {
            revoke = revoke.within(limit);
        }
        let mut revoking = revoke.into_future();
        let asked = match timeout(NOTE_AFTER, &mut revoking).await {
            Ok(asked) => asked,
            Err(_) => {
                note_wait(connection, &name, arguments).await;
                revoking.await
            }
        };
        let asked = asked.map_err(|error| match error.kind() {
            ErrorKind::Unsupported => {
                let line = exit::line(&error);
                let why = format!("{line} (`tenure release --force` evicts it at once)");
                Failure::new(exit::USAGE, why)
            }
            _ => error.into(),
        })?;
        report(&name, &arguments.reason, &asked, output)
    })
    .await
}

/// Tells which holder is waited for.
async fn note_wait(connection: &Connection, name: &LockName, arguments: &args::Revoke) {
    let Ok(state) = connection.client.inspect(name.as_str()).await else { return };
    let Some(holder) = state.holders.first() else { return };
    let process = show::process(holder.host.as_deref(), holder.pid, &holder.label);
    let then = match (arguments.grace, arguments.wait) {
        (Some(_), _) => "it is evicted after --grace",
        (None, Some(_)) => "nothing is forced",
        (None, None) => "if it does not listen, only --grace evicts it",
    };
    note(&format!("waiting for {process} to let go of {name:?}; {then}"));
}

fn report(name: &LockName, reason: &str, asked: &[RevokedHolder], output: &Output) -> Outcome {
    if asked.is_empty() {
        let object = RevokeObject { lock: name.as_str(), ..RevokeObject::default() };
        let written = output.result(&object, format_args!("{name} is not held"));
        return output::exit_code(written, exit::NOTHING_DONE);
    }
    for RevokedHolder { holder, heard, released, evicted, .. } in asked {
        let process = show::process(holder.host.as_deref(), holder.pid, &holder.label);
        let owner = printable(&holder.owner);
        let text = match (evicted, heard) {
            (false, true) if !released => {
                format!("{process} has heard the request and still holds {name}, owner {owner}")
            }
            (false, false) if !released => {
                format!("{process} did not answer and still holds {name}, owner {owner}")
            }
            (false, true) => format!("{process} let go of {name}, owner {owner}"),
            (false, false) => format!("{process} is gone from {name}, owner {owner}"),
            (true, true) => format!("evicted {process} from {name} after the grace, owner {owner}"),
            (true, false) => {
                format!("evicted {process} from {name}: it did not answer, owner {owner}")
            }
        };
        let object = RevokeObject {
            lock: name.as_str(),
            released: *released,
            heard: *heard,
            evicted: *evicted,
            owner: Some(&holder.owner),
            token: holder.token.map(|token| token.get()),
            host: holder.host.as_deref(),
            pid: holder.pid,
            label: Some(&holder.label),
            reason: Some(reason),
        };
        if let Err(closed) = output.result(&object, text) {
            return closed.outcome();
        }
    }
    if asked.iter().any(|asked| asked.evicted) {
        note("an evicted holder may work on for a moment: only the fencing token protects from it");
    }
    match asked.iter().all(|asked| asked.released) {
        true => Ok(exit::OK),
        false => Ok(exit::BUSY),
    }
}

/// The JSON object for one holder that was asked.
#[derive(Default, Serialize)]
struct RevokeObject<'a> {
    lock: &'a str,
    released: bool,
    heard: bool,
    evicted: bool,
    owner: Option<&'a str>,
    token: Option<u64>,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: Option<&'a str>,
    reason: Option<&'a str>,
}
