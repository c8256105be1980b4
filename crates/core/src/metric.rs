//! What can be counted about locks, through the `metrics` facade. No recorder, no cost.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::LossReason;

/// Counts one waiter from its creation until it is dropped.
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn start() -> Self {
        gauge!("tenure_waiters").increment(1);
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        gauge!("tenure_waiters").decrement(1);
    }
}

pub(crate) fn acquired(after: Duration) {
    histogram!("tenure_acquire_wait_seconds").record(after);
}

pub(crate) fn given_up(held: Duration) {
    histogram!("tenure_hold_seconds").record(held);
}

pub(crate) fn renewal_missed() {
    counter!("tenure_renewals_missed_total").increment(1);
}

pub(crate) fn lost(reason: LossReason) {
    let reason = match reason {
        LossReason::NotHeld => "not_held",
        LossReason::MaxHold => "max_hold",
        _ => "expired",
    };
    counter!("tenure_losses_total", "reason" => reason).increment(1);
}

pub(crate) fn release_abandoned() {
    counter!("tenure_releases_abandoned_total").increment(1);
}
