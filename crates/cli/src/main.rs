//! The `tenure` command: distributed locks for shell scripts and cron jobs. `tenure --help` and the
//! manual page document its interface.
//!
//! Each subcommand is a module with a function `execute`. `tenure run` goes through `run` (the whole
//! sequence), `lock` (acquires the lock), `child` (starts the command and its guardian) and
//! `supervise` (forwards signals, and ends the command if the lock is lost).

mod args;
mod background;
mod child;
mod completions;
mod connection;
mod doctor;
#[cfg(test)]
mod documented;
mod exit;
mod hold;
mod lock;
mod loss_schedule;
mod ls;
mod man;
mod nested;
mod output;
mod process;
mod release;
mod run;
mod show;
mod signals;
mod status;
mod stores;
mod supervise;
mod usage;
mod wait_report;
mod watch;

use std::process::ExitCode;

use args::{Arguments, Command};
use exit::{Failure, Outcome};

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
        Command::Run(arguments) => in_runtime(run::execute(store, &arguments)),
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
        Command::Doctor(_) => in_runtime(doctor::execute(store, &output)),
        Command::Completions(arguments) => completions::execute(&arguments),
        Command::Man(_) => man::execute(),
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
