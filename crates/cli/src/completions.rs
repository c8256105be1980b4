//! `tenure completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::args::{Arguments, Completions};
use crate::exit::{self, Outcome};
use crate::output;

pub(crate) fn execute(arguments: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "tenure", &mut script);
    output::write(&script).map_or_else(|closed| closed.outcome(), |()| Ok(exit::OK))
}
