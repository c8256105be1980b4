//! The test programs of all packages: built once, run two at a time, each to its end even if others fail.
//! Jobs that only compile run beside them.

use std::collections::BTreeMap;
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

/// The packages of engines. Their tests start servers, and take longer than those of others.
const ENGINES: [&str; 4] = ["etcd", "local", "redis", "zookeeper"];

/// The package whose tests are the conformance suite, a module per store.
const CONFORMANCE: &str = "conformance";

/// The test program of a package that has most of its tests. Each of its modules is run as if it were a
/// program of its own, so that tests that share a server share a process, and servers stop early.
const INTEGRATION: &str = "integration";

/// One test program, or one module of it.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The folder of its package, where it is run.
    folder: PathBuf,
    file: PathBuf,
    target: String,
    /// The module that is run, and the full names of its tests. `None` for the whole program.
    module: Option<(String, Vec<String>)>,
}

/// A command that is run beside the test programs, one after the other.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// Whether a compiler's warning fails it.
    pub(crate) denies_warnings: bool,
}

/// The outcome of one test program, or of one job.
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
        Some(Self { folder, file, target, module: None })
    }

    /// The modules of a program that has most tests of its package; otherwise, the program itself.
    fn split(self) -> io::Result<Vec<Self>> {
        if self.target != INTEGRATION {
            return Ok(vec![self]);
        }
        let output = Command::new(&self.file).args(["--list", "--format=terse"]).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("{} does not list its tests", self.name())));
        }
        let modules = modules(&String::from_utf8_lossy(&output.stdout));
        Ok(modules.into_iter().map(|it| Self { module: Some(it), ..self.clone() }).collect())
    }

    fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub(crate) fn is_suite(&self) -> bool {
        self.package() == CONFORMANCE && self.module.is_some()
    }

    /// `conformance: etcd`, or `tests: etcd/faults`.
    pub(crate) fn name(&self) -> String {
        let part = self.module.as_ref().map_or(&self.target, |(module, _)| module);
        match self.is_suite() {
            true => format!("{CONFORMANCE}: {part}"),
            false => format!("tests: {}/{part}", self.package()),
        }
    }

    /// Runs it to its end, with its output in a file, so that outputs do not mix.
    fn run(&self) -> Run {
        let started = Instant::now();
        let (output, sound) = self.outcome().unwrap_or_else(|error| (error.to_string(), false));
        Run { name: self.name(), output, sound, seconds: started.elapsed().as_secs() }
    }

    fn outcome(&self) -> io::Result<(String, bool)> {
        let module = self.module.as_ref();
        let path = match module {
            Some((module, _)) => self.file.with_extension(format!("{module}.output")),
            None => self.file.with_extension("output"),
        };
        let file = File::create(&path)?;
        let mut command = Command::new(&self.file);
        if let Some((_, tests)) = module {
            command.arg("--exact").args(tests);
        }
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        // Programs run beside each other, so none needs more tests at a time than there are processors. A suite
        // needs 3 s of a processor for 80 s of waiting.
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = if self.is_suite() { 2 * processors } else { processors };
        command.env("RUST_TEST_THREADS", threads.to_string());
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status()?;
        let output = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        Ok((output, status.success()))
    }
}

impl Job {
    pub(crate) fn new(name: impl Into<String>, command: Command) -> Self {
        Self { name: name.into(), command, denies_warnings: false }
    }

    /// Runs it to its end. Test programs go first where processors are short.
    pub(crate) fn run(self) -> Run {
        let started = Instant::now();
        let (output, sound) = match with_low_priority(&self.command).output() {
            Ok(output) => {
                let messages = String::from_utf8_lossy(&output.stderr);
                let warns = self.denies_warnings && messages.contains("warning:");
                let sound = output.status.success() && !warns;
                let results = String::from_utf8_lossy(&output.stdout);
                (if sound { results.into_owned() } else { format!("{results}{messages}") }, sound)
            }
            Err(error) => (format!("cannot start {:?}: {error}\n", self.command), false),
        };
        Run { name: self.name, output, sound, seconds: started.elapsed().as_secs() }
    }
}

fn with_low_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Builds the test programs of all packages, and the examples that some of them run. `None` if they do not
/// compile.
pub(crate) fn build() -> Option<Vec<Program>> {
    // With `--all-targets`, each example would be built as a test program without tests, and not as itself:
    // the tests that run examples would have to build them, and wait for the jobs that compile.
    let arguments = ["test", "--workspace", "--no-run"];
    let mut command = cargo(&arguments);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().ok()?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let split: io::Result<Vec<_>> =
        messages.lines().filter_map(Program::read).map(Program::split).collect();
    let mut programs = match split {
        Ok(parts) => parts.concat(),
        Err(error) => {
            eprintln!("{error}");
            return None;
        }
    };
    // The programs that take longest start first, so that none of them is left for the end.
    programs.sort_by_key(|program| {
        (!program.is_suite(), !ENGINES.contains(&program.package()), program.name())
    });
    output.status.success().then_some(programs)
}

/// The modules of a test program and their tests, from the list that it prints (`module::test: test`).
fn modules(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split("::").next().unwrap_or(test);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
}

/// Runs all programs and, beside them, all jobs. Sends each outcome to `ended`.
pub(crate) fn run(programs: Vec<Program>, jobs: Vec<Job>, ended: &Sender<Run>) {
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for job in jobs {
                let _ = ended.send(job.run());
            }
        });
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

/// Prints the output of a program or a job.
pub(crate) fn print(run: &Run) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "== {} ({} s)", run.name, run.seconds)?;
    output.write_all(run.output.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_fails_by_its_status_or_by_a_warning_and_keeps_its_environment() {
        let run = |script: &str, denies_warnings| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("GIVEN", "given");
            Job { name: "a job".into(), command, denies_warnings }.run()
        };
        let warns = "echo out $GIVEN; echo 'warning: unused' >&2";
        let run_of = |run: Run| (run.sound, run.output);
        assert_eq!(run_of(run(warns, false)), (true, "out given\n".into()));
        assert_eq!(run_of(run(warns, true)), (false, "out given\nwarning: unused\n".into()));
        assert_eq!(run_of(run("exit 3", false)), (false, String::new()));
    }

    #[test]
    fn only_messages_about_test_programs_are_read() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/a/conformance/Cargo.toml",
            "target":{"name":"integration"},"profile":{"test":true},"executable":"/t/etcd-1"}"#;
        let program = Program::read(line).expect("it is one");
        assert_eq!(program.name(), "tests: conformance/integration");
        assert!(!program.is_suite());
        for nothing in [&line.replace("true", "false"), &line.replace("\"/t/etcd-1\"", "null"), ""]
        {
            assert!(Program::read(nothing).is_none(), "{nothing}");
        }
    }

    #[test]
    fn a_program_with_most_tests_of_its_package_is_run_module_by_module() {
        let list = "etcd::a: test\netcd_cluster::b: test\netcd::deep::c: test\n";
        let program = Program {
            folder: "/a/conformance".into(),
            file: "/bin/echo".into(),
            target: INTEGRATION.into(),
            module: modules(list).pop_first(),
        };
        assert_eq!(
            program.module,
            Some(("etcd".into(), vec!["etcd::a".into(), "etcd::deep::c".into()]))
        );
        assert_eq!(program.name(), "conformance: etcd");
        assert!(program.is_suite());
        let other = Program { folder: "/a/core".into(), ..program };
        assert_eq!(other.name(), "tests: core/etcd");
        assert!(!other.is_suite());
    }
}
