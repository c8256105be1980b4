//! `tenure completions`: completion scripts for shells.

use crate::args::{self, Completions};
use crate::exit::{self, Outcome};
use crate::output;

pub(crate) fn execute(arguments: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut args::command(), "tenure", &mut script);
    output::write(&script).map_or_else(|closed| closed.outcome(), |()| Ok(exit::OK))
}
