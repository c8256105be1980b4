//! `tenure lab soak`: load from many processes, with random faults.

use std::cell::RefCell;
use std::time::Duration;

use tenure_lab::soak::{self, Plan, Tally};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::progress::Bar;

pub(super) fn execute(store: &str, arguments: &args::LabSoak, output: &Output) -> Outcome {
    super::check_is_shared(store)?;
    let plan = Plan {
        url: store.to_owned(),
        processes: usize::from(arguments.processes),
        ttl: arguments.ttl,
        duration: arguments.duration,
        seed: arguments.seed,
    };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let bar = RefCell::new(Bar::new("soak", millis(plan.duration)));
    let tally =
        soak::run(&plan, &super::client_program()?, |time| bar.borrow_mut().show(millis(time)));
    drop(bar);
    let tally = tally.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    for violation in &tally.violations {
        output::report(violation);
    }
    let written = match output.is_json() {
        true => output.object(&tally),
        false => output.table(&["FIGURE", "VALUE"], rows(&tally)),
    };
    output::exit_code(written, if tally.is_sound() { exit::OK } else { exit::UNSAFE })
}

fn rows(tally: &Tally) -> Vec<Vec<String>> {
    let mut rows = vec![
        ("acquisitions".to_owned(), tally.acquisitions.to_string()),
        ("protected writes".to_owned(), tally.writes.to_string()),
    ];
    for (kind, count) in &tally.faults {
        rows.push((format!("processes {kind}"), count.to_string()));
    }
    let worst = format!("{} ms of {} ms", tally.worst_gap_ms, tally.gap_bound_ms);
    rows.extend([
        ("overlapping beliefs".to_owned(), tally.overlaps.to_string()),
        ("stale accesses rejected".to_owned(), tally.stale_rejected.to_string()),
        ("stale accesses accepted".to_owned(), tally.stale_accepted.to_string()),
        ("longest time without a holder".to_owned(), worst),
        ("locks left behind".to_owned(), tally.orphans.to_string()),
        ("violations".to_owned(), tally.violations.len().to_string()),
    ]);
    rows.into_iter().map(|(figure, value)| vec![figure, value]).collect()
}
