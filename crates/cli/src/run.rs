//! `tenure run`: runs a command while holding a lock.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tenure::ErrorKind;
use tokio::time::{Instant, sleep_until};

use crate::args;
use crate::child::{Guardian, Job, PendingRelease, check_program, start_failure};
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::front::Front;
use crate::lock::Held;
use crate::once_per::{self, OncePer};
use crate::signals::Signals;
use crate::supervise::{Backstop, CommandEnd, Terms};
use crate::{lock, nested, output, show, supervise};

/// The signals that are forwarded to the command, besides the termination signals.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH, Signal::TSTP, Signal::CONT];

/// Runs the command of the arguments. With `--at-least`, this is the child of the foreground process
/// `front`.
pub(crate) async fn execute(store: &str, arguments: &args::Run, front: Option<Front>) -> Outcome {
    lock::check_name(&arguments.lock.name)?;
    check_times(arguments)?;
    // Before the lock is waited for.
    check_program(&command_line(&arguments.program)[0])?;
    let mut signals = Signals::listen()?;
    let guardian = Guardian::start(Stdio::null())
        .map_err(|error| Failure::system("start the guardian", &error))?;
    let opening = signals.unless_interrupted(Connection::open_for(store, &arguments.lock)).await;
    let connection = match opening {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::with_signal(signal)),
    };
    let outcome = run_under_lock(&connection, arguments, signals, guardian, front).await;
    connection.close(&outcome).await;
    outcome
}

/// Acquires the lock and runs the command, unless `--once-per` says otherwise.
async fn run_under_lock(
    connection: &Connection,
    arguments: &args::Run,
    mut signals: Signals,
    guardian: Guardian,
    front: Option<Front>,
) -> Outcome {
    let once_per = OncePer::new(connection, arguments)?;
    // Before the lock is waited for.
    if let Some(once_per) = &once_per {
        match signals.unless_interrupted(once_per.skip()).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(code))) => return Ok(code),
            Ok(Err(failure)) => return Err(failure),
            Err(signal) => return Ok(exit::with_signal(signal)),
        }
    }
    let label = label(&arguments.program);
    let acquiring = lock::acquire(connection, &arguments.lock, &label);
    match signals.unless_interrupted(acquiring).await {
        Ok(Ok(guard)) => {
            let held = HeldSince { guard, start: Instant::now() };
            run_once(connection, held, arguments, signals, guardian, once_per, front).await
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(exit::with_signal(signal)),
    }
}

/// Refuses limits that contradict each other.
fn check_times(arguments: &args::Run) -> Result<(), Failure> {
    match (arguments.lock.max_hold, arguments.at_least) {
        (Some(most), Some(least)) if most < least => {
            let why = "--max-hold is shorter than --at-least: the lock cannot be held for both";
            Err(Failure::new(exit::USAGE, why))
        }
        _ => Ok(()),
    }
}

/// A lock, and when it was acquired.
struct HeldSince {
    guard: Held,
    start: Instant,
}

/// Runs the command under the lock, unless it has run within `--once-per`.
async fn run_once(
    connection: &Connection,
    held: HeldSince,
    arguments: &args::Run,
    mut signals: Signals,
    guardian: Guardian,
    once_per: Option<OncePer>,
    front: Option<Front>,
) -> Outcome {
    let run = match once_per {
        None => None,
        Some(once_per) => {
            let starting = once_per.start(connection, held.guard.token());
            let outcome = match signals.unless_interrupted(starting).await {
                Ok(Ok(Ok(run))) => Ok(run),
                Ok(Ok(Err(code))) => Err(Ok(code)),
                Ok(Err(failure)) => Err(Err(failure)),
                Err(signal) => Err(Ok(exit::with_signal(signal))),
            };
            match outcome {
                Ok(run) => Some(run),
                Err(outcome) => {
                    release(held.guard).await;
                    return outcome;
                }
            }
        }
    };
    run_command(connection, held, arguments, signals, guardian, run, front).await
}

/// Runs the command under the lock, then releases the lock.
async fn run_command(
    connection: &Connection,
    held: HeldSince,
    arguments: &args::Run,
    mut signals: Signals,
    guardian: Guardian,
    run: Option<once_per::Run>,
    front: Option<Front>,
) -> Outcome {
    let HeldSince { guard, start } = held;
    signals.add(&FORWARDED)?;
    let args::Run { program, on_lost, at_least, lock, .. } = arguments;
    let terms = Terms {
        on_lost: *on_lost,
        grace: program.grace,
        max_hold: lock.max_hold,
        at_least: at_least.map(|time| time.saturating_sub(start.elapsed())),
    };
    let end = match run_under(connection, &guard, program, terms, &mut signals, guardian).await {
        Ok(end) => end,
        Err(failure) => {
            release(guard).await;
            return Err(failure);
        }
    };
    let Some(code) = end.code else {
        // The command may still run, so the lock is not released: it stays held until its TTL ends.
        std::mem::forget(guard);
        return Ok(exit::LOST);
    };
    let succeeded = code == exit::OK && end.own_signal.is_none() && !end.lost && guard.is_valid();
    let finished = match run.filter(|_| succeeded) {
        Some(run) => run.finish().await,
        None => Ok(()),
    };
    let exit_code = || if end.lost { exit::LOST } else { end.exit_code(code) };
    if let Some(left) = still_to_hold(&guard, start, arguments, end.asked) {
        return stay(front, guard, left, signals, finished.map(|()| exit_code())).await;
    }
    let name = guard.name().clone();
    if !release(guard).await && !end.lost {
        let why =
            format!("lost the lock {name:?} before the command ended: check the command's results");
        return Err(Failure::new(exit::LOST, why));
    }
    finished.map(|()| exit_code())
}

/// How long the lock must still be held because of `--at-least`.
fn still_to_hold(
    guard: &Held,
    start: Instant,
    arguments: &args::Run,
    asked: bool,
) -> Option<Duration> {
    let left = arguments.at_least?.saturating_sub(start.elapsed());
    let own = matches!(guard, Held::Own(_)) && guard.is_valid();
    (own && !asked && !left.is_zero()).then_some(left)
}

/// Lets the foreground process exit, if there is one, and holds the lock until the time is over, the lock
/// is lost or wanted back, or a signal comes.
async fn stay(
    front: Option<Front>,
    guard: Held,
    left: Duration,
    mut signals: Signals,
    outcome: Outcome,
) -> Outcome {
    let code = outcome.unwrap_or_else(|failure| {
        output::report(&failure.message);
        failure.code
    });
    let (name, time, pid) = (guard.name(), show::duration(left), std::process::id());
    match front {
        Some(_) if output::shows_progress() => {
            output::note(&format!("process {pid} holds the lock {name:?} for another {time}"));
        }
        Some(_) => {}
        None => output::note(&format!(
            "waiting for another {time} because of --at-least: the container ends with this process"
        )),
    }
    let until = Instant::now() + left;
    let mut in_background = false;
    if let Some(front) = front {
        match front.dismiss(code).await {
            Ok(()) => in_background = true,
            // The lock must stay taken all the same.
            Err(error) => {
                output::report(&Failure::system("go to the background", &error).message);
            }
        }
    }
    // Those that have ended the command.
    signals.discard();
    tokio::select! {
        biased;
        _ = guard.lost() => {}
        _ = guard.revoked() => {}
        _ = signals.termination() => {}
        () = sleep_until(until) => {}
    }
    release(guard).await;
    Ok(if in_background { exit::OK } else { code })
}

/// Runs the command under the lock until it has ended, with a guardian that has no command yet.
pub(crate) async fn run_under(
    connection: &Connection,
    guard: &Held,
    program: &args::Program,
    terms: Terms,
    signals: &mut Signals,
    guardian: Guardian,
) -> Result<CommandEnd, Failure> {
    let line = command_line(program);
    let mut command = prepare(&line, guard, connection, program);
    command.env(nested::VARIABLE, nested::variable_for(guard, connection)?);
    // An inherited lock is released by the surrounding `tenure run`.
    if let Held::Own(guard) = &guard
        && !connection.client.store().capabilities().detects_death
    {
        guardian.hand_over(&PendingRelease::new(&connection.url, guard, terms.at_least));
    }
    let clock = connection.client.store().capabilities().clock;
    let backstop = Backstop::new(guard, terms, clock);
    backstop.send(&guardian);
    let job = Job::start(command, guardian).map_err(|error| start_failure(&line[0], &error))?;
    let mut end = supervise::supervise(connection, &job, guard, signals, terms, &backstop).await?;
    // A signal from the terminal, or one that tenure has forwarded, ends tenure as well.
    let from_terminal = job.finish(end.signal.filter(|_| !end.forwarded));
    end.own_signal = from_terminal.or(end.signal.filter(|_| end.forwarded));
    Ok(end)
}

/// Releases the lock. Returns `false` if it turns out that it was lost before.
pub(crate) async fn release(guard: Held) -> bool {
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
pub(crate) fn command_line(program: &args::Program) -> Vec<OsString> {
    match &program.shell_line {
        Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        None => program.command.clone(),
    }
}

fn prepare(
    line: &[OsString],
    guard: &Held,
    connection: &Connection,
    program: &args::Program,
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
        Some(password) if !program.withhold_password => {
            command.env("TENURE_STORE_PASSWORD", password);
            // The command may change TENURE_STORE, but the password belongs to this store only.
            command.env("TENURE_STORE_PASSWORD_FOR", connection.url.to_string());
        }
        // A surrounding `tenure run` may have set them for another store.
        _ => {
            command.env_remove("TENURE_STORE_PASSWORD").env_remove("TENURE_STORE_PASSWORD_FOR");
        }
    };
    if program.withhold_password {
        command.env_remove("TENURE_PASSWORD");
    }
    command
}

/// The default label: the program's name without its arguments, which may contain secrets.
pub(crate) fn label(program: &args::Program) -> String {
    let program = &command_line(program)[0];
    let name = Path::new(program).file_name().unwrap_or(program);
    output::printable(&name.to_string_lossy())
}
