//! Between the start of a command and its end: signals, stops, and what happens on loss.

use std::time::Duration;

use rustix::process::Signal;
use tenure::LossReason;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::{OnLost, Run};
use crate::child::{Change, Ending, Job, LOOK_EVERY};
use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::held::Held;
use crate::output::complain;
use crate::schedule::{Schedule, Step};
use crate::signals::{ENDING, Signals};

/// How it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// The command's exit code; `None` if it could not be killed and may still run.
    pub(crate) code: Option<u8>,
    /// The signal that ended the command, if one did.
    pub(crate) signal: Option<Signal>,
    /// Whether that signal was sent to us, and passed on to the command.
    pub(crate) passed_on: bool,
    /// Whether the lock was lost before, or the command was stopped because it was about to be.
    pub(crate) lost: bool,
}

/// Stays with the command until it has ended; after a loss, or a signal that asks for an end, until
/// its whole group has.
pub(crate) async fn supervise(
    connection: &Connection,
    job: &Job,
    guard: &Held,
    signals: &mut Signals,
    arguments: &Run,
) -> Result<End, Failure> {
    let mut watch = Watch::new(job, guard, arguments);
    let mut passed_on = Vec::new();
    let ending = loop {
        let wake_at = watch.wake_at();
        tokio::select! {
            // Loss comes first: after a stop everything is ready at once.
            biased;
            reason = guard.lost(), if !watch.lost => {
                watch.on_loss(reason);
                if reason == LossReason::MaxHold && arguments.on_lost == OnLost::Nothing {
                    give_up(connection, guard).await;
                }
            }
            () = guard.danger(), if !watch.in_danger && !watch.lost => watch.on_danger(),
            () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                if watch.on_time() {
                    break None;
                }
            }
            signal = signals.next() => match signal {
                Signal::CHILD => {
                    if let Some(ending) = follow(job, guard, watch.lost)? {
                        break Some(ending);
                    }
                }
                signal => {
                    passed_on.push(signal);
                    pass_on(job, signal);
                }
            }
        }
    };
    let stopped = watch.lost || watch.state != State::Running;
    let signal = ending.and_then(|ending| ending.signal);
    let asked_to_end = passed_on.iter().chain(&signal).any(|signal| ENDING.contains(signal));
    let gone = if stopped {
        arguments.on_lost == OnLost::Nothing || end_group(job, &watch).await
    } else if asked_to_end {
        // The others of its group would run on without the lock.
        let patient = Instant::now() + arguments.grace;
        end_group_by(job, || guard.is_valid().then_some(patient)).await
    } else {
        true
    };
    if !gone {
        complain(&format!(
            "could not kill {}, which may still run without the lock {:?}: end it by hand",
            job.survivors(),
            guard.name()
        ));
    }
    Ok(End {
        code: ending.map(|ending| ending.code).filter(|_| gone),
        signal,
        passed_on: signal.is_some_and(|signal| passed_on.contains(&signal)),
        lost: stopped,
    })
}

/// How far the command has been told to end, for the lock's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// It got SIGTERM, and gets SIGKILL at this time at the latest.
    Told(Instant),
    /// It got SIGKILL, and should be gone by this time.
    Killed(Instant),
}

/// What is killed is gone in a moment, if the system lets it go at all.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Ends the command before its lock can go to another.
struct Watch<'a> {
    job: &'a Job,
    guard: &'a Held,
    on_lost: OnLost,
    schedule: Schedule,
    state: State,
    in_danger: bool,
    lost: bool,
}

impl<'a> Watch<'a> {
    fn new(job: &'a Job, guard: &'a Held, arguments: &Run) -> Self {
        let (grace, on_lost) = (arguments.grace, arguments.on_lost);
        let schedule = Schedule { ttl: guard.ttl(), grace };
        Self { job, guard, on_lost, schedule, state: State::Running, in_danger: false, lost: false }
    }

    /// When [`on_time`](Self::on_time) has something to do, unless something happens before.
    fn wake_at(&self) -> Option<Instant> {
        let left = self.guard.remaining();
        let in_time = |step| Instant::now() + self.schedule.until(step, left);
        match self.state {
            State::Killed(gone_by) => Some(gone_by),
            State::Told(kill_at) if self.lost => Some(kill_at),
            State::Told(kill_at) => Some(kill_at.min(in_time(Step::Kill))),
            State::Running if self.lost || !self.in_danger => None,
            State::Running => match self.on_lost {
                OnLost::Term => Some(in_time(Step::Term)),
                OnLost::Kill => Some(in_time(Step::Kill)),
                // Only to see whether the danger is over.
                OnLost::Nothing => Some(in_time(Step::Loss)),
            },
        }
    }

    /// Does what is due. Returns `true` if the command should be gone and is not.
    fn on_time(&mut self) -> bool {
        if self.wake_at().is_none_or(|at| Instant::now() < at) {
            // A renewal came while we slept.
            self.in_danger &= !self.schedule.is_sound(self.guard.remaining());
            return false;
        }
        match (self.state, self.on_lost) {
            (State::Killed(_), _) => return true,
            (State::Running, OnLost::Nothing) => {}
            (State::Running, OnLost::Term) => self.tell_to_end(self.schedule.grace),
            (State::Running | State::Told(_), _) => self.kill(),
        }
        false
    }

    /// Half the TTL has passed without a renewal.
    fn on_danger(&mut self) {
        self.in_danger = true;
        let (name, left) = (self.guard.name(), self.guard.remaining());
        let seconds = |step| self.schedule.until(step, left).as_secs_f64();
        let what = match self.on_lost {
            OnLost::Term => format!("the command gets SIGTERM in {:.1}s", seconds(Step::Term)),
            OnLost::Kill => format!("the command is killed in {:.1}s", seconds(Step::Kill)),
            OnLost::Nothing => format!("it is lost in {:.1}s", left.as_secs_f64()),
        };
        complain(&format!(
            "the store has not confirmed the lock {name:?} for half its TTL; {what} unless the \
             store answers"
        ));
    }

    /// The lock is no longer ours, or will not be for long.
    fn on_loss(&mut self, reason: LossReason) {
        self.lost = true;
        let name = self.guard.name();
        let why = match reason {
            LossReason::MaxHold => "--max-hold is over: giving up",
            LossReason::NotHeld => "the store says that this process no longer holds",
            _ => "the lease ended without a renewal: lost",
        };
        let then = match (self.on_lost, reason) {
            (OnLost::Nothing, _) => "the command goes on without it",
            (OnLost::Term, LossReason::MaxHold) => "stopping the command",
            (OnLost::Term, LossReason::NotHeld) if self.is_own() => "stopping the command",
            _ => "killing the command",
        };
        complain(&format!("{why} the lock {name:?}; {then}"));
        match (self.on_lost, reason) {
            (OnLost::Nothing, _) => {}
            // At the end of max-hold the store keeps others out until the lease ends: for half the
            // TTL or more, unless a renewal is overdue.
            (OnLost::Term, LossReason::MaxHold) if !self.in_danger => {
                self.tell_to_end(self.schedule.grace.min(self.schedule.ttl / 2));
            }
            // A lock that was taken by force: the command may still clean up.
            (OnLost::Term, LossReason::NotHeld) if self.is_own() => {
                self.tell_to_end(self.schedule.grace);
            }
            // A lock that the `tenure run` around us has given back: there was time before.
            _ => self.kill(),
        }
    }

    const fn is_own(&self) -> bool {
        matches!(self.guard, Held::Own(_))
    }

    fn tell_to_end(&mut self, grace: Duration) {
        if self.state != State::Running {
            return;
        }
        if !self.lost {
            let name = self.guard.name();
            complain(&format!(
                "the lock {name:?} is about to be lost: sending SIGTERM to the command"
            ));
        }
        Job::adopt_orphans();
        pass_on(self.job, Signal::TERM);
        self.state = State::Told(Instant::now() + grace);
    }

    fn kill(&mut self) {
        match self.state {
            State::Killed(_) => return,
            State::Told(_) => complain("the command did not end in time: killing it"),
            State::Running if !self.lost => {
                let name = self.guard.name();
                complain(&format!("the lock {name:?} is about to be lost: killing the command"));
            }
            State::Running => {}
        }
        Job::adopt_orphans();
        let gone_by = match self.job.tell_all(Signal::KILL) {
            Ok(()) => Instant::now() + GONE_WITHIN,
            // The kill was refused, so do not wait.
            Err(_) => Instant::now(),
        };
        self.state = State::Killed(gone_by);
    }
}

/// Releases a lock that is given up while its command goes on.
async fn give_up(connection: &Connection, guard: &Held) {
    if let Held::Own(guard) = guard
        && let Err(error) = connection.client.release(guard.name().as_str(), guard.owner()).await
    {
        complain(&format!("{}; it is free when its TTL has passed", exit::line(&error)));
    }
}

/// Passes a signal on to the command. One that asks it to end also continues it: a stopped process
/// does not even see that it should.
fn pass_on(job: &Job, signal: Signal) {
    if let Err(error) = job.pass_on(signal) {
        let number = signal.as_raw();
        complain(&format!("could not send signal {number} to {}: {error}", job.survivors()));
    }
    if ENDING.contains(&signal) {
        job.resume();
    }
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

/// The command is gone or cannot be killed; the others of its group have as long as it had. Says
/// whether all of them are gone.
async fn end_group(job: &Job, watch: &Watch<'_>) -> bool {
    let told = matches!(watch.state, State::Told(_));
    end_group_by(job, || watch.wake_at().filter(|_| told)).await
}

/// Waits for the processes of a group to end, and kills them at the time that `kill_at` names, or at
/// once if it names none. Says whether all of them are gone.
async fn end_group_by(job: &Job, kill_at: impl Fn() -> Option<Instant>) -> bool {
    Job::adopt_orphans();
    while !job.is_gone() && kill_at().is_some_and(|kill_at| Instant::now() < kill_at) {
        sleep(LOOK_EVERY).await;
    }
    if job.is_gone() {
        return true;
    }
    // An error says that they cannot be killed: then they are not gone either.
    let _ = job.tell_all(Signal::KILL);
    let limit = Instant::now() + GONE_WITHIN;
    while !job.is_gone() {
        if Instant::now() >= limit {
            return false;
        }
        sleep(LOOK_EVERY).await;
    }
    true
}
