//! What a client process does, as the laboratory tells it.
//!
//! A part is passed in an environment variable: the URL of a store may have a password, and `ps` shows arguments to
//! every user of the machine.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{client, lock_set, soak};

const VARIABLE: &str = "TENURE_LAB_PART";

/// What a client process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// A client of an experiment.
    Experiment(client::Part),
    /// A process that adds to a set under a lock.
    LockSet(lock_set::Part),
    /// A process of a soak.
    Soak(soak::Part),
}

/// How client processes are started.
#[derive(Clone, Debug)]
pub struct ClientProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. It calls [`play_part`].
    pub arguments: Vec<String>,
}

impl ClientProgram {
    /// The command of a process that plays this part.
    pub(crate) fn command(&self, part: &Part) -> io::Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env(VARIABLE, serde_json::to_string(part)?);
        Ok(command)
    }
}

/// Plays the part for which the laboratory has started this process, until its standard input ends.
///
/// # Errors
/// If this process was not started by a laboratory, or its servers do not answer.
pub fn play_part() -> io::Result<()> {
    let unknown = || io::Error::other("only the laboratory starts its clients");
    let part = std::env::var(VARIABLE).map_err(|_| unknown())?;
    match serde_json::from_str(&part)? {
        Part::Experiment(part) => client::play(&part),
        Part::LockSet(part) => lock_set::work(&part),
        Part::Soak(part) => soak::work(part),
    }
}
