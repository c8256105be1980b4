//! Turns a claim into a guard: asks the store, waits, and asks again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_proto::{Watchdog, deadline};
use tracing::{Instrument, field};

use crate::client::{Inner, unanswered, within};
use crate::fault_budget::FaultBudget;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::metric;
use crate::self_wait::SelfWait;
use crate::spurious_wake::SpuriousWakeBackoff;
use crate::task::CallSite;
use crate::waits::Recorded;
use crate::{
    Claim, ClaimOutcome, Effect, Error, ErrorKind, Grant, LockName, Mode, Moment, Options,
    QueueTicket, Result, Wait, WaitPolicy, now, require_runtime,
};

/// How many call timeouts an attempt outlasts while the store fails and the claim is not queued.
const UNQUEUED_CALLS: u32 = 5;

/// The longest lease of a queue entry. A waiter that dies is in the way for no longer than a holder that
/// dies, or half a minute where the TTL is shorter. A waiter renews its entry four times in that time,
/// whatever its poll cap.
fn longest_queue_lease(ttl: Duration) -> Duration {
    ttl.max(Duration::from_secs(30))
}

/// How often a claim is repeated because too little of its grant's term is left.
const RETRIES_OF_SHORT_TERMS: u32 = 2;

/// Makes one attempt to hold a lock. If it does not end with a guard, the grant or the queue entry is given
/// back: at once if the store answers, else by the janitor.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    name: &LockName,
    mode: Mode,
    options: &Options,
    wait: Wait,
    site: CallSite,
) -> Result<Guard> {
    let attempt = Attempt::begin(inner, name, mode, options, wait, site)?;
    if wait != Wait::NoWait
        && let Some(order) = inner.order
    {
        order.waits(&inner.identity, name, site);
    }
    let span = tracing::debug_span!("acquire", lock = %name, ?mode);
    attempt.finish().instrument(span).await
}

/// Takes several free locks in one call to the store. `None`: nothing was taken, and each is to be acquired by
/// itself. The call may take no longer than `limit`.
pub(crate) async fn acquire_together(
    inner: &Arc<Inner>,
    locks: &[(&LockName, &Options)],
    limit: Option<Duration>,
    site: CallSite,
) -> Option<Result<Vec<Guard>>> {
    let names: Vec<&str> = locks.iter().map(|(name, _)| name.as_str()).collect();
    let span = tracing::debug_span!("acquire", locks = ?names);
    let failed = match claim_together(inner, locks, limit, site).instrument(span).await? {
        Ok(guards) => return Some(Ok(guards)),
        Err(failed) => failed,
    };
    for (name, _) in locks {
        metric::not_acquired(&inner.labels.of(name), failed.kind());
    }
    tracing::debug!(locks = ?names, error = %failed, "could not acquire several locks in one call");
    Some(Err(match failed.lock() {
        Some(_) => failed,
        None => failed.about(locks[0].0),
    }))
}

async fn claim_together(
    inner: &Arc<Inner>,
    locks: &[(&LockName, &Options)],
    limit: Option<Duration>,
    site: CallSite,
) -> Option<Result<Vec<Guard>>> {
    let limit = limit.map_or(inner.call_timeout, |limit| limit.min(inner.call_timeout));
    let mut attempts = Vec::new();
    for (name, options) in locks {
        match Attempt::begin(inner, name, Mode::Exclusive, options, Wait::NoWait, site) {
            Ok(attempt) => attempts.push(attempt),
            Err(error) => return Some(Err(error.about(name))),
        }
    }
    let claims: Vec<Claim> = attempts.iter().map(|attempt| attempt.undo.claim.clone()).collect();
    attempts.iter_mut().for_each(|attempt| attempt.undo.armed = true);
    let sent = inner.clock.now();
    let error = match within(limit, "acquire", inner.store.claim_together(&claims)).await {
        Ok(Some(grants)) if grants.len() == attempts.len() => {
            inner.answered();
            let since = |grant: &Grant| grant.since.unwrap_or(sent);
            let mut granted = attempts.iter().zip(&grants);
            if granted.any(|(attempt, grant)| attempt.check_term(since(grant)).is_err()) {
                join_all(attempts.iter_mut().map(Attempt::give_back)).await;
                return None;
            }
            let granted = attempts.into_iter().zip(grants);
            let guard = |(attempt, grant): (Attempt<'_>, Grant)| {
                let since = since(&grant);
                attempt.into_guard(grant, since)
            };
            return Some(Ok(granted.map(guard).collect()));
        }
        Ok(None) => {
            attempts.iter_mut().for_each(|attempt| attempt.undo.armed = false);
            return None;
        }
        Ok(Some(_)) => {
            let why = "the store did not grant as many locks as were claimed: report it";
            Error::new(ErrorKind::Internal, "acquire", why).with_unknown_effect()
        }
        Err(error) => error,
    };
    if error.effect() == Effect::None {
        attempts.iter_mut().for_each(|attempt| attempt.undo.armed = false);
    }
    join_all(attempts.iter_mut().map(Attempt::give_back)).await;
    Some(Err(error))
}

/// Marks the recorded wait as ended by a grant.
fn mark_granted(recorded: &mut Option<Recorded>, waiting: Option<&tracing::Span>, grant: &Grant) {
    if let Some(mut wait) = recorded.take() {
        wait.is_granted = true;
    }
    if let (Some(span), Some(token)) = (waiting, grant.token) {
        span.record("token", token.get());
    }
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    options: &'a Options,
    wait: Wait,
    site: CallSite,
    started: Moment,
    /// How often the claim is repeated while the store does not wake it.
    poll: Duration,
    undo: Undo<'a>,
    last_answer: LastAnswer,
    /// Whether the client's clock ended the last call.
    was_unanswered: bool,
    /// The search for a hold of the same task, made when the claim is queued: the attempt may wait for
    /// itself.
    self_wait: Option<Option<SelfWait>>,
}

/// The store's last answer, for the error of a wait that has timed out.
enum LastAnswer {
    None,
    Queued,
    /// The last call failed.
    Error(Error),
}

/// Gives a claim back when dropped, unless it became a guard or never left.
struct Undo<'a> {
    inner: &'a Arc<Inner>,
    claim: Claim,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.inner.janitor.release_later(self.claim.clone());
        }
    }
}

impl<'a> Attempt<'a> {
    /// Checks what is asked for, and prepares a claim.
    fn begin(
        inner: &'a Arc<Inner>,
        name: &LockName,
        mode: Mode,
        options: &'a Options,
        wait: Wait,
        site: CallSite,
    ) -> Result<Self> {
        require_runtime("acquire").map_err(|error| error.about(name))?;
        options.check()?;
        if !mode.is_sound() {
            let why = "take at least one permit, and no more than there are";
            return Err(Error::new(ErrorKind::Invalid, "acquire", why).about(name));
        }
        if inner.keeper.is_gone() {
            let why = "the client's background task has ended, so the lock would not be renewed: make \
                       a new client, and report what the log says";
            return Err(Error::new(ErrorKind::Internal, "acquire", why).about(name));
        }
        let claim = inner.mint(name, mode, options);
        let poll = options.poll_cap.min(longest_queue_lease(claim.ttl) / 4);
        let undo = Undo { inner, claim, armed: false };
        Ok(Self {
            inner,
            options,
            wait,
            site,
            started: now(),
            poll,
            undo,
            last_answer: LastAnswer::None,
            was_unanswered: false,
            self_wait: None,
        })
    }

    async fn finish(mut self) -> Result<Guard> {
        let outcome = match self.wait {
            Wait::NoWait | Wait::Forever => self.granted().await,
            Wait::AtMost(limit) => match tokio::time::timeout(limit, self.granted()).await {
                Ok(outcome) => outcome,
                Err(_) => Err(self.timed_out(limit)),
            },
        };
        match outcome {
            Ok((grant, since)) => Ok(self.into_guard(grant, since)),
            Err(error) => {
                metric::not_acquired(&self.label(), error.kind());
                self.give_back().await;
                Err(error.about(&self.undo.claim.name))
            }
        }
    }

    /// Asks, waits to be woken, and asks again, until the claim is granted.
    async fn granted(&mut self) -> Result<(Grant, Moment)> {
        let mut faults = FaultBudget::new(match self.wait {
            Wait::NoWait => Duration::ZERO,
            Wait::AtMost(_) | Wait::Forever => self.inner.call_timeout * UNQUEUED_CALLS,
        });
        let mut wakes = SpuriousWakeBackoff::new(self.poll, now());
        let (mut waiting, mut recorded) = (None, None::<Recorded>);
        let mut span = None::<tracing::Span>;
        let mut too_short = 0;
        loop {
            let mut sent = self.inner.clock.now();
            let outcome = match self.ask().await {
                Ok(ClaimOutcome::Granted(grant)) => {
                    let since = grant.since.unwrap_or(sent);
                    match self.check_term(since) {
                        Ok(()) => {
                            mark_granted(&mut recorded, span.as_ref(), &grant);
                            return Ok((grant, since));
                        }
                        // A repeated claim starts the term anew, and its reply may be quicker.
                        Err(_) if too_short < RETRIES_OF_SHORT_TERMS => {
                            too_short += 1;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(ClaimOutcome::Queued(ticket)) => {
                    faults.queued();
                    self.last_answer = LastAnswer::Queued;
                    waiting.get_or_insert_with(|| metric::Waiting::start(self.label()));
                    if let (None, Some(waits)) = (&recorded, &self.inner.long_waits) {
                        recorded = Some(waits.begin(&self.undo.claim, self.started));
                    }
                    let lock = &self.undo.claim.name;
                    let of_wait = || tracing::debug_span!("waiting", %lock, token = field::Empty);
                    let span = span.get_or_insert_with(of_wait).clone();
                    let waited = self.wait(&ticket).instrument(span).await;
                    let Some(outcome) = waited else { continue };
                    // The claim was answered. If the wait failed, the outage begins here.
                    sent = self.inner.clock.now();
                    let fruitless = match &outcome {
                        Ok(ClaimOutcome::Queued(_)) => true,
                        Err(error) => error.is_transient(),
                        _ => false,
                    };
                    if fruitless {
                        wakes.pause(&self.undo.claim).await;
                    }
                    outcome
                }
                answer => answer,
            };
            match outcome {
                // If the start of its term is unknown or long ago, the claim is repeated: that starts it
                // anew.
                Ok(ClaimOutcome::Granted(grant)) => match grant.since {
                    Some(since) if self.check_term(since).is_ok() => {
                        mark_granted(&mut recorded, span.as_ref(), &grant);
                        return Ok((grant, since));
                    }
                    _ => {}
                },
                Ok(ClaimOutcome::Queued(_)) => {}
                Ok(ClaimOutcome::Busy) => {
                    self.undo.armed = false;
                    let why = self
                        .own_hold()
                        .unwrap_or_else(|| "another claim holds it: try later, or wait".into());
                    return Err(Error::new(ErrorKind::Busy, "acquire", why));
                }
                Err(error) => {
                    self.last_answer = LastAnswer::Error(error.clone());
                    if self.was_unanswered {
                        let answered = self.inner.last_answer();
                        faults.answered(answered);
                        sent = sent.max(answered);
                    }
                    let failed = self.inner.clock.now();
                    faults.pause(error, sent, failed, &self.undo.claim).await?;
                }
            }
        }
    }

    async fn ask(&mut self) -> Result<ClaimOutcome> {
        let policy = match self.wait {
            Wait::NoWait => WaitPolicy::NoWait,
            Wait::AtMost(_) | Wait::Forever => {
                let longest = longest_queue_lease(self.undo.claim.ttl);
                // The queue entry survives two lost polls and a slow reply.
                let lease = (self.poll * 3 + self.inner.call_timeout).min(longest);
                WaitPolicy::Queue { lease, poll: self.poll }
            }
        };
        let clean = !std::mem::replace(&mut self.undo.armed, true);
        let (limit, call) =
            (self.inner.call_timeout, self.inner.store.claim(&self.undo.claim, policy));
        let answer = tokio::time::timeout(limit, call).await;
        self.was_unanswered = answer.is_err();
        let answer = answer.unwrap_or_else(|_| Err(unanswered(limit, "acquire")));
        if answer.is_ok() {
            self.inner.answered();
        }
        if let Err(error) = &answer
            && clean
            && error.effect() == Effect::None
        {
            self.undo.armed = false;
        }
        answer
    }

    /// Waits until the store wakes the claim. `None`: the time for the next poll has come.
    async fn wait(&mut self, ticket: &QueueTicket) -> Option<Result<ClaimOutcome>> {
        let claim = &self.undo.claim;
        let self_wait = match &mut self.self_wait {
            Some(found) => found,
            none => {
                let in_the_way = self.inner.keeper.in_the_way_of(claim);
                match SelfWait::look(&in_the_way, self.site) {
                    Ok(found) => none.insert(found),
                    Err(certain) => return Some(Err(certain)),
                }
            }
        };
        // Spread over a quarter of the interval: claims that were queued together do not poll together.
        let spread = f64::from(claim.owner.as_bytes()[0]) / 1024.0;
        let poll = self.poll.mul_f64(1.0 - spread);
        let limit = match ticket.ask_again_in {
            // The store keeps the claim queued. Poll all the same, though rarely, in case it fails to.
            _ if ticket.tended => (poll * 64).min(Duration::from_secs(60)).max(poll),
            Some(time) => time.min(poll),
            None => poll,
        };
        let woken = self.inner.store.wait(claim, ticket);
        let outcome = match self_wait {
            None => tokio::time::timeout(limit, woken).await.ok(),
            Some(self_wait) => tokio::select! {
                outcome = tokio::time::timeout(limit, woken) => outcome.ok(),
                never = self_wait.warn() => match never {},
            },
        };
        // Terms are longer than this: a store that names shorter times again and again is limited
        // like one that wakes its waiters for nothing.
        let too_soon = limit < poll && limit < Options::MIN_TTL;
        outcome.or_else(|| too_soon.then_some(Ok(ClaimOutcome::Queued(*ticket))))
    }

    /// Refuses a grant with too little of its term left to work and renew in.
    fn check_term(&self, since: Moment) -> Result<()> {
        let term = self.undo.claim.ttl;
        let left = deadline(since, term).since(self.inner.clock.now());
        if left >= term / 2 {
            return Ok(());
        }
        let why = format!("only {left:?} of its {term:?} were left: ask for a longer TTL");
        Err(Error::new(ErrorKind::LeaseTooShort, "acquire", why))
    }

    /// No await lies between the grant and the guard: one or the other always owns the claim.
    fn into_guard(mut self, grant: Grant, since: Moment) -> Guard {
        self.undo.armed = false;
        let claim = self.undo.claim.clone();
        let label = self.label();
        let waited = matches!(self.last_answer, LastAnswer::Queued);
        metric::acquired(&label, now().since(self.started), waited);
        let hold_until = self.options.max_hold.map(|limit| self.inner.clock.now() + limit);
        let watchdog = Watchdog::new(since, claim.ttl, hold_until);
        let deadline = watchdog.deadline();
        let background = self.inner.background.downgrade();
        let clock = self.inner.clock;
        let lease = Lease::new(claim, grant.token, deadline, hold_until, clock, background);
        let keep_until = self.options.at_least.map(|time| clock.now() + time);
        let lease = lease.acquired_at(self.site).kept_until(keep_until);
        let lease = Arc::new(lease.counted(metric::Held::start(label)));
        if let Some(order) = self.inner.order {
            order.holds(&self.inner.identity, &lease);
        }
        Guard::new(Arc::clone(self.inner), lease, watchdog)
    }

    fn label(&self) -> metric::Label {
        self.inner.labels.of(&self.undo.claim.name)
    }

    /// Leaves the queue, or gives back a grant that came too late, before the error is returned. If the
    /// store is slow, the janitor goes on instead.
    async fn give_back(&mut self) {
        const COURTESY: Duration = Duration::from_millis(100);
        if self.undo.armed {
            let release = self.inner.store.release(&self.undo.claim);
            let released = tokio::time::timeout(COURTESY, release).await;
            self.undo.armed = !matches!(released, Ok(Ok(_)));
        }
    }

    /// If this client holds the lock itself, says so and where it was acquired.
    fn own_hold(&self) -> Option<String> {
        let own = self.inner.keeper.in_the_way_of(&self.undo.claim);
        let held_at = own.first()?.acquired_by.at;
        if own.first()?.is_kept {
            return Some(format!(
                "this client keeps it taken because of at-least, acquired at {held_at}: try later"
            ));
        }
        Some(format!(
            "this client holds it itself, acquired at {held_at}: release that guard first, or let both \
             callers share one `ReentrantMutex`"
        ))
    }

    fn timed_out(&self, limit: Duration) -> Error {
        let why = match &self.last_answer {
            LastAnswer::Error(error) => return error.clone(),
            LastAnswer::None => format!("the store did not answer within {limit:?}: wait longer"),
            LastAnswer::Queued => match self.own_hold() {
                Some(why) => why,
                None => {
                    format!("the lock was not free within {limit:?}: try later, or wait longer")
                }
            },
        };
        Error::new(ErrorKind::TimedOut, "acquire", why)
    }
}
