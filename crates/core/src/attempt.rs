//! From a claim to a guard: the project's only retry loop.

use std::sync::Arc;
use std::time::Duration;

use tenure_proto::{Backoff, Watchdog, deadline};
use tracing::Instrument;

use crate::client::Inner;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::metric;
use crate::{
    Answer, Claim, Clock, Effect, Error, ErrorKind, Grant, LockName, Mode, Moment, Options,
    Patience, Place, Result, now,
};

/// How long an attempt may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// No waiting at all.
    Try,
    /// At most this long.
    Within(Duration),
    /// Until it is granted.
    Forever,
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
    limit: Limit,
) -> Result<Guard> {
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
    Attempt::new(inner, claim, options, limit).finish().instrument(span).await
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    options: &'a Options,
    limit: Limit,
    started: Moment,
    undo: Undo<'a>,
    /// What the store's last answer was.
    said: Said,
}

/// What to tell of the store when the time is up.
enum Said {
    Nothing,
    Answer,
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
    fn new(inner: &'a Arc<Inner>, claim: Claim, options: &'a Options, limit: Limit) -> Self {
        let undo = Undo { inner, claim, armed: false };
        Self { inner, options, limit, started: now(), undo, said: Said::Nothing }
    }

    async fn finish(mut self) -> Result<Guard> {
        let outcome = match self.limit {
            Limit::Try | Limit::Forever => self.granted().await,
            Limit::Within(limit) => match tokio::time::timeout(limit, self.granted()).await {
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
        let mut trouble = Trouble::new(self.inner.call_timeout, self.inner.clock);
        let mut waiting = None;
        let mut too_short = 0;
        let mut unrest = Unrest::new();
        loop {
            let sent = self.inner.clock.now();
            let news = match self.ask().await {
                Ok(Answer::Granted(grant)) => {
                    let since = grant.since.unwrap_or(sent);
                    match self.check_term(&grant, since) {
                        Ok(()) => return Ok((grant, since)),
                        // Asked for again, it is dated anew, and that may be quicker than it was to get.
                        Err(_) if too_short < DATED_ANEW => {
                            too_short += 1;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(Answer::Queued(place)) => {
                    trouble.over();
                    self.said = Said::Answer;
                    waiting.get_or_insert_with(metric::Waiting::start);
                    let began = now();
                    let news = self.await_news(&place).await;
                    if let Ok(Answer::Queued(_)) = news {
                        unrest.pause(now().since(began), &self.undo.claim).await;
                    }
                    news
                }
                answer => answer,
            };
            match news {
                // Without a date, or with an old one, the grant is asked for again: that dates it.
                Ok(Answer::Granted(grant)) => match grant.since {
                    Some(since) if self.check_term(&grant, since).is_ok() => {
                        return Ok((grant, since));
                    }
                    _ => {}
                },
                Ok(Answer::Queued(_)) => {}
                Ok(Answer::Busy) => {
                    self.undo.armed = false;
                    let why = "another holds it: try later, or wait";
                    return Err(Error::new(ErrorKind::Busy, "acquire", why));
                }
                Err(error) => {
                    self.said = Said::Trouble(error.clone());
                    // `try_acquire` has the time of one call. Waiting callers can afford a lost reply.
                    let began =
                        if let Limit::Try = self.limit { sent } else { self.inner.clock.now() };
                    trouble.pause(error, began, &self.undo.claim).await?;
                }
            }
        }
    }

    async fn ask(&mut self) -> Result<Answer> {
        let patience = match self.limit {
            Limit::Try => Patience::None,
            // Long enough to miss two polls and a slow reply, short enough not to hold up others.
            _ => {
                let poll = self.options.poll_cap;
                Patience::Queue { lease: poll * 3 + self.inner.call_timeout, poll }
            }
        };
        let clean = !std::mem::replace(&mut self.undo.armed, true);
        let call = self.inner.store.claim(&self.undo.claim, patience);
        let answer = self.inner.call("acquire", call).await;
        if let Err(error) = &answer
            && clean
            && error.effect() == Effect::None
        {
            self.undo.armed = false;
        }
        answer
    }

    /// Waits for news of the claim, at most until it should ask again by itself.
    async fn await_news(&self, place: &Place) -> Result<Answer> {
        let claim = &self.undo.claim;
        // Waiters that came together need not ask together.
        let spread = f64::from(claim.owner.as_bytes()[0]) / 1024.0;
        let cap = self.options.poll_cap.mul_f64(1.0 - spread);
        let limit = match place.ask_again_in {
            // The store looks after it; that it does is seen to all the same.
            _ if place.tended => (cap * 64).min(Duration::from_secs(60)).max(cap),
            Some(obstacle) => obstacle.min(cap),
            None => cap,
        };
        let news = tokio::time::timeout(limit, self.inner.store.wait(claim, place));
        news.await.unwrap_or(Ok(Answer::Queued(*place)))
    }

    /// Refuses a grant of whose term too little is left to work and renew in.
    fn check_term(&self, grant: &Grant, since: Moment) -> Result<()> {
        let term = self.term(grant);
        let left = deadline(since, term).since(self.inner.clock.now());
        if left >= term / 2 {
            return Ok(());
        }
        let why = format!("only {left:?} of its {term:?} were left: ask for a longer TTL");
        Err(Error::new(ErrorKind::LeaseTooShort, "acquire", why))
    }

    fn term(&self, grant: &Grant) -> Duration {
        let ttl = self.undo.claim.ttl;
        grant.term.map_or(ttl, |term| term.min(ttl))
    }

    /// No await lies between the grant and the guard: one or the other always owns the claim.
    fn into_guard(mut self, grant: Grant, since: Moment) -> Guard {
        self.undo.armed = false;
        let claim = self.undo.claim.clone();
        metric::acquired(now().since(self.started));
        let hold_until = self.options.max_hold.map(|limit| self.inner.clock.now() + limit);
        let term = self.term(&grant);
        let watchdog = Watchdog::with_first_term(since, term, claim.ttl, hold_until);
        let deadline = watchdog.deadline();
        let runtime = self.inner.background.runtime().clone();
        let lease = Arc::new(Lease::new(
            claim,
            grant.token,
            deadline,
            hold_until,
            self.inner.clock,
            runtime,
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
            Said::Answer => format!("it was not free within {limit:?}: try later, or wait longer"),
        };
        Error::new(ErrorKind::TimedOut, "acquire", why)
    }
}

/// A run of news that brought nothing. A store that cannot tell when to ask again must not be asked
/// as fast as it answers.
struct Unrest {
    run: u32,
    backoff: Backoff,
}

impl Unrest {
    /// So many in a row are nothing unusual: a place may move up several times at once.
    const USUAL: u32 = 10;

    fn new() -> Self {
        Self { run: 0, backoff: Backoff::new(Duration::from_millis(2), Duration::from_millis(250)) }
    }

    /// What takes less than this was no waiting.
    const AT_ONCE: Duration = Duration::from_millis(2);

    async fn pause(&mut self, waited: Duration, claim: &Claim) {
        if waited > Self::AT_ONCE {
            *self = Self::new();
            return;
        }
        self.run += 1;
        if self.run > Self::USUAL {
            tokio::time::sleep(self.backoff.next(claim.owner.chance(now()))).await;
        }
    }
}

/// A run of faults: how long it has lasted, and when to try again.
struct Trouble {
    clock: Clock,
    began: Option<Moment>,
    backoff: Backoff,
    patience: Duration,
    call_timeout: Duration,
}

impl Trouble {
    /// A store that was never reached gets one call's time-out; one that has answered before gets
    /// five, so that a waiter survives a fail-over.
    fn new(call_timeout: Duration, clock: Clock) -> Self {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        Self { clock, began: None, backoff, patience: call_timeout, call_timeout }
    }

    fn over(&mut self) {
        self.began = None;
        self.backoff.reset();
        self.patience = self.call_timeout * 5;
    }

    /// Pauses before another try; hands the error back if another try is of no use. The
    /// trouble began at `began`, unless it lasts for longer.
    async fn pause(&mut self, error: Error, began: Moment, claim: &Claim) -> Result<()> {
        let began = *self.began.get_or_insert(began);
        if !error.is_transient() || self.clock.now().since(began) >= self.patience {
            return Err(error);
        }
        tracing::debug!(lock = %claim.name, %error, "trying again");
        tokio::time::sleep(self.backoff.next(claim.owner.chance(now()))).await;
        Ok(())
    }
}
