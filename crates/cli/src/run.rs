//! `tenure run`: runs a command while holding a lock.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tenure::ErrorKind;

use crate::args;
use crate::child::{Guardian, Job, PendingRelease, check_program, start_failure};
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::lock::Held;
use crate::signals::Signals;
use crate::{lock, nested, output, supervise};

/// The signals that are forwarded to the command, besides the termination signals.
const FORWARDED: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH, Signal::TSTP, Signal::CONT];

pub(crate) async fn execute(store: &str, arguments: &args::Run) -> Outcome {
    lock::check_name(&arguments.lock.name)?;
    let command = command_line(arguments);
    let program = &command[0];
    // Before the lock is waited for.
    check_program(program)?;
    let mut signals = Signals::listen()?;
    let guardian =
        Guardian::start().map_err(|error| Failure::system("start the guardian", &error))?;
    let opening = signals.unless_interrupted(Connection::open(store)).await;
    let connection = match opening {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::with_signal(signal)),
    };
    let label = label(program);
    let acquiring = lock::acquire(&connection, &arguments.lock, &label);
    let outcome = match signals.unless_interrupted(acquiring).await {
        Ok(Ok(guard)) => run_command(&connection, guard, arguments, signals, guardian).await,
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(exit::with_signal(signal)),
    };
    connection.close(&outcome).await;
    outcome
}

/// Runs the command under the lock, then releases the lock.
async fn run_command(
    connection: &Connection,
    guard: Held,
    arguments: &args::Run,
    mut signals: Signals,
    guardian: Guardian,
) -> Outcome {
    signals.add(&FORWARDED)?;
    let line = command_line(arguments);
    let mut command = prepare(&line, &guard, connection, arguments);
    command.env(nested::VARIABLE, nested::variable_for(&guard, connection)?);
    // An inherited lock is released by the surrounding `tenure run`.
    if let Held::Own(guard) = &guard
        && !connection.client.store().capabilities().detects_death
    {
        guardian.hand_over(&PendingRelease::new(&connection.url, guard));
    }
    let job = match Job::start(command, guardian) {
        Ok(job) => job,
        Err(error) => {
            release(guard).await;
            return Err(start_failure(&line[0], &error));
        }
    };
    let end = supervise::supervise(connection, &job, &guard, &mut signals, arguments).await?;
    // A signal from the terminal, or one that tenure has forwarded, ends tenure as well.
    let from_terminal = job.finish(end.signal.filter(|_| !end.forwarded));
    let own_signal = from_terminal.or(end.signal.filter(|_| end.forwarded));
    let Some(code) = end.code else {
        // The command may still run, so the lock is not released: it stays held until its TTL ends.
        std::mem::forget(guard);
        return Ok(exit::LOST);
    };
    let name = guard.name().clone();
    let still_held = release(guard).await;
    if end.lost {
        return Ok(exit::LOST);
    }
    if !still_held {
        let why =
            format!("lost the lock {name:?} before the command ended: check the command's results");
        return Err(Failure::new(exit::LOST, why));
    }
    Ok(match own_signal {
        Some(signal) => exit::with_signal(signal),
        None => code,
    })
}

/// Releases the lock. Returns `false` if it turns out that it was lost before.
async fn release(guard: Held) -> bool {
    let was_valid = guard.is_valid();
    match guard.release().await {
        Ok(()) => true,
        Err(error) if was_valid && error.kind() != ErrorKind::Lost => {
            output::report(&format!(
                "{}; it becomes free when its TTL has passed",
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
        // A surrounding `tenure run` may have set it for another lock.
        None => command.env_remove("TENURE_TOKEN"),
    };
    match connection.url.password() {
        Some(password) if !arguments.withhold_password => {
            command.env("TENURE_STORE_PASSWORD", password);
            // The command may change TENURE_STORE, but the password belongs to this store only.
            command.env("TENURE_STORE_PASSWORD_FOR", connection.url.to_string());
        }
        // A surrounding `tenure run` may have set them for another store.
        _ => {
            command.env_remove("TENURE_STORE_PASSWORD").env_remove("TENURE_STORE_PASSWORD_FOR");
        }
    };
    if arguments.withhold_password {
        command.env_remove("TENURE_PASSWORD");
    }
    command
}

/// The default label: the program's name without its arguments, which may contain secrets.
fn label(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    output::printable(&name.to_string_lossy())
}
