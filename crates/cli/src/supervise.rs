//! Supervises a running command: forwards signals, follows stops, and ends the command if its lock is
//! lost.

use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tenure::store::Clock;
use tenure::{LossReason, Revocation};
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::OnLost;
use crate::child::{Change, Ending, GROUP_POLL_INTERVAL, Guardian, Job};
use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::lock::{self, Held};
use crate::loss_schedule::{LossSchedule, Step};
use crate::output::report;
use crate::signals::{Signals, TERMINATION};

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandEnd {
    /// The command's exit code; `None` if it could not be killed and may still run.
    pub(crate) code: Option<u8>,
    /// The signal that ended the command, if one did.
    pub(crate) signal: Option<Signal>,
    /// Whether tenure had received that signal and forwarded it to the command.
    pub(crate) forwarded: bool,
    /// Whether tenure had received a termination signal.
    pub(crate) terminated: bool,
    /// The signal that tenure should end by as well.
    pub(crate) own_signal: Option<Signal>,
    /// Whether the lock was lost, or the command was stopped because it was about to be lost.
    pub(crate) lost: bool,
    /// Whether another process has asked for the lock.
    pub(crate) asked: bool,
}

impl CommandEnd {
    /// The exit code of tenure after a command that ended with `code`. A signal that ended both is
    /// raised at the end.
    pub(crate) fn exit_code(&self, code: u8) -> u8 {
        self.own_signal.map_or(code, exit::with_signal)
    }
}

/// When and how a command is ended because of its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    /// A limit on the hold, after which the command still has its grace.
    pub(crate) max_hold: Option<Duration>,
    /// How long the lock stays taken from the start of the command, although the command ends sooner.
    pub(crate) at_least: Option<Duration>,
}

/// Tells the guardian until when the lease lasts, so that it kills the command in time if this process is
/// stopped and cannot.
#[derive(Debug)]
pub(crate) struct Backstop<'a> {
    /// `None` if the command may outlive the lease that is seen from here.
    guard: Option<&'a Held>,
    schedule: LossSchedule,
    clock: Clock,
}

impl<'a> Backstop<'a> {
    pub(crate) fn new(guard: &'a Held, terms: Terms, clock: Clock) -> Self {
        let applies = matches!(guard, Held::Own(_))
            && terms.on_lost != OnLost::Nothing
            && terms.max_hold.is_none();
        let schedule = LossSchedule { ttl: guard.ttl(), grace: terms.grace };
        Self { guard: applies.then_some(guard), schedule, clock }
    }

    /// How often to tell it: often enough for the guardian to know the last renewal long before the lease
    /// ends.
    fn interval(&self) -> Option<Duration> {
        self.guard.map(|_| self.schedule.ttl / 6)
    }

    /// Tells the guardian the present end of the lease, unless the lock is lost.
    pub(crate) fn send(&self, guardian: &Guardian) {
        if let Some(guard) = self.guard.filter(|guard| guard.is_valid()) {
            let left = self.schedule.until(Step::Backstop, guard.remaining());
            guardian.kill_at(self.clock, Some(self.clock.now() + left));
        }
    }

    /// The lock is lost: this process ends the command now.
    fn cancel(&self, guardian: &Guardian) {
        if self.guard.is_some() {
            guardian.kill_at(self.clock, None);
        }
    }
}

/// Waits until the command has ended; after a loss or a termination signal, until all processes of
/// its process group have ended.
pub(crate) async fn supervise(
    connection: &Connection,
    job: &Job,
    guard: &Held,
    signals: &mut Signals,
    terms: Terms,
    backstop: &Backstop<'_>,
) -> Result<CommandEnd, Failure> {
    let mut handler = LossHandler::new(job, guard, terms);
    let mut forwarded = Vec::new();
    let mut told = Instant::now();
    let mut revoked = pin!(guard.revoked());
    let ending = loop {
        let deadline = handler.next_deadline();
        let tell = backstop.interval().map(|interval| told + interval);
        tokio::select! {
            // The loss comes first: after a suspension all of these are ready at once.
            biased;
            reason = guard.lost(), if !handler.lost => {
                backstop.cancel(job.guardian());
                handler.on_loss(reason);
                if reason == LossReason::MaxHold && terms.on_lost == OnLost::Nothing {
                    release_early(connection, guard).await;
                }
            }
            () = guard.danger(), if !handler.in_danger && !handler.lost => handler.on_danger(),
            request = &mut revoked, if !handler.asked => handler.on_revocation(&request),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                if handler.on_deadline() {
                    break None;
                }
            }
            () = sleep_until(tell.unwrap_or_else(Instant::now)), if tell.is_some() && !handler.lost => {
                backstop.send(job.guardian());
                told = Instant::now();
            }
            signal = signals.next() => match signal {
                Signal::CHILD => {
                    if let Some(ending) = follow(job, guard, handler.lost)? {
                        break Some(ending);
                    }
                }
                signal => {
                    forwarded.push(signal);
                    forward(job, signal);
                }
            }
        }
    };
    let stopped = handler.lost || handler.stage != Stage::Running;
    let signal = ending.and_then(|ending| ending.signal);
    let terminated = forwarded.iter().chain(&signal).any(|signal| TERMINATION.contains(signal));
    let gone = if stopped {
        terms.on_lost == OnLost::Nothing || end_group(job, &handler, backstop).await
    } else if terminated {
        // Otherwise the rest of the process group would continue without the lock.
        let kill_at = Instant::now() + terms.grace;
        end_group_by(job, backstop, || guard.is_valid().then_some(kill_at)).await
    } else {
        true
    };
    if !gone {
        report(&format!(
            "could not kill {}, which may still run without the lock {:?}: end it manually",
            job.survivors(),
            guard.name()
        ));
    }
    Ok(CommandEnd {
        code: ending.map(|ending| ending.code).filter(|_| gone),
        signal,
        forwarded: signal.is_some_and(|signal| forwarded.contains(&signal)),
        terminated: forwarded.iter().any(|signal| TERMINATION.contains(signal)),
        own_signal: None,
        lost: stopped,
        asked: handler.asked,
    })
}

/// What has been done to end the command because of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// SIGTERM was sent; SIGKILL follows at this time at the latest.
    Terminating(Instant),
    /// SIGKILL was sent; the command should have ended by this time.
    Killed(Instant),
}

/// How long a killed process may take to disappear before it is reported as not killable.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Ends the command before its lock can be granted to another process.
struct LossHandler<'a> {
    job: &'a Job,
    guard: &'a Held,
    on_lost: OnLost,
    schedule: LossSchedule,
    stage: Stage,
    in_danger: bool,
    lost: bool,
    /// Another process has asked for the lock.
    asked: bool,
}

impl<'a> LossHandler<'a> {
    fn new(job: &'a Job, guard: &'a Held, terms: Terms) -> Self {
        let Terms { on_lost, grace, .. } = terms;
        let schedule = LossSchedule { ttl: guard.ttl(), grace };
        let (in_danger, lost, asked) = (false, false, false);
        Self { job, guard, on_lost, schedule, stage: Stage::Running, in_danger, lost, asked }
    }

    /// When [`on_deadline`](Self::on_deadline) must be called next, unless an event comes first.
    fn next_deadline(&self) -> Option<Instant> {
        let left = self.guard.remaining();
        let due = |step| Instant::now() + self.schedule.until(step, left);
        match self.stage {
            Stage::Killed(gone_by) => Some(gone_by),
            Stage::Terminating(kill_at) if self.lost => Some(kill_at),
            Stage::Terminating(kill_at) => Some(kill_at.min(due(Step::Kill))),
            Stage::Running if self.lost || !self.in_danger => None,
            Stage::Running => match self.on_lost {
                OnLost::Term => Some(due(Step::Term)),
                OnLost::Kill => Some(due(Step::Kill)),
                // Only to check whether the danger is over.
                OnLost::Nothing => Some(due(Step::Loss)),
            },
        }
    }

    /// Takes the step that is due. Returns `true` if the command was killed and has not ended.
    fn on_deadline(&mut self) -> bool {
        if self.next_deadline().is_none_or(|at| Instant::now() < at) {
            // A renewal has moved the deadline in the meantime.
            self.in_danger &= !self.schedule.is_out_of_danger(self.guard.remaining());
            return false;
        }
        match (self.stage, self.on_lost) {
            (Stage::Killed(_), _) => return true,
            (Stage::Running, OnLost::Nothing) => {}
            (Stage::Running, OnLost::Term) => self.terminate(self.schedule.grace),
            (Stage::Running | Stage::Terminating(_), _) => self.kill(),
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
            OnLost::Kill => format!("the command gets SIGKILL in {:.1}s", seconds(Step::Kill)),
            OnLost::Nothing => format!("the lock is lost in {:.1}s", left.as_secs_f64()),
        };
        report(&format!(
            "the store has not confirmed the lock {name:?} for half its TTL; {what} unless the \
             store answers"
        ));
    }

    /// The lock is lost, or must be given up because of `--max-hold`.
    fn on_loss(&mut self, reason: LossReason) {
        self.lost = true;
        let what = lock::describe_loss(self.guard.name(), reason);
        let then = match (self.on_lost, reason) {
            (OnLost::Nothing, _) => "the command continues without it",
            (OnLost::Term, LossReason::MaxHold) => "stopping the command",
            (OnLost::Term, LossReason::NotHeld) if self.is_own() => "stopping the command",
            _ => "killing the command",
        };
        report(&format!("{what}; {then}"));
        match (self.on_lost, reason) {
            (OnLost::Nothing, _) => {}
            // The lease still lasts for at least half the TTL, unless a renewal is overdue.
            (OnLost::Term, LossReason::MaxHold) if !self.in_danger => {
                self.terminate(self.schedule.grace.min(self.schedule.ttl / 2));
            }
            // After an eviction another process may hold the lock already, so there is no deadline to
            // meet: the command may clean up.
            (OnLost::Term, LossReason::NotHeld) if self.is_own() => {
                self.terminate(self.schedule.grace);
            }
            // The lease has ended, or the surrounding `tenure run` has released the lock: another
            // process may hold it now.
            _ => self.kill(),
        }
    }

    /// Another process asks for the lock, which stays held until the command has ended.
    fn on_revocation(&mut self, request: &Revocation) {
        self.asked = true;
        let what = lock::describe_revocation(self.guard.name(), request);
        let then = match self.on_lost {
            OnLost::Term => "sending SIGTERM to the command",
            OnLost::Kill => "killing the command",
            OnLost::Nothing => "the command continues",
        };
        report(&format!("{what}; {then}"));
        let grace = request.remaining().map(|left| self.schedule.within(left));
        match self.on_lost {
            OnLost::Term => self.terminate(grace.unwrap_or(self.schedule.grace)),
            OnLost::Kill => self.kill(),
            OnLost::Nothing => {}
        }
    }

    const fn is_own(&self) -> bool {
        matches!(self.guard, Held::Own(_))
    }

    fn terminate(&mut self, grace: Duration) {
        if self.stage != Stage::Running {
            return;
        }
        if !self.lost && !self.asked {
            let name = self.guard.name();
            report(&format!(
                "the lock {name:?} is about to be lost: sending SIGTERM to the command"
            ));
        }
        Job::adopt_orphans();
        forward(self.job, Signal::TERM);
        self.stage = Stage::Terminating(Instant::now() + grace);
    }

    fn kill(&mut self) {
        match self.stage {
            Stage::Killed(_) => return,
            Stage::Terminating(_) => report("the command did not exit in time: killing it"),
            Stage::Running if !self.lost && !self.asked => {
                let name = self.guard.name();
                report(&format!("the lock {name:?} is about to be lost: killing the command"));
            }
            Stage::Running => {}
        }
        Job::adopt_orphans();
        let gone_by = match self.job.signal_group(Signal::KILL) {
            Ok(()) => Instant::now() + GONE_WITHIN,
            // The kill was refused, so do not wait.
            Err(_) => Instant::now(),
        };
        self.stage = Stage::Killed(gone_by);
    }
}

/// Releases a lock while its command continues.
async fn release_early(connection: &Connection, guard: &Held) {
    if let Held::Own(guard) = guard
        && let Err(error) = connection.client.release(guard.name().as_str(), guard.owner()).await
    {
        report(&format!("{}; it becomes free when its TTL has passed", exit::line(&error)));
    }
}

/// Forwards a signal to the command. A termination signal also continues it, because a stopped
/// process does not handle signals.
fn forward(job: &Job, signal: Signal) {
    if let Err(error) = job.forward(signal) {
        let number = signal.as_raw();
        report(&format!("could not send signal {number} to {}: {error}", job.survivors()));
    }
    if TERMINATION.contains(&signal) {
        job.resume();
    }
}

/// Handles all state changes of the command. Returns how it ended, if it did.
fn follow(job: &Job, guard: &Held, lost: bool) -> Result<Option<Ending>, Failure> {
    let fault = |error| Failure::system("wait for the command", &error);
    while let Some(change) = job.next_change().map_err(fault)? {
        match change {
            Change::Ended(ending) => return Ok(Some(ending)),
            Change::Stopped(signal) => {
                // If the lock was lost during the stop and the loss is not handled yet, the command
                // stays stopped until it is.
                if job.follow_into_stop(signal) && (lost || guard.is_valid()) {
                    job.resume();
                }
            }
        }
    }
    Ok(None)
}

/// Ends the rest of the process group after the command has ended or could not be killed; it has the
/// same grace period. Returns whether all processes are gone.
async fn end_group(job: &Job, handler: &LossHandler<'_>, backstop: &Backstop<'_>) -> bool {
    let terminating = matches!(handler.stage, Stage::Terminating(_));
    end_group_by(job, backstop, || handler.next_deadline().filter(|_| terminating)).await
}

/// Waits for the processes of the group to end, and kills them at the time that `kill_at` returns, or
/// at once if it returns none. Meanwhile tells the guardian of renewals. Returns whether all processes are
/// gone.
async fn end_group_by(
    job: &Job,
    backstop: &Backstop<'_>,
    kill_at: impl Fn() -> Option<Instant>,
) -> bool {
    Job::adopt_orphans();
    let mut tell = backstop.interval().map(|_| Instant::now());
    while !job.is_gone() && kill_at().is_some_and(|kill_at| Instant::now() < kill_at) {
        if tell.is_some_and(|at| Instant::now() >= at) {
            backstop.send(job.guardian());
            tell = backstop.interval().map(|interval| Instant::now() + interval);
        }
        sleep(GROUP_POLL_INTERVAL).await;
    }
    if job.is_gone() {
        return true;
    }
    // On an error the processes cannot be killed, and the loop below ends without success.
    let _ = job.signal_group(Signal::KILL);
    let limit = Instant::now() + GONE_WITHIN;
    while !job.is_gone() {
        if Instant::now() >= limit {
            return false;
        }
        sleep(GROUP_POLL_INTERVAL).await;
    }
    true
}
