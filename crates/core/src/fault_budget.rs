//! How long an attempt goes on while the store fails.

use std::time::Duration;

use tenure_proto::Backoff;

use crate::{Claim, Error, Moment, Result, now};

/// How long an attempt goes on while the store fails, and when it tries again.
///
/// Until the store has queued the claim, the attempt goes on for a fixed time. A claim that has been
/// queued goes on through an outage of any length: only the caller's time limit ends it.
///
/// A crowd of claims may keep the store busy for longer than that. So a claim that the client's clock ended
/// is not held against a store that has answered another claim of the client meanwhile. An engine that found
/// its server silent has said so before ([`step_limit`](crate::store::step_limit)).
pub(crate) struct FaultBudget {
    /// When the first of the calls was sent that have failed in a row.
    began: Option<Moment>,
    backoff: Backoff,
    /// How long the attempt goes on. `None`: as long as the caller waits.
    limit: Option<Duration>,
    /// How long the outage must have lasted for the next warning.
    warn_at: Duration,
}

impl FaultBudget {
    /// An outage of this length is logged for the first time.
    const FIRST_WARNING: Duration = Duration::from_secs(5);
    /// The log repeats an outage that lasts this often.
    const WARN_EVERY: Duration = Duration::from_secs(60);

    /// For a claim that the store has not queued: it is tried for `limit`; if that is zero, once.
    pub(crate) const fn new(limit: Duration) -> Self {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        Self { began: None, backoff, limit: Some(limit), warn_at: Self::FIRST_WARNING }
    }

    /// The store has answered another claim at this moment: it is busy, and there is no outage.
    pub(crate) fn answered(&mut self, at: Moment) {
        self.began = self.began.map(|began| began.max(at));
    }

    /// The store has queued the claim. An outage is over, and the next one may last.
    pub(crate) const fn queued(&mut self) {
        self.began = None;
        self.backoff.reset();
        self.limit = None;
        self.warn_at = Self::FIRST_WARNING;
    }

    /// Sleeps before the next try, after a call that was sent at `sent` and failed at `failed`, both
    /// on one clock.
    ///
    /// # Errors
    /// `error`, if it is not transient or the budget is spent.
    pub(crate) async fn pause(
        &mut self,
        error: Error,
        sent: Moment,
        failed: Moment,
        claim: &Claim,
    ) -> Result<()> {
        if !error.is_transient() {
            return Err(error);
        }
        let name = &claim.name;
        match self.after_fault(sent, failed) {
            Next::GiveUp => return Err(error),
            Next::Warn(outage) => {
                let seconds = outage.as_secs();
                tracing::warn!(lock = %name, %error, "still waiting: the store has failed for {seconds} s");
            }
            Next::Retry => tracing::debug!(lock = %name, %error, "trying again"),
        }
        tokio::time::sleep(self.backoff.next(claim.owner.chance(now()))).await;
        Ok(())
    }

    fn after_fault(&mut self, sent: Moment, failed: Moment) -> Next {
        let outage = failed.since(*self.began.get_or_insert(sent));
        match self.limit {
            Some(limit) if outage >= limit => Next::GiveUp,
            None if outage >= self.warn_at => {
                self.warn_at = outage + Self::WARN_EVERY;
                Next::Warn(outage)
            }
            _ => Next::Retry,
        }
    }
}

/// What an attempt does after a transient fault.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Retry,
    /// Retry, and log how long the outage has lasted.
    Warn(Duration),
    GiveUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// What happens when a call fails every second from now on, and when.
    fn outage(budget: &mut FaultBudget, length: u64) -> Vec<(u64, Next)> {
        let start = Moment::default() + seconds(1_000);
        let fault = |budget: &mut FaultBudget, second: u64| {
            budget.after_fault(start + seconds(second - 1), start + seconds(second))
        };
        let all = (1..=length).map(|second| (second, fault(budget, second)));
        all.filter(|(_, next)| *next != Next::Retry).collect()
    }

    #[test]
    fn a_claim_that_was_never_queued_is_given_up_when_its_time_is_spent() {
        assert_eq!(outage(&mut FaultBudget::new(seconds(10)), 10), [(10, Next::GiveUp)]);
    }

    #[test]
    fn a_claim_without_time_is_given_up_at_the_first_fault() {
        assert_eq!(outage(&mut FaultBudget::new(Duration::ZERO), 1), [(1, Next::GiveUp)]);
    }

    #[test]
    fn a_queued_claim_goes_on_and_warns_after_five_seconds_and_then_once_a_minute() {
        let mut budget = FaultBudget::new(seconds(10));
        let warnings = [5, 65, 125].map(|second| (second, Next::Warn(seconds(second))));
        for _ in 0..2 {
            budget.queued();
            assert_eq!(outage(&mut budget, 180), warnings);
        }
    }

    #[test]
    fn an_outage_begins_after_the_last_answer_to_another_claim() {
        let mut budget = FaultBudget::new(seconds(10));
        let start = Moment::default() + seconds(1_000);
        let fault =
            |budget: &mut FaultBudget, second| budget.after_fault(start, start + seconds(second));
        assert_eq!(fault(&mut budget, 9), Next::Retry);
        budget.answered(start + seconds(8));
        budget.answered(start + seconds(5));
        assert_eq!(fault(&mut budget, 17), Next::Retry);
        assert_eq!(fault(&mut budget, 18), Next::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_no_retry_heals_is_handed_back_at_once() {
        let error = Error::new(crate::ErrorKind::Denied, "acquire", "not allowed");
        let mut budget = FaultBudget::new(seconds(10));
        budget.queued();
        let paused = budget.pause(error, now(), now(), &Claim::sample()).await;
        assert_eq!(paused.unwrap_err().kind(), crate::ErrorKind::Denied);
    }
}
