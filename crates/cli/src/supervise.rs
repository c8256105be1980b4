//! Between the start of a command and its end: signals, stops, and what happens on loss.

use std::time::Duration;

use rustix::process::Signal;
use tenure::LossReason;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::{OnLost, Run};
use crate::child::{Change, Ending, Job, LOOK_EVERY};
use crate::exit::Failure;
use crate::held::Held;
use crate::output::complain;
use crate::signals::Signals;

/// How it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// The command's exit code.
    pub(crate) code: u8,
    /// The signal that ended the command, if one did that was not passed on by us.
    pub(crate) signal: Option<Signal>,
    /// Whether the lock was lost before.
    pub(crate) lost: bool,
}

/// Stays with the command until it has ended; after a loss, until its whole group has.
pub(crate) async fn supervise(
    job: &Job,
    guard: &Held,
    signals: &mut Signals,
    arguments: &Run,
) -> Result<End, Failure> {
    let mut loss = None;
    let mut warned = false;
    let mut kill_at = None;
    let mut passed_on = Vec::new();
    let ending = loop {
        tokio::select! {
            // Loss comes first: after a stop everything is ready at once.
            biased;
            reason = guard.lost(), if loss.is_none() => {
                loss = Some(reason);
                kill_at = on_loss(job, guard, reason, arguments);
            }
            () = guard.danger(), if !warned && loss.is_none() => {
                warned = true;
                warn(guard, arguments);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                kill_at = None;
                complain("the command did not end in time: killing it");
                job.tell_all(Signal::KILL);
            }
            signal = signals.next() => match signal {
                Signal::CHILD => {
                    if let Some(ending) = follow(job, guard, loss.is_some())? {
                        break ending;
                    }
                }
                signal => {
                    if !passed_on.contains(&signal) {
                        passed_on.push(signal);
                    }
                    job.pass_on(signal);
                }
            }
        }
    };
    if loss.is_some() && arguments.on_lost != OnLost::Nothing {
        end_group(job, kill_at).await;
    }
    let signal = ending.signal.filter(|signal| !passed_on.contains(signal));
    Ok(End { code: ending.code, signal, lost: loss.is_some() })
}

/// Takes note of everything that happened to the command. Returns how it ended, if it did.
fn follow(job: &Job, guard: &Held, lost: bool) -> Result<Option<Ending>, Failure> {
    let fault = |error| Failure::system("wait for the command", &error);
    while let Some(change) = job.change().map_err(fault)? {
        match change {
            Change::Ended(ending) => return Ok(Some(ending)),
            Change::Stopped(signal) => {
                // After a long stop the lock may be gone: then it is the loss that decides.
                if job.follow_into_stop(signal) && (lost || guard.is_valid()) {
                    job.resume();
                }
            }
        }
    }
    Ok(None)
}

/// Does what was asked for. Returns when the command is to be killed, if it is.
fn on_loss(job: &Job, guard: &Held, reason: LossReason, arguments: &Run) -> Option<Instant> {
    let name = guard.name();
    let why = match reason {
        LossReason::MaxHold => "--max-hold is over: giving up",
        LossReason::NotHeld => "the store says that this process no longer holds",
        _ => "the lease ended without a renewal: lost",
    };
    let what = match arguments.on_lost {
        OnLost::Term => "stopping the command",
        OnLost::Kill => "killing the command",
        OnLost::Nothing => "the command goes on without it",
    };
    complain(&format!("{why} the lock {name:?}; {what}"));
    Job::adopt_orphans();
    match arguments.on_lost {
        OnLost::Term => job.tell_all(Signal::TERM),
        OnLost::Kill => job.tell_all(Signal::KILL),
        OnLost::Nothing => {}
    }
    // A stopped process does not even see that it should end.
    job.resume();
    // At the end of max-hold the store still keeps others out, for two thirds of the TTL or more.
    let grace = match reason {
        LossReason::MaxHold => arguments.grace.min(arguments.lock.ttl / 2),
        _ => arguments.grace,
    };
    (arguments.on_lost == OnLost::Term).then(|| Instant::now() + grace)
}

fn warn(guard: &Held, arguments: &Run) {
    let (name, left) = (guard.name(), guard.remaining());
    let what = match arguments.on_lost {
        OnLost::Nothing => "is lost",
        OnLost::Term | OnLost::Kill => "is lost and the command stopped",
    };
    complain(&format!(
        "the store has not confirmed the lock {name:?} for half its TTL; it {what} in {:.1}s \
         unless the store answers",
        left.as_secs_f64()
    ));
}

/// The command is gone; the others of its group have until `kill_at`.
async fn end_group(job: &Job, kill_at: Option<Instant>) {
    let kill_at = kill_at.unwrap_or_else(Instant::now);
    while !job.is_gone() && Instant::now() < kill_at {
        sleep(LOOK_EVERY).await;
    }
    job.tell_all(Signal::KILL);
    // What is killed is gone in a moment, if the system lets it go at all.
    let limit = Instant::now() + Duration::from_secs(1);
    while !job.is_gone() && Instant::now() < limit {
        sleep(LOOK_EVERY).await;
    }
}
