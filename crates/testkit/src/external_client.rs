//! Other projects' programs, which `cargo xtask clients` prepares.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
            skip(&test, "the client is not prepared: `cargo xtask clients` fetches it");
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

/// A row of the tables in docs/neighbours.md: a lock that another project's client shares with tenure.
#[derive(Clone, Copy, Debug)]
pub struct SharedLock<'a> {
    /// The client, with its version.
    pub client: &'a str,
    /// Its kind of lock.
    pub kind: &'a str,
    /// What tenure holds for it.
    pub ours: &'a str,
    /// What must be set.
    pub setting: &'a str,
}

/// Reports that `contenders` of ours and as many of a client's have added to one counter under a lock and lost no
/// update: another row of docs/neighbours.md.
pub fn report_count(client: &str, contenders: &str, ours: u64, theirs: u64) {
    let counted = ours + theirs;
    let row = format!("| {client} | {contenders} | {ours} | {theirs} | {counted} |");
    let _ = writeln!(io::stdout(), "counted: {row}");
}

impl SharedLock<'_> {
    /// Reports that a test has seen the lock handed over from theirs to ours, and from ours to theirs, in these
    /// times. `cargo xtask neighbours` writes the table from such lines, and `cargo xtask test` compares them.
    pub fn report(&self, to_ours: Duration, to_theirs: Duration) {
        let Self { client, kind, ours, setting } = self;
        let [to_ours, to_theirs] = [to_ours, to_theirs].map(|time| time.as_millis());
        // Past the harness's capture. Nothing is lost if it cannot be written but the row.
        let _ = writeln!(
            io::stdout(),
            "shared: | {client} | {kind} | {ours} | {setting} | {to_ours} ms | {to_theirs} ms |"
        );
    }
}
