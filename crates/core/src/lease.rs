//! The client's own, conservative view of how long its grant is good.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::{Claim, LossReason, Moment, Token, metric, now};

/// One grant, as the guard and the keeper share it.
///
/// The guard reads the deadline off the clock; the keeper moves it and spreads the news. So a
/// guard knows that it is not valid even where the keeper gets no chance to run.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) token: Option<Token>,
    pub(crate) acquired: Moment,
    deadline: AtomicU64,
    health: AtomicU8,
    news: Notify,
}

const SOUND: u8 = 0;
const DANGER: u8 = 1;
const EXPIRED: u8 = 2;
const NOT_HELD: u8 = 3;
const MAX_HOLD: u8 = 4;

impl Lease {
    pub(crate) fn new(claim: Claim, token: Option<Token>, deadline: Moment) -> Self {
        Self {
            claim,
            token,
            acquired: now(),
            deadline: AtomicU64::new(deadline.as_nanos()),
            health: AtomicU8::new(SOUND),
            news: Notify::new(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        Moment::from_nanos(self.deadline.load(Ordering::Acquire)).since(now())
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.remaining() > Duration::ZERO
    }

    /// Why the lease was lost, if the keeper has said so.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.health.load(Ordering::Acquire) {
            SOUND | DANGER => None,
            NOT_HELD => Some(LossReason::NotHeld),
            MAX_HOLD => Some(LossReason::MaxHold),
            _ => Some(LossReason::Expired),
        }
    }

    /// A renewal was confirmed.
    pub(crate) fn extend(&self, deadline: Moment) {
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        self.turn_from(DANGER, SOUND);
    }

    pub(crate) fn warn(&self) {
        if self.turn_from(SOUND, DANGER) {
            let (lock, owner) = (&self.claim.name, self.claim.owner);
            tracing::warn!(%lock, ?owner, left = ?self.remaining(), "lease in danger: not renewed");
            self.news.notify_waiters();
        }
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        let health = match reason {
            LossReason::NotHeld => NOT_HELD,
            LossReason::MaxHold => MAX_HOLD,
            _ => EXPIRED,
        };
        self.health.store(health, Ordering::Release);
        let (lock, owner) = (&self.claim.name, self.claim.owner);
        tracing::warn!(%lock, ?owner, ?reason, "lease lost");
        metric::lost();
        self.news.notify_waiters();
    }

    /// Resolves when the lease is in danger, or lost.
    pub(crate) async fn danger(&self) {
        self.heard(|lease| (lease.health.load(Ordering::Acquire) != SOUND).then_some(())).await;
    }

    /// Resolves when the lease is lost.
    pub(crate) async fn lost(&self) -> LossReason {
        self.heard(Self::loss).await
    }

    /// Listens first, then looks, so that no news falls in between.
    async fn heard<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            if let Some(seen) = look(self) {
                return seen;
            }
            news.await;
        }
    }

    /// Drives `work` as long as the lease is valid: the clock is read before every step.
    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, LossReason> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(reason));
            }
            if !self.is_valid() {
                return Poll::Ready(Err(LossReason::Expired));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    fn turn_from(&self, from: u8, to: u8) -> bool {
        self.health.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(deadline: Moment) -> Lease {
        let claim = Claim::sample();
        Lease::new(claim, None, deadline)
    }

    #[tokio::test]
    async fn work_is_not_even_begun_past_the_deadline_though_nobody_has_signalled() {
        let mut begun = false;
        let outcome = lease(now()).run(async { begun = true }).await;
        assert_eq!(outcome, Err(LossReason::Expired));
        assert!(!begun);
    }

    #[tokio::test]
    async fn a_renewal_moves_the_deadline_forward_and_never_back() {
        let lease = lease(now());
        lease.extend(now() + Duration::from_secs(20));
        lease.extend(now() + Duration::from_secs(10));
        assert!(lease.remaining() > Duration::from_secs(15));
        assert_eq!(lease.run(async { 7 }).await, Ok(7));
    }
}
