//! `tenure lab soak`: load from many processes, with random faults.

use std::cell::RefCell;
use std::time::Duration;

use tenure_lab::algorithms;
use tenure_lab::soak::{self, Plan, Tally, Target};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::progress::Bar;
use crate::stores::registry;

pub(super) fn execute(store: &str, arguments: &args::LabSoak, output: &Output) -> Outcome {
    let target = match &arguments.algorithm {
        Some(name) => {
            let info = algorithms::find(name).ok_or_else(|| super::unknown("algorithm", name))?;
            if let Some(why) = info.family.missing() {
                return Err(Failure::new(exit::UNAVAILABLE, why));
            }
            Target::Algorithm(info)
        }
        None => {
            super::check_is_shared(store)?;
            Target::Store(store.to_owned())
        }
    };
    let _folder = super::private_folder()?;
    let plan = Plan {
        target,
        processes: usize::from(arguments.processes),
        ttl: arguments.ttl,
        duration: arguments.duration,
        seed: arguments.seed,
        rate: arguments.rate,
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
        true => output.object(&report(&plan, &tally)?),
        false => output
            .line(format_args!("{}, seed {}, {:?}", subject(&plan)?, plan.seed, plan.duration))
            .and_then(|()| output.table(&["FIGURE", "VALUE"], rows(&tally))),
    };
    let void = tally.void(plan.duration);
    if let Some(why) = &void {
        output::report(&format!("the soak shows nothing: {why}"));
    }
    let is_good = tally.is_sound() && void.is_none();
    output::exit_code(written, if is_good { exit::OK } else { exit::UNSAFE })
}

/// What takes the locks, without the password of a store.
fn subject(plan: &Plan) -> Result<String, Failure> {
    match &plan.target {
        Target::Store(url) => Ok(registry().parse(url)?.to_string()),
        Target::Algorithm(info) => Ok(info.title.into()),
    }
}

fn report(plan: &Plan, tally: &Tally) -> Result<impl serde::Serialize, Failure> {
    #[derive(serde::Serialize)]
    struct Report<'a> {
        subject: String,
        seed: u64,
        seconds: f64,
        #[serde(flatten)]
        tally: &'a Tally,
    }
    let (subject, seconds) = (subject(plan)?, plan.duration.as_secs_f64());
    Ok(Report { subject, seed: plan.seed, seconds, tally })
}

fn rows(tally: &Tally) -> Vec<Vec<String>> {
    let mut rows = vec![
        ("acquisitions".to_owned(), tally.acquisitions.to_string()),
        ("protected writes".to_owned(), tally.writes.to_string()),
    ];
    for (kind, count) in &tally.faults {
        rows.push((format!("faults: {kind}"), count.to_string()));
    }
    let worst = format!("{} ms of {} ms", tally.worst_gap_ms, tally.gap_bound_ms);
    rows.extend([
        ("overlapping beliefs".to_owned(), tally.overlaps.to_string()),
        ("stale writes attempted".to_owned(), tally.stale_attempted.to_string()),
        ("stale writes rejected".to_owned(), tally.stale_rejected.to_string()),
        ("stale writes accepted".to_owned(), tally.stale_accepted.to_string()),
        ("longest gap without a holder".to_owned(), worst),
        ("locks left behind".to_owned(), tally.orphans.to_string()),
        ("violations".to_owned(), tally.violations.len().to_string()),
    ]);
    rows.into_iter().map(|(figure, value)| vec![figure, value]).collect()
}
