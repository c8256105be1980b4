//! Programs of other projects, as `cargo xtask clients` makes them ready.

use std::io;
use std::path::{Path, PathBuf};

use crate::{Process, lacks, skip};

/// A program of another project, and what it cannot do without.
#[derive(Debug)]
pub struct Neighbour {
    /// What it is called here.
    pub name: &'static str,
    /// Programs, or files by their absolute paths.
    pub needs: &'static [&'static str],
}

impl Neighbour {
    /// Whether it cannot be run here. Says so, by its name and the test's.
    pub fn is_missing(&self, test: &str) -> bool {
        let test = format!("{}: {test}", self.name);
        if self.needs.iter().any(|program| lacks(program, &test)) {
            return true;
        }
        let unprepared = self.launcher().is_none();
        if unprepared {
            skip(&test, "it is not here: `cargo xtask clients` fetches it");
        }
        unprepared
    }

    /// Starts it, with these words behind its name.
    ///
    /// # Errors
    /// If it is not there, or cannot be started.
    pub fn start(&self, words: &[&str]) -> io::Result<Process> {
        let launcher = self.launcher().ok_or(io::ErrorKind::NotFound)?;
        let launcher = launcher.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        Process::start(Path::new("sh"), &[&[launcher], words].concat())
    }

    /// Written when the program is ready to run, into the target directory, in which the program
    /// that asks is, too.
    pub(crate) fn launcher(&self) -> Option<PathBuf> {
        let asks = std::env::current_exe().ok()?;
        let here = asks.ancestors().map(|folder| folder.join("interop/launch").join(self.name));
        here.into_iter().find(|file| file.is_file())
    }
}
