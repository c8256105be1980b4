//! Measurements of tenure, each beside what it is to be compared with, in one run.
//!
//! The machine's mood cancels out in a ratio; a time alone says little. Rounds of the two sides
//! alternate, and the ratio is that of their medians.

use std::process::ExitCode;

mod crowds;
mod etcd;
mod free;
mod handoff;
mod held;
mod peer;
mod record;
mod redis;
mod redis_crowd;
mod redis_line;
mod redis_many;
mod redlock;
mod table;
mod waiters;
mod zookeeper;
mod zookeeper_clients;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A scenario's name, and what measures it.
type Scenario = (&'static str, fn() -> Outcome<Vec<table::Row>>);

const SCENARIOS: &[Scenario] = &[
    ("local-free", free::measure),
    ("local-handoff", handoff::measure),
    ("local-waiters", waiters::measure),
    ("local-held", held::local),
    ("redis-free", redis::free),
    ("redis-many", redis_many::measure),
    ("redis-line", redis_line::measure),
    ("redis-crowd", redis_crowd::measure),
    ("redis-held", held::redis),
    ("etcd-free", etcd::free),
    ("etcd-handoff", etcd::handoff),
    ("etcd-crowds", crowds::etcd),
    ("redlock-free", redlock::free),
    ("zk-free", zookeeper::free),
    ("zk-handoff", zookeeper::handoff),
    ("zk-crowds", crowds::zookeeper),
    ("zk-clients", zookeeper_clients::measure),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == peer::ROLE => peer::play(rest).map(|()| true),
        _ => measure(&arguments),
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

/// Measures the scenarios named, or all. False if a ratio is above its bound.
fn measure(names: &[String]) -> Outcome<bool> {
    if let Some(unknown) = names.iter().find(|name| SCENARIOS.iter().all(|(n, _)| n != name)) {
        let known: Vec<_> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no scenario {unknown}: there are {}", known.join(", ")).into());
    }
    let mut rows = Vec::new();
    for (name, scenario) in SCENARIOS {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            rows.extend(scenario()?);
        }
    }
    table::print(&rows);
    Ok(rows.iter().all(table::Row::holds))
}
