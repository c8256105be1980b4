//! `tenure hold`: a lock until told to let go.

use std::io::{self, Read};

use rustix::process::Signal;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::output::{Closed, Output, complain};
use crate::script::Script;
use crate::signals::Signals;
use crate::{args, lock};

/// Holds the lock; for a part of a script if one is given.
pub(crate) async fn execute(
    store: &str,
    arguments: &args::Hold,
    output: &Output,
    script: Option<Script>,
) -> Outcome {
    lock::check_name(&arguments.lock.name)?;
    let mut signals = Signals::listen()?;
    let connection = match signals.unless_interrupted(Connection::open(store)).await {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::die_of(signal)),
    };
    let taking = lock::take(&connection, &arguments.lock, "tenure hold");
    let outcome = match signals.unless_interrupted(taking).await {
        Ok(Ok(guard)) => held(guard, &connection, output, script, signals, arguments).await,
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(exit::die_of(signal)),
    };
    connection.close(&outcome).await;
    outcome
}

async fn held(
    guard: Held,
    connection: &Connection,
    output: &Output,
    script: Option<Script>,
    signals: Signals,
    arguments: &args::Hold,
) -> Outcome {
    let background = script.map(Script::settle).transpose()?;
    match (tell(&guard, connection, output), background) {
        (Err(closed), _) => not_told(guard, closed).await,
        (Ok(()), Some(background)) => background.hold(guard, signals, arguments).await,
        (Ok(()), None) => hold(guard, signals, arguments.stdin).await,
    }
}

/// Standard output is closed, so the token could not be printed: releases the lock.
async fn not_told(guard: Held, closed: Closed) -> Outcome {
    let name = guard.name().clone();
    let released = guard.release().await;
    // A reader that left before it has read anything has not seen enough, as it may have elsewhere.
    closed.outcome()?;
    released?;
    complain(&format!(
        "standard output is closed, so the token could not be printed: released the lock {name:?}"
    ));
    Ok(exit::die_of(Signal::PIPE))
}

#[derive(Serialize)]
struct HeldObject<'a> {
    lock: &'a str,
    token: Option<u64>,
    owner: String,
    store: String,
}

fn tell(guard: &Held, connection: &Connection, output: &Output) -> Result<(), Closed> {
    let (name, owner) = (guard.name(), guard.owner());
    let object = HeldObject {
        lock: name.as_str(),
        token: guard.token().map(|token| token.get()),
        owner: owner.to_string(),
        store: connection.url.to_string(),
    };
    let token = object.token.map_or_else(|| "-".into(), |token| token.to_string());
    output.say(&object, format_args!("{name} {token} {owner}"))
}

async fn hold(guard: Held, mut signals: Signals, until_stdin_closes: bool) -> Outcome {
    let closed = end_of_stdin(until_stdin_closes);
    tokio::pin!(closed);
    let mut warned = false;
    let lost = |why: &str| {
        let why = format!("lost the lock {:?}: {why}", guard.name());
        Failure::new(exit::LOST, why)
    };
    loop {
        tokio::select! {
            biased;
            reason = guard.lost() => return Err(lost(why(reason))),
            () = guard.danger(), if !warned => {
                warned = true;
                let name = guard.name();
                complain(&format!("the store has not confirmed the lock {name:?} for half its TTL"));
            }
            _ = signals.request_to_end() => break,
            () = &mut closed => break,
        }
    }
    guard.release().await?;
    Ok(exit::OK)
}

pub(crate) const fn why(reason: tenure::LossReason) -> &'static str {
    match reason {
        tenure::LossReason::MaxHold => "--max-hold is over",
        tenure::LossReason::NotHeld => "the store says that this process no longer holds it",
        _ => "its lease ended without a renewal",
    }
}

/// Resolves when standard input ends, if that is asked for.
async fn end_of_stdin(asked: bool) {
    if !asked {
        return std::future::pending().await;
    }
    // A thread, because not everything that can be standard input can be polled; it is left behind
    // when something else ends the hold.
    let ended = spawn_blocking(|| {
        let mut input = io::stdin().lock();
        let mut buffer = [0; 4096];
        while input.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    let _ = ended.await;
}
