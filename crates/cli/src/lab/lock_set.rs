//! `tenure lab lock-set`: updates lost by pauses, unfenced and fenced.

use tenure_lab::lock_set::{self, Plan, Updates};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::progress::Bar;
use crate::stores::registry;

pub(super) fn execute(store: &str, arguments: &args::LabLockSet, output: &Output) -> Outcome {
    super::check_is_shared(store)?;
    let url = registry().parse(store)?;
    let plan = Plan {
        url: store.to_owned(),
        processes: usize::from(arguments.processes),
        ttl: arguments.ttl,
        pause_every: arguments.pause_every,
        duration: arguments.duration,
    };
    let all = u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX);
    let bar = std::cell::RefCell::new(Bar::new("lock-set", all));
    let passed = |time: std::time::Duration| {
        bar.borrow_mut().show(u64::try_from(time.as_millis()).unwrap_or(all));
    };
    let tally = lock_set::run(&plan, &super::client_program()?, passed);
    drop(bar);
    let tally = tally.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    let row = |name: &str, updates: Updates, rejected: u64| {
        let share = 100.0 * updates.lost as f64 / updates.acknowledged.max(1) as f64;
        vec![
            name.into(),
            updates.acknowledged.to_string(),
            rejected.to_string(),
            updates.lost.to_string(),
            format!("{share:.1} %"),
        ]
    };
    let rows =
        vec![row("unfenced", tally.unfenced, 0), row("fenced", tally.fenced, tally.rejected)];
    let written = match output.is_json() {
        true => output.object(&tally),
        false => output
            .line(format_args!("{url}: the holder was stopped {} times", tally.pauses))
            .and_then(|()| {
                output.table(&["SET", "ACKNOWLEDGED", "REJECTED", "LOST", "SHARE"], rows)
            }),
    };
    if tally.fenced.lost > 0 {
        output::report(
            "acknowledged updates of the fenced set were lost: the store gives no tokens, or a token was \
             given twice",
        );
    }
    output::exit_code(written, if tally.fenced.lost > 0 { exit::UNSAFE } else { exit::OK })
}
