//! The test programs: built once, run two at a time, each to its end whatever the others do.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::Instant;

use serde_json::Value;

use crate::steps::cargo;

/// Tests wait more than they work. More at a time would make each wait for the others.
const LANES: usize = 2;

/// The package whose test programs are one suite a store.
const CONFORMANCE: &str = "conformance";

/// One test program.
#[derive(Debug)]
pub(crate) struct Program {
    /// The folder of its package, where it is run.
    folder: PathBuf,
    file: PathBuf,
    target: String,
}

/// What became of one.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) said: String,
    pub(crate) sound: bool,
    pub(crate) seconds: u64,
}

impl Program {
    /// `None` for anything else that cargo tells about.
    fn read(line: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(line).ok()?;
        told["profile"]["test"].as_bool().filter(|is_test| *is_test)?;
        let file = PathBuf::from(told["executable"].as_str()?);
        let folder = Path::new(told["manifest_path"].as_str()?).parent()?.to_path_buf();
        let target = told["target"]["name"].as_str()?.to_owned();
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

    /// Runs it to its end. It writes to a file, so that what it says stays in one piece.
    fn run(&self) -> Run {
        let started = Instant::now();
        let (said, sound) = self.outcome().unwrap_or_else(|error| (error.to_string(), false));
        Run { name: self.name(), said, sound, seconds: started.elapsed().as_secs() }
    }

    fn outcome(&self) -> io::Result<(String, bool)> {
        let path = self.file.with_extension("said");
        let output = File::create(&path)?;
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = command.status()?;
        let said = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        Ok((said, status.success()))
    }
}

/// Builds the test programs of all packages. `None`: they do not compile.
pub(crate) fn build() -> Option<Vec<Program>> {
    let arguments = ["test", "--workspace", "--all-targets", "--no-run"];
    let mut command = cargo(&arguments);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().ok()?;
    let mut programs: Vec<Program> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::read).collect();
    // The suites take longest: whatever comes after them fills the gaps.
    programs.sort_by_key(|program| (!program.is_suite(), program.name()));
    output.status.success().then_some(programs)
}

/// Runs them all, and tells of each when it has ended.
pub(crate) fn run(programs: Vec<Program>, ended: &Sender<Run>) {
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(program) = next() {
                    // Nobody listens any more only if all has ended.
                    let _ = ended.send(program.run());
                }
            });
        }
    });
}

/// Shows what a program said, as it would have if it had been run alone.
pub(crate) fn show(run: &Run) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "== {} ({} s)", run.name, run.seconds)?;
    output.write_all(run.said.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_told_from_other_things() {
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
