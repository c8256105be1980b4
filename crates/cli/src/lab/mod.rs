//! `tenure lab`: hazards against algorithms, on private servers.

mod lock_set;
mod matrix;
mod soak;

use std::path::PathBuf;

use tenure_lab::{ClientProgram, Experiment, Lab};
use tenure_lab::{algorithms, hazards, report};
use tokio::signal::unix::{SignalKind, signal};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::stores::registry;

pub(crate) fn execute(store: &str, arguments: &args::Lab, output: &Output) -> Outcome {
    match &arguments.lab {
        args::Labs::Ls(_) => list(output),
        args::Labs::Run(arguments) => run(arguments, output),
        args::Labs::Matrix(arguments) => matrix::execute(arguments, output),
        args::Labs::LockSet(arguments) => lock_set::execute(store, arguments, output),
        args::Labs::Soak(arguments) => soak::execute(store, arguments, output),
        args::Labs::Client(_) => tenure_lab::play_part()
            .map(|()| exit::OK)
            .map_err(|error| Failure::new(exit::INTERNAL, error.to_string())),
    }
}

/// A laboratory whose clients are this program, and the directory of its servers.
fn lab() -> Result<(Lab, impl Drop), Failure> {
    let folder = private_folder()?;
    Ok((Lab::new(client_program()?), folder))
}

/// The directory of all servers that are started from now on.
fn private_folder() -> Result<impl Drop, Failure> {
    let folder = tenure_lab::private_folder()
        .map_err(|error| Failure::system("make a directory for servers", &error))?;
    remove_when_interrupted(folder.path().to_owned());
    Ok(folder)
}

/// Removes the directory at the first SIGINT or SIGTERM, and ends by that signal's code. The servers and clients end
/// with this process, however it ends.
fn remove_when_interrupted(folder: PathBuf) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        let code = runtime.block_on(async {
            let mut term = signal(SignalKind::terminate()).ok()?;
            let mut interrupt = signal(SignalKind::interrupt()).ok()?;
            tokio::select! {
                _ = term.recv() => Some(128 + 15),
                _ = interrupt.recv() => Some(128 + 2),
            }
        });
        if let Some(code) = code {
            // A server that still runs may write while its directory is removed.
            for _ in 0..5 {
                if std::fs::remove_dir_all(&folder).is_ok() {
                    break;
                }
            }
            std::process::exit(code);
        }
    });
}

fn client_program() -> Result<ClientProgram, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::system("find itself", &error))?;
    Ok(ClientProgram { program, arguments: ["lab", "client"].map(String::from).into() })
}

/// Whether other processes can use the store.
fn check_is_shared(store: &str) -> Result<(), Failure> {
    if registry().parse(store)?.scheme().name() == "memory" {
        let why = "other processes do not see a memory: store: choose another one";
        return Err(Failure::new(exit::USAGE, why));
    }
    Ok(())
}

fn list(output: &Output) -> Outcome {
    if output.is_json() {
        for hazard in hazards::all() {
            let object = serde_json::json!({"hazard": hazard.id, "title": hazard.title, "story": hazard.story});
            if let Err(closed) = output.object(&object) {
                return closed.outcome();
            }
        }
        for info in algorithms::all() {
            let object = serde_json::json!({"algorithm": info.id, "title": info.title, "specimen": info.is_specimen});
            if let Err(closed) = output.object(&object) {
                return closed.outcome();
            }
        }
        return Ok(exit::OK);
    }
    let hazards =
        hazards::all().map(|hazard| vec![hazard.id.into(), hazard.title.into()]).collect();
    let algorithms = algorithms::all().iter().map(|info| {
        let kind = if info.is_specimen { "specimen" } else { "tenure" };
        vec![info.id.into(), kind.into(), info.title.into()]
    });
    let written = output
        .table(&["HAZARD", "WHAT HAPPENS"], hazards)
        .and_then(|()| output.line(""))
        .and_then(|()| output.table(&["ALGORITHM", "KIND", "WHAT IT IS"], algorithms.collect()));
    output::exit_code(written, exit::OK)
}

fn run(arguments: &args::LabRun, output: &Output) -> Outcome {
    let hazard =
        hazards::find(&arguments.hazard).ok_or_else(|| unknown("hazard", &arguments.hazard))?;
    let algorithm = algorithms::find(&arguments.algorithm)
        .ok_or_else(|| unknown("algorithm", &arguments.algorithm))?;
    let (lab, _folder) = lab()?;
    let played = lab.with_seed(arguments.seed).play(Experiment { hazard, algorithm });
    let written = match output.is_json() {
        true => output.object(&played),
        false => output.line(report::story(&played)),
    };
    let code = code_of(&played.outcome);
    matrix::publish(arguments.html.as_deref(), arguments.open, &[played])?;
    output::exit_code(written, code)
}

/// The exit code of `lab run`.
fn code_of(outcome: &tenure_lab::Outcome) -> u8 {
    match outcome {
        tenure_lab::Outcome::Missing(_) => exit::UNAVAILABLE,
        _ if outcome.word() == "void" => exit::UNSAFE,
        _ => exit::OK,
    }
}

fn unknown(what: &str, name: &str) -> Failure {
    Failure::new(exit::USAGE, format!("there is no {what} {name:?}: `tenure lab ls` lists them"))
}

#[cfg(test)]
mod tests {
    use tenure_lab::Outcome;

    use super::*;

    #[test]
    fn an_experiment_that_shows_nothing_does_not_succeed() {
        assert_eq!(code_of(&Outcome::Void("it does not end".into())), exit::UNSAFE);
        assert_eq!(code_of(&Outcome::Missing("no server".into())), exit::UNAVAILABLE);
        assert_eq!(code_of(&Outcome::NotApplicable("no tokens".into())), exit::OK);
    }
}
