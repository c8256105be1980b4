//! Measurements of tenure, beside other clients and the limits of the same work in the same run.
//!
//! A time alone depends on the machine and its load; a ratio of two times much less so. Rounds of the
//! sides alternate, and a ratio is that of their medians.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

mod apart;
mod clients;
mod cold_start;
mod contest;
mod drive;
mod etcd;
mod failover;
mod figure;
mod held;
mod local_free;
mod local_handoff;
mod local_waiters;
mod machine;
mod ordered_waiters;
mod peer;
mod plot;
mod primitives;
mod queue;
mod redis_free;
mod redis_queue;
mod redis_readers;
mod redis_tasks;
mod redis_wire;
mod redlock;
mod report;
mod scale;
mod server;
mod table;
mod timing;
mod watch;
mod zookeeper;

use report::{Machine, Report};
use scale::Scale;

type Outcome<T> = Result<T, Fault>;
/// An error that can cross tasks.
type Fault = Box<dyn std::error::Error + Send + Sync>;

/// One thing to measure.
struct Scenario {
    name: &'static str,
    measure: Measure,
    /// Whether a quick run leaves it out unless it is named.
    is_long: bool,
}

type Measure = fn(Scale) -> Outcome<Vec<table::Row>>;

const fn short(name: &'static str, measure: Measure) -> Scenario {
    Scenario { name, measure, is_long: false }
}

const fn long(name: &'static str, measure: Measure) -> Scenario {
    Scenario { name, measure, is_long: true }
}

const SCENARIOS: &[Scenario] = &[
    short("local-free", local_free::measure),
    short("local-handoff", local_handoff::measure),
    short("local-waiters", local_waiters::measure),
    long("local-held", |scale| held::measure(&contest::LOCAL, scale, 100_000)),
    short("local-reentry", primitives::local_reentry),
    short("local-reader", primitives::local_reader),
    short("redis-free", redis_free::measure),
    short("redis-tasks", redis_tasks::measure),
    long("redis-queue", redis_queue::measure),
    long("redis-readers", redis_readers::measure),
    long("redis-held", |scale| held::measure(&contest::REDIS, scale, 100_000)),
    short("redis-reader", primitives::redis_reader),
    short("redis-multi", primitives::redis_multi),
    short("redis-values", primitives::redis_values),
    short("redlock-free", redlock::measure),
    short("etcd-free", etcd::free),
    short("etcd-handoff", etcd::handoff),
    short("etcd-reader", primitives::etcd_reader),
    long("etcd-waiters", ordered_waiters::etcd),
    short("zk-free", zookeeper::free),
    short("zk-handoff", zookeeper::handoff),
    short("zk-reader", primitives::zookeeper_reader),
    long("zk-waiters", ordered_waiters::zookeeper),
    long("local-growth", |scale| queue::measure(&contest::LOCAL, scale)),
    short("local-clients", |scale| contest::LOCAL.pairs(scale)),
    short("local-hot", |scale| contest::LOCAL.hot(scale)),
    short("local-zipf", |scale| contest::LOCAL.zipf(scale)),
    long("redis-growth", |scale| queue::measure(&contest::REDIS, scale)),
    short("redis-clients", |scale| contest::REDIS.pairs(scale)),
    short("redis-hot", |scale| contest::REDIS.hot(scale)),
    short("redis-zipf", |scale| contest::REDIS.zipf(scale)),
    short("redisson-clients", |scale| contest::REDISSON.pairs(scale)),
    long("etcd-held", |scale| held::measure(&contest::ETCD, scale, 10_000)),
    long("etcd-growth", |scale| queue::measure(&contest::ETCD, scale)),
    short("etcd-clients", |scale| contest::ETCD.pairs(scale)),
    short("etcd-hot", |scale| contest::ETCD.hot(scale)),
    short("etcd-zipf", |scale| contest::ETCD.zipf(scale)),
    long("zk-held", |scale| held::measure(&contest::ZOOKEEPER, scale, 10_000)),
    long("zk-growth", |scale| queue::measure(&contest::ZOOKEEPER, scale)),
    short("zk-clients", |scale| contest::ZOOKEEPER.pairs(scale)),
    short("cold-start", cold_start::measure),
    short("zk-hot", |scale| contest::ZOOKEEPER.hot(scale)),
    short("zk-zipf", |scale| contest::ZOOKEEPER.zipf(scale)),
    long("local-tasks", |scale| contest::LOCAL.tasks(scale)),
    long("etcd-tasks", |scale| contest::ETCD.tasks(scale)),
    long("zk-tasks", |scale| contest::ZOOKEEPER.tasks(scale)),
    long("watch-10000", watch::measure),
    long("failover", failover::measure),
    short("redisson-hot", |scale| contest::REDISSON.hot(scale)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == peer::ARGUMENT => peer::run(rest).map(|()| true),
        _ => Plan::new(&arguments).and_then(|plan| plan.run()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(70)
        }
    }
}

const OPTIONS: &str = "--quick, --out FOLDER, --add, --book";

/// What to measure, and where to write the results.
struct Plan {
    scale: Scale,
    scenarios: Vec<&'static Scenario>,
    /// For `bench.json` and `bench.html`.
    folder: PathBuf,
    /// Whether the results of earlier runs in the folder are kept, where they are not measured again.
    adds: bool,
    /// The page of the book that shows the results.
    book: Option<PathBuf>,
}

impl Plan {
    fn new(arguments: &[String]) -> Outcome<Self> {
        let (mut is_quick, mut adds, mut names, mut book) = (false, false, Vec::new(), None);
        let mut folder = PathBuf::from("target/bench");
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => is_quick = true,
                "--add" => adds = true,
                "--out" => folder = words.next().ok_or("--out needs a folder")?.into(),
                "--book" => book = Some(PathBuf::from("docs/performance.md")),
                option if option.starts_with("--") => {
                    return Err(format!("no option {option}; use {OPTIONS}").into());
                }
                name => names.push(name),
            }
        }
        if let Some(unknown) =
            names.iter().find(|name| SCENARIOS.iter().all(|it| it.name != **name))
        {
            let known: Vec<_> = SCENARIOS.iter().map(|it| it.name).collect();
            return Err(format!("no scenario {unknown}; use one of {}", known.join(", ")).into());
        }
        let selected = |it: &&Scenario| {
            if names.is_empty() { !(is_quick && it.is_long) } else { names.contains(&it.name) }
        };
        let scenarios = SCENARIOS.iter().filter(selected).collect();
        Ok(Self { scale: Scale { is_quick }, scenarios, folder, adds, book })
    }

    /// Returns `false` if a row is missed and does not say why, or a scenario failed.
    fn run(self) -> Outcome<bool> {
        let start = Instant::now();
        let (mut rows, mut absent, mut failed) = (Vec::new(), BTreeSet::new(), Vec::new());
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {pos}/{len} {msg}")?;
        let bar = ProgressBar::new(self.scenarios.len() as u64).with_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        for Scenario { name, .. } in &self.scenarios {
            bar.set_message(*name);
            let begin = Instant::now();
            match apart::run(name, self.scale) {
                Ok(measured) => {
                    rows.extend(measured.rows);
                    absent.extend(measured.absent);
                }
                Err(error) => {
                    bar.suspend(|| eprintln!("bench: {name}: {error}"));
                    failed.push(format!("{name}: {error}"));
                }
            }
            if bar.is_hidden() {
                eprintln!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        print!("{}", table::markdown(&rows));
        let unexplained: Vec<&str> =
            rows.iter().filter(|row| row.is_unexplained()).map(|row| &*row.what).collect();
        let sound = failed.is_empty() && unexplained.is_empty();
        for what in unexplained {
            eprintln!("bench: missed, and no reason is known: {what}");
        }
        let mut report = Report {
            machine: Machine::here(),
            is_quick: self.scale.is_quick,
            seconds: start.elapsed().as_secs(),
            absent,
            failed,
            rows,
        };
        if self.adds {
            report.add_earlier(&self.folder)?;
        }
        report.write_files(&self.folder)?;
        println!("\nThe page: {}", self.folder.join("bench.html").display());
        if let Some(book) = &self.book {
            report.write_into(book)?;
        }
        Ok(sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(words: &[&str]) -> Outcome<Plan> {
        Plan::new(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn scenarios_have_names_of_their_own_and_a_quick_run_leaves_out_the_long_ones() {
        let mut names: Vec<_> = SCENARIOS.iter().map(|it| it.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SCENARIOS.len());
        let quick = plan(&["--quick"]).unwrap();
        assert!(quick.scale.is_quick && quick.scenarios.iter().all(|it| !it.is_long));
        assert_eq!(plan(&[]).unwrap().scenarios.len(), SCENARIOS.len());
        let named = plan(&["--quick", "local-held"]).unwrap();
        assert_eq!(named.scenarios.len(), 1);
    }

    #[test]
    fn unknown_words_are_refused_with_those_that_are_known() {
        assert!(plan(&["etcd-fre"]).err().unwrap().to_string().contains("etcd-free"));
        assert!(plan(&["--quik"]).err().unwrap().to_string().contains("--quick"));
    }
}
