//! `tenure lab`: hazards against algorithms, on private servers.

mod lock_set;
mod matrix;

use std::time::Duration;

use tenure_lab::lock_set as set;
use tenure_lab::{ClientProgram, Experiment, Lab};
use tenure_lab::{algorithms, client, hazards, report};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};

pub(crate) fn execute(store: &str, arguments: &args::Lab, output: &Output) -> Outcome {
    match &arguments.lab {
        args::Labs::Ls(_) => list(output),
        args::Labs::Run(arguments) => run(arguments, output),
        args::Labs::Matrix(arguments) => matrix::execute(arguments, output),
        args::Labs::LockSet(arguments) => lock_set::execute(store, arguments, output),
        args::Labs::Client(arguments) => be_client(arguments),
    }
}

/// A laboratory whose clients are this program.
fn lab() -> Result<Lab, Failure> {
    Ok(Lab::new(client_program()?))
}

fn client_program() -> Result<ClientProgram, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::system("find itself", &error))?;
    Ok(ClientProgram { program, arguments: ["lab", "client"].map(String::from).into() })
}

fn be_client(arguments: &args::LabClient) -> Outcome {
    if arguments.algorithm == "lock-set" {
        let args::LabClient { name, servers: lock, resource, url, ttl, .. } = arguments;
        let worked = set::work(name, lock, resource, url, Duration::from_millis(*ttl));
        worked.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        return Ok(exit::OK);
    }
    let part = client::Part {
        name: arguments.name.clone(),
        algorithm: arguments.algorithm.clone(),
        servers: arguments.servers.split(',').map(str::to_owned).collect(),
        resource: arguments.resource.clone(),
        options: client::Options { url: arguments.url.clone(), max_hold: arguments.max_hold },
    };
    client::play(&part).map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    Ok(exit::OK)
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
    let played = lab()?.play(Experiment { hazard, algorithm });
    let written = match output.is_json() {
        true => output.object(&played),
        false => output.line(report::story(&played)),
    };
    matrix::publish(arguments.html.as_deref(), arguments.open, &[played])?;
    output::exit_code(written, exit::OK)
}

fn unknown(what: &str, name: &str) -> Failure {
    Failure::new(exit::USAGE, format!("there is no {what} {name:?}: `tenure lab ls` lists them"))
}
