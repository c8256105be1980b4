//! `tenure run`: a command under a lock.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tenure::ErrorKind;

use crate::args;
use crate::child::{Guardian, Job, PendingRelease, find, not_started};
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::signals::Signals;
use crate::{lock, nested, output, supervise};

/// What is passed on to the command besides the signals that ask us to end.
const WHILE_RUNNING: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH, Signal::TSTP, Signal::CONT];

pub(crate) async fn execute(store: &str, arguments: &args::Run) -> Outcome {
    lock::check_name(&arguments.lock.name)?;
    let command = command_line(arguments);
    let program = &command[0];
    // Nothing should be waited for in vain.
    find(program)?;
    let mut signals = Signals::listen()?;
    let guardian =
        Guardian::start().map_err(|error| Failure::system("start the guardian", &error))?;
    let opening = signals.unless_interrupted(Connection::open(store)).await;
    let connection = match opening {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::die_of(signal)),
    };
    let label = label(program);
    let taking = lock::take(&connection, &arguments.lock, &label);
    let outcome = match signals.unless_interrupted(taking).await {
        Ok(Ok(guard)) => under_lock(&connection, guard, arguments, signals, guardian).await,
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(exit::die_of(signal)),
    };
    connection.close(&outcome).await;
    outcome
}

/// Runs the command under the lock, then gives the lock back.
async fn under_lock(
    connection: &Connection,
    guard: Held,
    arguments: &args::Run,
    mut signals: Signals,
    guardian: Guardian,
) -> Outcome {
    signals.also(&WHILE_RUNNING)?;
    let line = command_line(arguments);
    let mut command = prepare(&line, &guard, connection, arguments);
    command.env(nested::VARIABLE, nested::list(&guard, connection)?);
    // A re-entered lock is released by the outer `tenure run`.
    if let Held::Own(guard) = &guard
        && !connection.client.store().capabilities().detects_death
    {
        guardian.hand_over(&PendingRelease::new(&connection.url, guard));
    }
    let job = match Job::start(command, guardian) {
        Ok(job) => job,
        Err(error) => {
            give_back(guard).await;
            return Err(not_started(&line[0], &error));
        }
    };
    let end = supervise::supervise(connection, &job, &guard, &mut signals, arguments).await?;
    // The signal to die of: one from the terminal, or one that we have passed on.
    let from_terminal = job.finish(end.signal.filter(|_| !end.passed_on));
    let dying_of = from_terminal.or(end.signal.filter(|_| end.passed_on));
    let Some(code) = end.code else {
        // The command runs on without us: the TTL keeps others out as long as it can.
        std::mem::forget(guard);
        return Ok(exit::LOST);
    };
    let name = guard.name().clone();
    let still_held = give_back(guard).await;
    if end.lost {
        return Ok(exit::LOST);
    }
    if !still_held {
        let why = format!("lost the lock {name:?} before the command ended: check its work");
        return Err(Failure::new(exit::LOST, why));
    }
    Ok(match dying_of {
        Some(signal) => exit::die_of(signal),
        None => code,
    })
}

/// Releases the lock, and says whether it was held to the end as far as anybody knows.
async fn give_back(guard: Held) -> bool {
    let was_valid = guard.is_valid();
    match guard.release().await {
        Ok(()) => true,
        Err(error) if was_valid && error.kind() != ErrorKind::Lost => {
            output::complain(&format!(
                "{}; it is free when its TTL has passed",
                exit::line(&error)
            ));
            true
        }
        Err(_) => false,
    }
}

/// The program and its arguments.
fn command_line(arguments: &args::Run) -> Vec<OsString> {
    match &arguments.shell_line {
        Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        None => arguments.command.clone(),
    }
}

fn prepare(
    line: &[OsString],
    guard: &Held,
    connection: &Connection,
    arguments: &args::Run,
) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    command.env("TENURE_LOCK", guard.name().as_str());
    command.env("TENURE_OWNER", guard.owner().to_string());
    command.env("TENURE_STORE", connection.url.to_string());
    match guard.token() {
        Some(token) => command.env("TENURE_TOKEN", token.to_string()),
        // We may run under another tenure, whose token is not ours.
        None => command.env_remove("TENURE_TOKEN"),
    };
    match connection.url.password() {
        Some(password) if !arguments.withhold_password => {
            command.env("TENURE_STORE_PASSWORD", password);
            // The command may change TENURE_STORE: the password belongs to this one.
            command.env("TENURE_STORE_PASSWORD_FOR", connection.url.to_string());
        }
        // We may run under another tenure, on another store.
        _ => {
            command.env_remove("TENURE_STORE_PASSWORD").env_remove("TENURE_STORE_PASSWORD_FOR");
        }
    };
    if arguments.withhold_password {
        command.env_remove("TENURE_PASSWORD");
    }
    command
}

/// What others see of the holder: the program without its arguments, which may hold secrets.
fn label(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    output::printable(&name.to_string_lossy())
}
