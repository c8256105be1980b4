//! Other projects' programs, which `cargo xtask clients` prepares.

use std::io;
use std::path::{Path, PathBuf};

use crate::{Process, lacks, skip};

/// Another project's program, such as a lock client or a server.
#[derive(Debug)]
pub struct ExternalClient {
    /// The name of its launch script.
    pub name: &'static str,
    /// What it needs: programs, or files by their absolute paths.
    pub needs: &'static [&'static str],
}

impl ExternalClient {
    /// Whether it cannot run here. If so, reports the test as skipped.
    pub fn is_missing(&self, test: &str) -> bool {
        let test = format!("{}: {test}", self.name);
        if self.needs.iter().any(|program| lacks(program, &test)) {
            return true;
        }
        let unprepared = self.launcher().is_none();
        if unprepared {
            skip(&test, "it is not prepared: `cargo xtask clients` fetches it");
        }
        unprepared
    }

    /// Starts it with these arguments.
    ///
    /// # Errors
    /// If it is not there, or cannot be started.
    pub fn start(&self, words: &[&str]) -> io::Result<Process> {
        let launcher = self.launcher().ok_or(io::ErrorKind::NotFound)?;
        let launcher = launcher.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        Process::start(Path::new("sh"), &[&[launcher], words].concat())
    }

    /// Its launch script, in the target directory, which also contains the test program that asks.
    pub(crate) fn launcher(&self) -> Option<PathBuf> {
        let test_program = std::env::current_exe().ok()?;
        let here =
            test_program.ancestors().map(|folder| folder.join("interop/launch").join(self.name));
        here.into_iter().find(|file| file.is_file())
    }
}
