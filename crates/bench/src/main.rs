//! Measurements of tenure, each compared with a baseline in the same run.
//!
//! A time alone depends on the machine and its load; a ratio of two times much less so. Rounds of the
//! two sides alternate, and the ratio is that of their medians.

use std::process::ExitCode;

mod etcd;
mod held;
mod local_free;
mod local_handoff;
mod local_waiters;
mod machine;
mod ordered_waiters;
mod peer;
mod primitives;
mod redis_free;
mod redis_queue;
mod redis_readers;
mod redis_tasks;
mod redis_wire;
mod redisson_clients;
mod redlock;
mod table;
mod zookeeper;
mod zookeeper_clients;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A scenario's name and its function.
type Scenario = (&'static str, fn() -> Outcome<Vec<table::Row>>);

const SCENARIOS: &[Scenario] = &[
    ("local-free", local_free::measure),
    ("local-handoff", local_handoff::measure),
    ("local-waiters", local_waiters::measure),
    ("local-held", held::local),
    ("local-reentry", primitives::local_reentry),
    ("local-reader", primitives::local_reader),
    ("redis-free", redis_free::measure),
    ("redis-tasks", redis_tasks::measure),
    ("redis-queue", redis_queue::measure),
    ("redis-readers", redis_readers::measure),
    ("redis-held", held::redis),
    ("redis-reader", primitives::redis_reader),
    ("redis-multi", primitives::redis_multi),
    ("redis-values", primitives::redis_values),
    ("redlock-free", redlock::measure),
    ("etcd-free", etcd::free),
    ("etcd-handoff", etcd::handoff),
    ("etcd-reader", primitives::etcd_reader),
    ("etcd-waiters", ordered_waiters::etcd),
    ("zk-free", zookeeper::free),
    ("zk-handoff", zookeeper::handoff),
    ("zk-reader", primitives::zookeeper_reader),
    ("zk-waiters", ordered_waiters::zookeeper),
    ("redisson-clients", redisson_clients::measure),
    ("zk-clients", zookeeper_clients::measure),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == peer::ARGUMENT => peer::run(rest).map(|()| true),
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

/// Measures the named scenarios, or all. Returns `false` if a ratio is above its bound.
fn measure(names: &[String]) -> Outcome<bool> {
    if let Some(unknown) = names.iter().find(|name| SCENARIOS.iter().all(|(n, _)| n != name)) {
        let known: Vec<_> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no scenario {unknown}; use one of {}", known.join(", ")).into());
    }
    let mut rows = Vec::new();
    for (name, scenario) in SCENARIOS {
        if names.is_empty() || names.iter().any(|selected| selected == name) {
            rows.extend(scenario()?);
        }
    }
    table::print(&rows);
    Ok(rows.iter().all(table::Row::is_within_bound))
}
