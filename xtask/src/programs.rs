//! The test programs of all packages: built once, run two at a time, each to its end even if others fail.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::Instant;

use serde_json::Value;

use crate::steps::cargo;

/// How many test programs run at a time. More would compete for the processors and slow each other down.
const PARALLEL: usize = 2;

/// The package that has one test program per store.
const CONFORMANCE: &str = "conformance";

/// One test program.
#[derive(Debug)]
pub(crate) struct Program {
    /// The folder of its package, where it is run.
    folder: PathBuf,
    file: PathBuf,
    target: String,
}

/// The outcome of one test program.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) output: String,
    pub(crate) sound: bool,
    pub(crate) seconds: u64,
}

impl Program {
    /// Reads a message of cargo's. `None` if it is not about a test program.
    fn read(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        message["profile"]["test"].as_bool().filter(|is_test| *is_test)?;
        let file = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        let target = message["target"]["name"].as_str()?.to_owned();
        Some(Self { folder, file, target })
    }

    fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub(crate) fn is_suite(&self) -> bool {
        let is_own = self.target.starts_with("tenure") || self.target == "holder";
        self.package() == CONFORMANCE && !is_own
    }

    /// `conformance: etcd`, or `tests: etcd/faults`.
    pub(crate) fn name(&self) -> String {
        match self.is_suite() {
            true => format!("{CONFORMANCE}: {}", self.target),
            false => format!("tests: {}/{}", self.package(), self.target),
        }
    }

    /// Runs it to its end, with its output in a file, so that outputs do not mix.
    fn run(&self) -> Run {
        let started = Instant::now();
        let (output, sound) = self.outcome().unwrap_or_else(|error| (error.to_string(), false));
        Run { name: self.name(), output, sound, seconds: started.elapsed().as_secs() }
    }

    fn outcome(&self) -> io::Result<(String, bool)> {
        let path = self.file.with_extension("output");
        let file = File::create(&path)?;
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status()?;
        let output = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        Ok((output, status.success()))
    }
}

/// Builds the test programs of all packages. `None` if they do not compile.
pub(crate) fn build() -> Option<Vec<Program>> {
    let arguments = ["test", "--workspace", "--all-targets", "--no-run"];
    let mut command = cargo(&arguments);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().ok()?;
    let mut programs: Vec<Program> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::read).collect();
    // The conformance suites take longest, so they start first.
    programs.sort_by_key(|program| (!program.is_suite(), program.name()));
    output.status.success().then_some(programs)
}

/// Runs all programs, and sends each outcome to `ended`.
pub(crate) fn run(programs: Vec<Program>, ended: &Sender<Run>) {
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                while let Some(program) = next() {
                    // The receiver is dropped only after the last program has ended.
                    let _ = ended.send(program.run());
                }
            });
        }
    });
}

/// Prints a program's output.
pub(crate) fn print(run: &Run) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "== {} ({} s)", run.name, run.seconds)?;
    output.write_all(run.output.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_test_programs_are_read() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/a/conformance/Cargo.toml",
            "target":{"name":"etcd"},"profile":{"test":true},"executable":"/t/etcd-1"}"#;
        let program = Program::read(line).expect("it is one");
        assert_eq!(program.name(), "conformance: etcd");
        let other = line.replace("conformance", "cli");
        assert_eq!(Program::read(&other).expect("it is one").name(), "tests: cli/etcd");
        let own = line.replace(r#""name":"etcd""#, r#""name":"tenure_conformance""#);
        assert!(!Program::read(&own).expect("it is one").is_suite());
        for nothing in [&line.replace("true", "false"), &line.replace("\"/t/etcd-1\"", "null"), ""]
        {
            assert!(Program::read(nothing).is_none(), "{nothing}");
        }
    }
}
