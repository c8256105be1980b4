//! `tenure hold`: holds a lock until it is interrupted.

use std::io::{self, Read};

use rustix::process::Signal;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::background::Caller;
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::lock::Held;
use crate::output::{Closed, Output, report};
use crate::signals::Signals;
use crate::{args, lock};

/// Holds the lock; with `--fd`, on behalf of `caller`, in the background process that was forked for
/// it.
pub(crate) async fn execute(
    store: &str,
    arguments: &args::Hold,
    output: &Output,
    caller: Option<Caller>,
) -> Outcome {
    lock::check_name(&arguments.lock.name)?;
    let mut signals = Signals::listen()?;
    let opening = Connection::open_for(store, &arguments.lock);
    let connection = match signals.unless_interrupted(opening).await {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::with_signal(signal)),
    };
    let acquiring = lock::acquire(&connection, &arguments.lock, "tenure hold");
    let outcome = match signals.unless_interrupted(acquiring).await {
        Ok(Ok(guard)) => {
            announce_and_hold(guard, &connection, output, caller, signals, arguments).await
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(exit::with_signal(signal)),
    };
    connection.close(&outcome).await;
    outcome
}

async fn announce_and_hold(
    guard: Held,
    connection: &Connection,
    output: &Output,
    caller: Option<Caller>,
    signals: Signals,
    arguments: &args::Hold,
) -> Outcome {
    // Detached before the announcement, because the caller relies on the lock from then on.
    let detached = caller.map(Caller::detach).transpose()?;
    match (announce(&guard, connection, output), detached) {
        (Err(closed), _) => release_unannounced(guard, closed).await,
        (Ok(()), Some(detached)) => detached.hold(guard, signals, arguments).await,
        (Ok(()), None) => hold(guard, signals, arguments.stdin).await,
    }
}

/// Releases the lock because standard output is closed and its token could not be printed.
async fn release_unannounced(guard: Held, closed: Closed) -> Outcome {
    let name = guard.name().clone();
    let released = guard.release().await;
    // A closed pipe is an error here: the reader has not received the token.
    closed.outcome()?;
    released?;
    report(&format!(
        "standard output is closed, so the token could not be printed: released the lock {name:?}"
    ));
    Ok(exit::with_signal(Signal::PIPE))
}

/// The JSON object that announces a held lock.
#[derive(Serialize)]
struct HeldObject<'a> {
    lock: &'a str,
    token: Option<u64>,
    owner: String,
    store: String,
}

/// Prints that the lock is held.
fn announce(guard: &Held, connection: &Connection, output: &Output) -> Result<(), Closed> {
    let (name, owner) = (guard.name(), guard.owner());
    let object = HeldObject {
        lock: name.as_str(),
        token: guard.token().map(|token| token.get()),
        owner: owner.to_string(),
        store: connection.url.to_string(),
    };
    let token = object.token.map_or_else(|| "-".into(), |token| token.to_string());
    output.result(&object, format_args!("{name} {token} {owner}"))
}

async fn hold(guard: Held, mut signals: Signals, until_stdin_closes: bool) -> Outcome {
    let closed = end_of_stdin(until_stdin_closes);
    tokio::pin!(closed);
    let mut revoked = Box::pin(guard.revoked());
    let mut warned = false;
    loop {
        tokio::select! {
            biased;
            reason = guard.lost() => {
                let message = lock::describe_loss(guard.name(), reason);
                return Err(Failure::new(exit::LOST, message));
            }
            request = &mut revoked => {
                let message = lock::describe_revocation(guard.name(), &request);
                drop(revoked);
                guard.release().await?;
                return Err(Failure::new(exit::LOST, format!("{message}; released it")));
            }
            () = guard.danger(), if !warned => {
                warned = true;
                let name = guard.name();
                report(&format!("the store has not confirmed the lock {name:?} for half its TTL"));
            }
            _ = signals.termination() => break,
            () = &mut closed => break,
        }
    }
    drop(revoked);
    guard.release().await?;
    Ok(exit::OK)
}

/// Resolves when standard input ends; never if `enabled` is false.
async fn end_of_stdin(enabled: bool) {
    if !enabled {
        return std::future::pending().await;
    }
    // On a thread, because some kinds of standard input cannot be polled. If the hold ends otherwise,
    // the thread is abandoned.
    let ended = spawn_blocking(|| {
        let mut input = io::stdin().lock();
        let mut buffer = [0; 4096];
        while input.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    let _ = ended.await;
}
