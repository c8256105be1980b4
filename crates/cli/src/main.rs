//! The `tenure` command: distributed locks for shell scripts and cron jobs. `tenure --help` and the
//! manual page document its interface.
//!
//! Each subcommand is a module with a function `execute`. `tenure run` goes through `run` (the whole
//! sequence), `lock` (acquires the lock), `child` (starts the command and its guardian) and
//! `supervise` (forwards signals, and ends the command if the lock is lost). `tenure elect` repeats this
//! sequence for each term of leadership.

mod args;
mod audit;
mod background;
mod bench;
mod blame;
mod child;
mod command_lock;
mod connection;
mod demo;
mod doctor;
#[cfg(test)]
mod documented;
mod elect;
mod exit;
mod front;
mod generated;
mod hold;
#[cfg(feature = "lab")]
mod lab;
#[cfg(any(feature = "top", feature = "ui"))]
mod live;
mod lock;
mod loss_schedule;
mod ls;
#[cfg(feature = "metrics")]
mod metrics;
mod nested;
mod once_per;
mod output;
mod process;
mod progress;
mod release;
mod revoke;
mod run;
mod show;
mod signals;
mod status;
mod stores;
mod supervise;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "ui")]
mod ui;
mod usage;
mod wait_report;
mod watch;

use std::process::ExitCode;

use args::{Arguments, Command};
use exit::{Failure, Outcome};
use rustix::process::getpid;

fn main() -> ExitCode {
    if child::is_guardian() {
        return child::run_guardian();
    }
    let Arguments { global, command } = match usage::arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    output::set_up(global.quiet, global.verbose);
    connection::warn_of_visible_password(&global);
    let code = execute(&global, command).unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            output::report(&failure.message);
        }
        failure.code
    });
    if let Some(signal) = exit::final_signal() {
        child::raise_with_default_action(signal);
    }
    ExitCode::from(code)
}

fn execute(global: &args::Global, command: Command) -> Outcome {
    let output = output::Output::new(global.json);
    let store = &global.store;
    match command {
        Command::Run(arguments) => match arguments.at_least {
            // The end of the first process of a container ends all others: it must stay itself.
            Some(_) if !getpid().is_init() => {
                front::execute(|front| in_runtime(run::execute(store, &arguments, Some(front))))
            }
            _ => in_runtime(run::execute(store, &arguments, None)),
        },
        Command::Elect(arguments) => in_runtime(elect::execute(store, &arguments, &output)),
        Command::Hold(arguments) => match arguments.fd {
            Some(fd) => background::execute(fd, |caller| {
                in_runtime(hold::execute(store, &arguments, &output, Some(caller)))
            }),
            None => in_runtime(hold::execute(store, &arguments, &output, None)),
        },
        Command::Ls(arguments) => in_runtime(ls::execute(store, &arguments, &output)),
        Command::Status(arguments) => in_runtime(status::execute(store, &arguments, &output)),
        Command::Watch(arguments) => in_runtime(watch::execute(store, &arguments, &output)),
        Command::Release(arguments) => in_runtime(release::execute(store, &arguments, &output)),
        Command::Revoke(arguments) => in_runtime(revoke::execute(store, &arguments, &output)),
        Command::Audit(arguments) => in_runtime(audit::execute(store, &arguments, &output)),
        Command::Blame(arguments) => in_runtime(blame::execute(store, &arguments, &output)),
        #[cfg(feature = "top")]
        Command::Top(arguments) => in_runtime(top::execute(store, &arguments)),
        #[cfg(feature = "ui")]
        Command::Ui(arguments) => in_runtime(ui::execute(store, &arguments, &output)),
        Command::Doctor(_) => in_runtime(doctor::execute(store, &output)),
        Command::Bench(arguments) => in_runtime(bench::execute(store, &arguments, &output)),
        Command::Demo(args::Demo { demo: args::Demos::Oversell(arguments) }) => {
            in_runtime(demo::execute(store, &arguments, &output))
        }
        #[cfg(feature = "lab")]
        Command::Lab(arguments) => lab::execute(store, &arguments, &output),
        Command::Completions(arguments) => generated::completions(&arguments),
        Command::Man(_) => generated::manual(),
    }
}

/// Runs a command on the main thread: the parent-death signal of a child process depends on the
/// thread that started it.
fn in_runtime(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("start", &error))?;
    let outcome = runtime.block_on(command);
    // Abandons blocking tasks, such as a read from standard input that has not returned.
    runtime.shutdown_background();
    outcome
}
