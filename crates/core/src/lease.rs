//! The client's own, conservative view of how long its grant is good.

use std::future::poll_fn;
use std::panic::Location;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::background::WeakBackground;
use crate::task::{Acquired, CallSite};
use crate::{Claim, Clock, Error, LossReason, Mode, Moment, Revocation, Token, metric};

/// One grant, as the guard and the keeper share it.
///
/// The guard reads the deadline off the clock; the keeper moves it. So a guard knows that it is not
/// valid even where the keeper gets no chance to run. The guard or the keeper, whichever detects a
/// loss first, records it, once and for good: a later confirmation does not revive the lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) token: Option<Token>,
    pub(crate) acquired: Moment,
    /// Where it was acquired, and by which task.
    pub(crate) acquired_by: Acquired,
    /// The clock that all its moments are on: the store's.
    clock: Clock,
    deadline: AtomicU64,
    /// The holder's own limit, which no renewal moves.
    hold_until: Option<Moment>,
    /// Until when the lock stays taken, even if it is given up sooner.
    pub(crate) keep_until: Option<Moment>,
    /// Its guard is gone: the lock only stays taken.
    pub(crate) is_kept: bool,
    health: AtomicU8,
    changed: Notify,
    /// Why the last renewal failed, until one succeeds.
    renewal_failure: Mutex<Option<Error>>,
    cancellation: OnceLock<CancellationToken>,
    /// The request to let go that the holder was told of.
    pub(crate) revocation: OnceLock<Revocation>,
    /// For the metrics.
    pub(crate) held: metric::Held,
    /// Where timers run if the caller has no runtime.
    background: WeakBackground,
}

const SOUND: u8 = 0;
const DANGER: u8 = 1;
const EXPIRED: u8 = 2;
const NOT_HELD: u8 = 3;
const MAX_HOLD: u8 = 4;
const GIVEN_UP: u8 = 5;

/// Why work under a lease was stopped, or its result refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    reason: LossReason,
    /// The work had ended by then.
    finished: bool,
}

impl Lease {
    /// A lease that is held by the task that runs now.
    #[track_caller]
    pub(crate) fn new(
        claim: Claim,
        token: Option<Token>,
        deadline: Moment,
        hold_until: Option<Moment>,
        clock: Clock,
        background: WeakBackground,
    ) -> Self {
        Self {
            claim,
            token,
            acquired: clock.now(),
            acquired_by: Acquired::now(Location::caller()),
            clock,
            deadline: AtomicU64::new(deadline.as_nanos()),
            hold_until,
            keep_until: None,
            is_kept: false,
            health: AtomicU8::new(SOUND),
            changed: Notify::new(),
            renewal_failure: Mutex::default(),
            cancellation: OnceLock::new(),
            revocation: OnceLock::new(),
            held: metric::Held::default(),
            background,
        }
    }

    /// The same lease, acquired at this place of the program.
    pub(crate) fn acquired_at(mut self, site: CallSite) -> Self {
        self.acquired_by.at = site;
        self
    }

    /// The same lease, counted as one that is held.
    pub(crate) fn counted(mut self, held: metric::Held) -> Self {
        self.held = held;
        self
    }

    /// The lease that follows this one when the same claim is held in another mode: it has the same end, and
    /// the same beginning for the statistics.
    pub(crate) fn successor(&self, mode: Mode, token: Option<Token>) -> Self {
        let claim = Claim { mode, ..self.claim.clone() };
        let (deadline, background) = (self.deadline(), self.background.clone());
        let next = Self::new(claim, token, deadline, self.hold_until, self.clock, background);
        let (acquired, acquired_by) = (self.acquired, self.acquired_by.clone());
        let (revocation, held) = (self.revocation.clone(), self.held.pass_on());
        Self { acquired, acquired_by, keep_until: self.keep_until, revocation, held, ..next }
    }

    /// The same lease, of a lock that stays taken until this moment.
    pub(crate) fn kept_until(mut self, moment: Option<Moment>) -> Self {
        self.keep_until = moment;
        self
    }

    /// How long the lock stays taken if it is given up now. Zero if it is lost, or another process has asked
    /// for it.
    pub(crate) fn kept_for(&self) -> Duration {
        match (self.keep_until, self.loss()) {
            (Some(until), None) if self.revocation.get().is_none() => until.since(self.now()),
            _ => Duration::ZERO,
        }
    }

    /// A lease of the same grant, for the time that the lock stays taken after the guard is gone.
    pub(crate) fn kept(&self) -> Self {
        let kept = Self { is_kept: true, ..self.successor(self.claim.mode, self.token) };
        kept.held.end();
        kept
    }

    /// The present moment on the lease's clock.
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.loss() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.now()),
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Why the lease is over, if it is. Reads the clock, and records a loss that it finds.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if let Some(reason) = self.recorded() {
            return Some(reason);
        }
        let now = self.now();
        if now < self.deadline() {
            return None;
        }
        let capped = self.hold_until.is_some_and(|cap| now >= cap);
        self.lose(if capped { LossReason::MaxHold } else { LossReason::Expired });
        self.recorded()
    }

    fn recorded(&self) -> Option<LossReason> {
        Some(match self.health.load(Ordering::Acquire) {
            SOUND | DANGER => return None,
            NOT_HELD => LossReason::NotHeld,
            MAX_HOLD => LossReason::MaxHold,
            GIVEN_UP => LossReason::GivenUp,
            _ => LossReason::Expired,
        })
    }

    fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// A renewal was confirmed. False if the lease is over: then it need not be renewed again.
    pub(crate) fn extend(&self, deadline: Moment) -> bool {
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        self.turn([DANGER], SOUND);
        self.renewal_failure.lock().take();
        self.recorded().is_none()
    }

    /// A renewal failed, or got no reply in time.
    pub(crate) fn note_failure(&self, error: Error) {
        *self.renewal_failure.lock() = Some(error);
    }

    pub(crate) fn warn(&self) {
        if self.turn([SOUND], DANGER) {
            let (lock, owner) = (&self.claim.name, self.claim.owner);
            let (token, left) = (self.token.map(Token::get), self.remaining());
            tracing::warn!(%lock, ?owner, token, ?left, "lease in danger: not renewed for half its term");
            self.held.in_danger();
            self.changed.notify_waiters();
        }
    }

    /// Records a loss: the first reason counts, is logged and is counted.
    pub(crate) fn lose(&self, reason: LossReason) {
        let health = match reason {
            LossReason::NotHeld => NOT_HELD,
            LossReason::MaxHold => MAX_HOLD,
            _ => EXPIRED,
        };
        // `give_up` comes before the release. A release that finds the lock not held still records the
        // loss.
        let given_up = reason == LossReason::NotHeld && self.turn([GIVEN_UP], health);
        if given_up || self.turn([SOUND, DANGER], health) {
            let (lock, owner, token) = (&self.claim.name, self.claim.owner, self.token);
            let late = self.now().since(self.deadline());
            let cause = self.renewal_failure.lock().as_ref().map(ToString::to_string);
            let cause = cause.as_deref().unwrap_or("no renewal failed before it");
            tracing::warn!(%lock, ?owner, ?token, ?reason, ?late, cause, "lease lost");
            self.held.lost(reason);
            self.held.end();
            self.announce_end();
        }
    }

    /// The holder gives the lock back. A loss that the clock shows by now is recorded first.
    pub(crate) fn give_up(&self) {
        if self.loss().is_none() && self.turn([SOUND, DANGER], GIVEN_UP) {
            self.announce_end();
        }
    }

    fn announce_end(&self) {
        self.changed.notify_waiters();
        // Either this call sees the token, or the call that creates the token sees the end.
        fence(Ordering::SeqCst);
        if let Some(token) = self.cancellation.get() {
            token.cancel();
        }
    }

    /// A token that is cancelled when the lease is over.
    pub(crate) fn cancellation_token(&self) -> CancellationToken {
        let token = self.cancellation.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if self.loss().is_some() {
            token.cancel();
        }
        // A child, because a user that cancels the token must not cancel it for others.
        token.child_token()
    }

    /// Resolves when the lease is in danger, or lost.
    pub(crate) async fn danger(&self) {
        self.until(|lease| {
            (lease.loss().is_some() || lease.health.load(Ordering::Acquire) != SOUND).then_some(())
        })
        .await;
    }

    /// Resolves when the lease is lost.
    pub(crate) async fn lost(&self) -> LossReason {
        self.until(Self::loss).await
    }

    /// Resolves when `look` finds something. It looks at every change, and whenever the deadline it
    /// knew of has passed: a lease whose keeper is gone ends all the same.
    async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            // Listens first, then looks, so that no change falls in between.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(seen) = look(self) {
                return seen;
            }
            tokio::select! {
                () = changed => {}
                () = self.sleep(self.remaining()) => {}
            }
        }
    }

    /// Sleeps on the caller's runtime, where there is one: it must not depend on the keeper's.
    async fn sleep(&self, time: Duration) {
        if Handle::try_current().is_ok() {
            return tokio::time::sleep(time).await;
        }
        // Kept until the sleep ends: a timer whose runtime has ended panics.
        let Some(background) = self.background.upgrade() else {
            // The guard is gone with the client, and the end of the lease has been announced.
            return std::future::pending().await;
        };
        let sleep = {
            let _inside = background.runtime().enter();
            tokio::time::sleep(time)
        };
        sleep.await;
    }

    /// Drives `work` as long as the lease is valid: the clock is read before every step, and after
    /// the last.
    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Interrupted> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            // Polled for its wake-up; the clock is read in any case.
            let told = lost.as_mut().poll(context).is_ready();
            if told || self.loss().is_some() {
                return Poll::Ready(Err(self.interrupted(false)));
            }
            match work.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) if self.loss().is_some() => Poll::Ready(Err(self.interrupted(true))),
                Poll::Ready(output) => Poll::Ready(Ok(output)),
            }
        })
        .await
    }

    /// The error of work under the lease, if the lease is over.
    pub(crate) fn interruption(&self, finished: bool) -> Option<Error> {
        self.loss().map(|reason| self.error(Interrupted { reason, finished }))
    }

    fn interrupted(&self, finished: bool) -> Interrupted {
        Interrupted { reason: self.recorded().unwrap_or(LossReason::Expired), finished }
    }

    /// The error for work that was interrupted.
    pub(crate) fn error(&self, interrupted: Interrupted) -> Error {
        let Interrupted { reason, finished } = interrupted;
        let failure = self.renewal_failure.lock().clone();
        let failed = failure.as_ref().map(|error| format!(" (the last renewal: {error})"));
        let work = match finished {
            true => {
                "the work ran to its end, but not under the lock: it may have overlapped with \
                 another holder's, so check what it did"
            }
            false => "the work was stopped where it was",
        };
        let why = format!("{reason}{}: {work}", failed.unwrap_or_default());
        let error = Error::lost(reason, "finish the work under the lock", why);
        let error = error.about(&self.claim.name);
        match failure {
            Some(failure) => error.caused_by(failure),
            None => error,
        }
    }

    fn turn<const N: usize>(&self, from: [u8; N], to: u8) -> bool {
        from.iter().any(|&from| {
            self.health.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::SUSPENDED;
    use crate::now;

    fn lease(deadline: Moment) -> Lease {
        Lease::new(Claim::sample(), None, deadline, None, Clock::Boot, WeakBackground::default())
    }

    #[tokio::test]
    async fn a_lease_survives_a_suspend_exactly_where_its_store_stands_still_with_the_machine() {
        for clock in [Clock::Boot, Clock::Monotonic] {
            let deadline = clock.now() + Duration::from_secs(60);
            let background = WeakBackground::default();
            let lease = Lease::new(Claim::sample(), None, deadline, None, clock, background);
            SUSPENDED.set(Duration::from_secs(86_400));
            let survived = lease.is_valid();
            SUSPENDED.set(Duration::ZERO);
            assert_eq!(survived, clock == Clock::Monotonic);
            assert_eq!(lease.remaining() > Duration::ZERO, survived, "a loss is for good");
        }
    }

    const EXPIRED_BEFORE: Interrupted =
        Interrupted { reason: LossReason::Expired, finished: false };

    #[tokio::test]
    async fn work_is_not_even_begun_past_the_deadline_though_nothing_has_signalled() {
        let mut begun = false;
        let outcome = lease(now()).run(async { begun = true }).await;
        assert_eq!(outcome, Err(EXPIRED_BEFORE));
        assert!(!begun);
    }

    #[tokio::test]
    async fn a_renewal_moves_the_deadline_forward_and_never_back() {
        let lease = lease(now() + Duration::from_secs(5));
        lease.extend(now() + Duration::from_secs(20));
        lease.extend(now() + Duration::from_secs(10));
        assert!(lease.remaining() > Duration::from_secs(15));
        assert_eq!(lease.run(async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn a_renewal_that_is_confirmed_after_a_loss_was_seen_does_not_revive_the_lease() {
        let lease = lease(now());
        assert!(!lease.is_valid());
        lease.extend(now() + Duration::from_secs(20));
        assert!(!lease.is_valid());
    }

    #[tokio::test]
    async fn without_a_keeper_waiting_and_working_end_at_the_deadline() {
        let soon = || lease(now() + Duration::from_millis(20));
        assert_eq!(soon().lost().await, LossReason::Expired);
        soon().danger().await;
        assert_eq!(soon().run(std::future::pending::<()>()).await, Err(EXPIRED_BEFORE));
    }

    #[tokio::test]
    async fn a_cancellation_token_is_cancelled_by_a_loss_before_and_after_it_was_asked_for() {
        let lease = lease(now() + Duration::from_secs(60));
        let before = lease.cancellation_token();
        let own = lease.cancellation_token();
        own.cancel();
        assert!(!before.is_cancelled(), "a token that its user cancels ends no other");
        lease.lose(LossReason::NotHeld);
        assert!(before.is_cancelled() && lease.cancellation_token().is_cancelled());
    }
}
