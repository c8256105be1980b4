//! The steps of `cargo xtask` and the report on them. Each step is a command that must succeed.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use crate::builds::{self, Plan};
use crate::interop::{self, Problem};
use crate::neighbours::Rows;
use crate::programs::{Job, Program, Run};
use crate::{packages, programs};

/// Runs the format check, the lints, the documentation, all tests, and the builds for every feature and
/// platform. Then prints what was run and what was skipped.
///
/// The test programs wait more than they compute: for terms that end, and for servers. So whatever only
/// compiles runs beside them, with a lower priority.
pub(crate) fn test() -> ExitCode {
    let started = Instant::now();
    let mut report = Report::default();
    for package in packages::provide() {
        report.skipped.push(format!("tests with {package}: the package could not be installed"));
    }
    // The downloads overlap with the compilation.
    let clients = std::thread::spawn(interop::provide);
    let builds = std::thread::spawn(builds::plan);
    let lints = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let sound = report.step("format", cargo(&["fmt", "--all", "--check"]));
    // The threads are joined even if a step failed, so that no download outlives this process.
    let panicked = |_| vec![Problem::Broken("the preparation of other clients panicked".into())];
    let clients = report.other_clients(|| clients.join().unwrap_or_else(panicked));
    let panicked = |_| Err(io::Error::other("the preparation of the builds panicked"));
    let builds = report.planned(builds.join().unwrap_or_else(panicked));
    let sound = sound
        && clients
        && builds.is_some_and(|builds| {
            let mut jobs = vec![
                Job::new("lints", cargo(&lints)),
                Job::new("documentation", documentation()),
                Job::new("examples in the documentation", cargo(&["test", "--workspace", "--doc"])),
                Job::new(
                    "an engine outside of the workspace: build",
                    engine_outside(&["--no-run"]),
                ),
            ];
            jobs.extend(builds);
            report.programs(jobs)
        })
        && report.step("tests: an engine outside of the workspace", engine_outside(&[]))
        && report.neighbours();
    report.print();
    println!("{} in {} s", if sound { "passed" } else { "FAILED" }, started.elapsed().as_secs());
    println!("{} passed, {} failed", report.passed, report.failed);
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks the licences and sources of all dependencies, the build with each feature alone, the builds
/// for macOS and Windows, and the build with the oldest supported compiler.
pub(crate) fn builds() -> ExitCode {
    let mut report = Report::default();
    let sound = report.planned(builds::plan()).is_some_and(|jobs| {
        let runs = jobs.into_iter().map(|job| report.ended(job.run()));
        runs.fold(true, |sound, passed| sound & passed)
    });
    report.print();
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Fetches other projects' lock clients, for a `cargo test` by hand.
pub(crate) fn clients() -> ExitCode {
    let mut report = Report::default();
    let sound = report.other_clients(interop::provide);
    report.print();
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the tests with other projects' lock clients, and writes what they have shown into docs/neighbours.md.
pub(crate) fn neighbours() -> ExitCode {
    const TESTS: [[&str; 6]; 3] = [
        ["test", "--package", "tenure-redis", "--test", "interop", "--no-fail-fast"],
        ["test", "--package", "tenure-etcd", "--test", "integration", "clients::"],
        ["test", "--package", "tenure-zookeeper", "--test", "interop", "handed_over"],
    ];
    let mut report = Report::default();
    let steps = TESTS.map(|words| report.step(&format!("tests: {}", words[2]), cargo(&words)));
    let sound = steps.iter().all(|sound| *sound);
    report.print();
    // A client that is not here keeps its rows.
    match report.shared.write(!sound || !report.skipped.is_empty()) {
        Ok(rows) => println!("docs/neighbours.md has {rows} rows"),
        Err(error) => {
            println!("docs/neighbours.md: {error}");
            return ExitCode::FAILURE;
        }
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the measurements, of which one starts the command.
pub(crate) fn bench(scenarios: &[&str]) -> ExitCode {
    let built = cargo(&["build", "--release", "--package", "tenure-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    let mut command = cargo(&["run", "--release", "--package", "tenure-bench", "--"]);
    command.args(scenarios);
    let sound = command.status().is_ok_and(|status| status.success());
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Generates the etcd client's stubs from its protocol file.
pub(crate) fn stubs() -> ExitCode {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/etcd/stubs/Cargo.toml");
    let mut command = cargo(&["run", "--manifest-path"]);
    let sound = command.arg(package).status().is_ok_and(|status| status.success());
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// The conformance suite on the engine in `examples/`, a crate of its own.
fn engine_outside(arguments: &[&str]) -> Command {
    let mut command = cargo(&["test", "--manifest-path", "examples/engine-sqlite/Cargo.toml"]);
    command.args(arguments);
    command
}

fn documentation() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// The results of all steps.
#[derive(Default)]
struct Report {
    passed: usize,
    failed: usize,
    /// Tests that are only run by hand.
    ignored: usize,
    skipped: Vec<String>,
    /// The locks that other projects' clients were seen to share.
    shared: Rows,
    conformance: Vec<(String, usize)>,
    /// The duration of each step, test program and job. Test programs and jobs overlap.
    seconds: Vec<(String, u64)>,
    /// The test programs and jobs that failed.
    broken: Vec<String>,
}

impl Report {
    /// Runs a step, prints its output as it comes, and collects the figures for the summary.
    fn step(&mut self, name: &str, mut command: Command) -> bool {
        println!("== {name}");
        let started = Instant::now();
        let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("cannot start {command:?}: {error}");
                return false;
            }
        };
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                println!("{line}");
                self.read(&line);
            }
        }
        let sound = child.wait().is_ok_and(|status| status.success());
        self.seconds.push((name.to_owned(), started.elapsed().as_secs()));
        sound
    }

    /// The builds that can be done. `None` if they cannot be planned, or a dependency must not be used.
    fn planned(&mut self, plan: io::Result<Plan>) -> Option<Vec<Job>> {
        let Plan { jobs, skipped, faults } = match plan {
            Ok(plan) => plan,
            Err(error) => Plan { faults: vec![error.to_string()], ..Plan::default() },
        };
        self.skipped.extend(skipped);
        faults.iter().for_each(|fault| println!("{fault}"));
        faults.is_empty().then_some(jobs)
    }

    /// Waits until other projects' lock clients are ready.
    fn other_clients(&mut self, provide: impl FnOnce() -> Vec<Problem>) -> bool {
        println!("== other clients");
        let started = Instant::now();
        let mut sound = true;
        for problem in provide() {
            match problem {
                Problem::Unavailable(why) => self.skipped.push(why),
                Problem::Broken(why) => {
                    println!("{why}");
                    sound = false;
                }
            }
        }
        self.seconds.push(("other clients".into(), started.elapsed().as_secs()));
        sound
    }

    /// Builds all test programs and runs each of them, even if some fail. Runs the jobs beside them.
    fn programs(&mut self, jobs: Vec<Job>) -> bool {
        println!("== tests: build");
        let started = Instant::now();
        let Some(programs) = programs::build() else { return false };
        self.seconds.push(("tests: build".into(), started.elapsed().as_secs()));
        if !programs.iter().any(Program::is_suite) {
            println!("no conformance suite was found");
            return false;
        }
        let (sender, ended) = mpsc::channel();
        let running = std::thread::spawn(move || programs::run(programs, jobs, &sender));
        let mut sound = true;
        for run in ended {
            sound &= self.ended(run);
        }
        running.join().is_ok() && sound
    }

    /// Prints the outcome of a program or a job, and collects its figures. Returns whether it passed.
    fn ended(&mut self, run: Run) -> bool {
        let sound = programs::print(&run).is_ok() && run.sound;
        let before = self.passed;
        run.output.lines().for_each(|line| self.read(line));
        if run.name.starts_with("conformance: ") {
            self.conformance.push((run.name.clone(), self.passed - before));
        }
        if !run.sound {
            self.broken.push(run.name.clone());
        }
        self.seconds.push((run.name, run.seconds));
        sound
    }

    /// Compares docs/neighbours.md with what the tests have shown.
    fn neighbours(&self) -> bool {
        let faults = self.shared.compare(&self.skipped);
        let faults = faults.unwrap_or_else(|error| vec![error.to_string()]);
        for fault in &faults {
            println!("docs/neighbours.md: {fault}: run `cargo xtask neighbours`");
        }
        faults.is_empty()
    }

    /// Reads a line of a test program: its counts, `skipped: why`, or a lock that is shared.
    fn read(&mut self, line: &str) {
        self.shared.read_report(line);
        if let Some((_, why)) = line.split_once("skipped: ") {
            self.skipped.push(why.to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, " passed");
            self.failed += count(counts, " failed");
            self.ignored += count(counts, " ignored");
        }
    }

    fn print(&self) {
        println!("== summary");
        for (step, seconds) in self.seconds.iter().filter(|(_, seconds)| *seconds >= 5) {
            println!("{seconds:>5} s  {step}");
        }
        for (suite, cases) in &self.conformance {
            println!("{suite}: {cases} cases passed");
        }
        for program in &self.broken {
            println!("FAILED: {program}");
        }
        for why in &self.skipped {
            println!("skipped: {why}");
        }
        if self.skipped.is_empty() {
            println!("nothing was skipped");
        }
        println!("{} tests are only run by hand (see CONTRIBUTING.md)", self.ignored);
    }
}

/// The number in front of `word`, or 0.
fn count(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_skips_are_read_from_a_test_programs_output() {
        let mut report = Report::default();
        report.read("test result: ok. 41 passed; 2 failed; 3 ignored; 0 measured; 7 filtered out");
        report.read("skipped: a full disk: cannot mount");
        assert_eq!((report.passed, report.failed, report.ignored), (41, 2, 3));
        assert_eq!(report.skipped, ["a full disk: cannot mount"]);
    }
}
