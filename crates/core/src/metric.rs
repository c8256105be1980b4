//! What is counted about locks, through the `metrics` facade, if the feature `metrics` is on.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::missing_const_for_fn))]

use std::time::Duration;

use crate::LossReason;

/// Calls a macro of the `metrics` crate, if there is one.
macro_rules! record {
    ($($call:tt)*) => {
        #[cfg(feature = "metrics")]
        {
            metrics::$($call)*;
        }
    };
}

/// Counts one waiter from its creation until it is dropped.
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn start() -> Self {
        record!(gauge!("tenure_waiters").increment(1));
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        record!(gauge!("tenure_waiters").decrement(1));
    }
}

pub(crate) fn acquired(after: Duration) {
    record!(histogram!("tenure_acquire_wait_seconds").record(after));
}

pub(crate) fn given_up(held: Duration) {
    record!(histogram!("tenure_hold_seconds").record(held));
}

pub(crate) fn renewal_missed() {
    record!(counter!("tenure_renewals_missed_total").increment(1));
}

pub(crate) fn lost(reason: LossReason) {
    let reason = match reason {
        LossReason::NotHeld => "not_held",
        LossReason::MaxHold => "max_hold",
        _ => "expired",
    };
    record!(counter!("tenure_losses_total", "reason" => reason).increment(1));
}

pub(crate) fn release_abandoned() {
    record!(counter!("tenure_releases_abandoned_total").increment(1));
}
