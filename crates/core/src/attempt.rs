//! From a claim to a guard: the project's only retry loop.

use std::sync::Arc;
use std::time::Duration;

use tenure_proto::{Watchdog, deadline};
use tracing::Instrument;

use crate::client::Inner;
use crate::fault_budget::FaultBudget;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::metric;
use crate::spurious_wake::SpuriousWakeBackoff;
use crate::{
    Claim, ClaimOutcome, Effect, Error, ErrorKind, Grant, LockName, Mode, Moment, Options,
    QueueTicket, Result, Wait, WaitPolicy, now, require_runtime,
};

/// For how many call timeouts an attempt goes on while the store fails and has not queued the claim.
const UNQUEUED_CALLS: u32 = 5;

/// How long a place in line may last without a sign of life. A waiter that dies is in the way for no
/// longer than a holder that dies, or half a minute where the TTL is shorter. Hence a waiter asks four
/// times as often, whatever its poll cap.
fn longest_place(ttl: Duration) -> Duration {
    ttl.max(Duration::from_secs(30))
}

/// How often a grant of whose term too little is left is asked for again.
const DATED_ANEW: u32 = 2;

/// Makes one attempt on a lock. Whichever way out it takes, a grant or a place that did not become
/// a guard is given back: at once where it can, else by the janitor.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    name: &LockName,
    mode: Mode,
    options: &Options,
    wait: Wait,
) -> Result<Guard> {
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
    let span = tracing::debug_span!("acquire", lock = %name, ?mode);
    let claim = inner.mint(name, mode, options);
    Attempt::new(inner, claim, options, wait).finish().instrument(span).await
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    options: &'a Options,
    wait: Wait,
    started: Moment,
    /// How often the claim is asked for while nothing is heard.
    poll: Duration,
    undo: Undo<'a>,
    /// What the store's last answer was.
    said: Said,
}

/// What to tell of the store when the time is up.
enum Said {
    Nothing,
    ClaimOutcome,
    /// It failed, and has not answered since.
    Trouble(Error),
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
    fn new(inner: &'a Arc<Inner>, claim: Claim, options: &'a Options, wait: Wait) -> Self {
        let poll = options.poll_cap.min(longest_place(claim.ttl) / 4);
        let undo = Undo { inner, claim, armed: false };
        Self { inner, options, wait, started: now(), poll, undo, said: Said::Nothing }
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
                self.give_back().await;
                Err(error.about(&self.undo.claim.name))
            }
        }
    }

    /// Asks, waits for news, asks again, until the claim is granted.
    async fn granted(&mut self) -> Result<(Grant, Moment)> {
        let mut faults = FaultBudget::new(match self.wait {
            Wait::NoWait => Duration::ZERO,
            Wait::AtMost(_) | Wait::Forever => self.inner.call_timeout * UNQUEUED_CALLS,
        });
        let mut wakes = SpuriousWakeBackoff::new(self.poll, now());
        let mut waiting = None;
        let mut too_short = 0;
        loop {
            let mut sent = self.inner.clock.now();
            let news = match self.ask().await {
                Ok(ClaimOutcome::Granted(grant)) => {
                    let since = grant.since.unwrap_or(sent);
                    match self.check_term(since) {
                        Ok(()) => return Ok((grant, since)),
                        // Asked for again, it is dated anew, and that may be quicker than it was to get.
                        Err(_) if too_short < DATED_ANEW => {
                            too_short += 1;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(ClaimOutcome::Queued(place)) => {
                    faults.queued();
                    self.said = Said::ClaimOutcome;
                    waiting.get_or_insert_with(metric::Waiting::start);
                    let Some(news) = self.await_news(&place).await else { continue };
                    // The claim was answered. If the wait failed, the outage begins here.
                    sent = self.inner.clock.now();
                    let fruitless = match &news {
                        Ok(ClaimOutcome::Queued(_)) => true,
                        Err(error) => error.is_transient(),
                        _ => false,
                    };
                    if fruitless {
                        wakes.pause(&self.undo.claim).await;
                    }
                    news
                }
                answer => answer,
            };
            match news {
                // Without a date, or with an old one, the grant is asked for again: that dates it.
                Ok(ClaimOutcome::Granted(grant)) => match grant.since {
                    Some(since) if self.check_term(since).is_ok() => {
                        return Ok((grant, since));
                    }
                    _ => {}
                },
                Ok(ClaimOutcome::Queued(_)) => {}
                Ok(ClaimOutcome::Busy) => {
                    self.undo.armed = false;
                    let why = "another holds it: try later, or wait";
                    return Err(Error::new(ErrorKind::Busy, "acquire", why));
                }
                Err(error) => {
                    self.said = Said::Trouble(error.clone());
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
                let longest = longest_place(self.undo.claim.ttl);
                // The place survives two lost polls and a slow reply.
                let lease = (self.poll * 3 + self.inner.call_timeout).min(longest);
                WaitPolicy::Queue { lease, poll: self.poll }
            }
        };
        let clean = !std::mem::replace(&mut self.undo.armed, true);
        let call = self.inner.store.claim(&self.undo.claim, policy);
        let answer = self.inner.call("acquire", call).await;
        if let Err(error) = &answer
            && clean
            && error.effect() == Effect::None
        {
            self.undo.armed = false;
        }
        answer
    }

    /// Waits for news of the claim. `None`: there was none by the time of the next poll.
    async fn await_news(&self, place: &QueueTicket) -> Option<Result<ClaimOutcome>> {
        let claim = &self.undo.claim;
        // Waiters that came together need not ask together.
        let spread = f64::from(claim.owner.as_bytes()[0]) / 1024.0;
        let poll = self.poll.mul_f64(1.0 - spread);
        let limit = match place.ask_again_in {
            // The store looks after the place. Ask now and then all the same, in case it fails to.
            _ if place.tended => (poll * 64).min(Duration::from_secs(60)).max(poll),
            Some(obstacle) => obstacle.min(poll),
            None => poll,
        };
        let news = tokio::time::timeout(limit, self.inner.store.wait(claim, place)).await.ok();
        // Terms are longer than this: a store that names shorter times again and again is limited
        // like one that wakes its waiters for nothing.
        let too_soon = limit < poll && limit < Options::MIN_TTL;
        news.or_else(|| too_soon.then_some(Ok(ClaimOutcome::Queued(*place))))
    }

    /// Refuses a grant of whose term too little is left to work and renew in.
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
        metric::acquired(now().since(self.started));
        let hold_until = self.options.max_hold.map(|limit| self.inner.clock.now() + limit);
        let watchdog = Watchdog::new(since, claim.ttl, hold_until);
        let deadline = watchdog.deadline();
        let background = self.inner.background.downgrade();
        let lease = Arc::new(Lease::new(
            claim,
            grant.token,
            deadline,
            hold_until,
            self.inner.clock,
            background,
        ));
        Guard::new(Arc::clone(self.inner), lease, watchdog)
    }

    /// Leaves the line, or gives back a grant that came too late, before the caller hears of it.
    /// If the store takes its time, the caller is not kept waiting: the janitor goes on.
    async fn give_back(&mut self) {
        const COURTESY: Duration = Duration::from_millis(100);
        if self.undo.armed {
            let release = self.inner.store.release(&self.undo.claim);
            let released = tokio::time::timeout(COURTESY, release).await;
            self.undo.armed = !matches!(released, Ok(Ok(_)));
        }
    }

    fn timed_out(&self, limit: Duration) -> Error {
        let why = match &self.said {
            Said::Trouble(error) => return error.clone(),
            Said::Nothing => format!("the store did not answer within {limit:?}: wait longer"),
            Said::ClaimOutcome => {
                format!("it was not free within {limit:?}: try later, or wait longer")
            }
        };
        Error::new(ErrorKind::TimedOut, "acquire", why)
    }
}
