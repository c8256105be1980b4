//! What is counted about locks, through the `metrics` facade, if the feature `metrics` is on.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::missing_const_for_fn))]

use std::time::Duration;

use crate::{ErrorKind, LockName, LossReason};

/// Calls a macro of the `metrics` crate, if there is one.
macro_rules! record {
    ($($call:tt)*) => {
        #[cfg(feature = "metrics")]
        {
            metrics::$($call)*;
        }
    };
}

/// Records under a key that exists. The macros of the `metrics` crate make one for each call, which costs an
/// allocation on every acquire and release even where nothing records.
macro_rules! record_as {
    ($key:expr, $register:ident, $($call:tt)*) => {
        #[cfg(feature = "metrics")]
        metrics::with_recorder(|recorder| recorder.$register(&$key, &METADATA).$($call)*);
    };
}

#[cfg(feature = "metrics")]
static METADATA: metrics::Metadata<'static> =
    metrics::Metadata::new(module_path!(), metrics::Level::INFO, Some(module_path!()));

/// Which locks have a `lock` label of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    #[cfg(feature = "metrics")]
    rules: std::sync::Arc<[Label]>,
}

/// The `lock` label of one lock.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "metrics"), derive(Default))]
pub(crate) struct Label {
    #[cfg(feature = "metrics")]
    keys: std::sync::Arc<Keys>,
}

/// A label, and the keys of what every acquire and release records under it.
#[cfg(feature = "metrics")]
#[derive(Debug)]
struct Keys {
    text: metrics::SharedString,
    waiters: metrics::Key,
    held: metrics::Key,
    hold_seconds: metrics::Key,
    acquire_wait_seconds: metrics::Key,
    handoffs: metrics::Key,
}

#[cfg(feature = "metrics")]
impl Label {
    fn new(text: metrics::SharedString) -> Self {
        let key = |name: &'static str| {
            metrics::Key::from_parts(name, vec![metrics::Label::new("lock", text.clone())])
        };
        let keys = Keys {
            waiters: key("tenure_waiters"),
            held: key("tenure_held"),
            hold_seconds: key("tenure_hold_seconds"),
            acquire_wait_seconds: key("tenure_acquire_wait_seconds"),
            handoffs: key("tenure_handoffs_total"),
            text,
        };
        Self { keys: std::sync::Arc::new(keys) }
    }

    fn text(&self) -> metrics::SharedString {
        self.keys.text.clone()
    }
}

impl Labels {
    /// How many rules there may be: each is a label.
    #[cfg(feature = "metrics")]
    pub(crate) const MOST: usize = 200;

    #[cfg(feature = "metrics")]
    pub(crate) fn new<'a>(rules: impl IntoIterator<Item = &'a str>) -> Self {
        let label = |rule| Label::new(std::sync::Arc::<str>::from(rule).into());
        Self { rules: rules.into_iter().map(label).collect() }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn count(&self) -> usize {
        self.rules.len()
    }

    /// Lets the counters of rare events begin at zero: one that begins at one does not show its first event as
    /// an increase.
    pub(crate) fn begin(&self) {
        #[cfg(feature = "metrics")]
        for label in self.rules.iter().chain([&*OTHER]) {
            record!(counter!("tenure_renewals_late_total", "lock" => label.text()).increment(0));
            record!(counter!("tenure_renewals_missed_total", "lock" => label.text()).increment(0));
            for reason in [NOT_HELD, MAX_HOLD, EXPIRED] {
                record!(
                    counter!("tenure_losses_total", "lock" => label.text(), "reason" => reason)
                        .increment(0)
                );
            }
        }
    }

    pub(crate) fn of(&self, name: &LockName) -> Label {
        #[cfg(feature = "metrics")]
        {
            let fits = |label: &&Label| match label.keys.text.strip_suffix('*') {
                Some(prefix) => name.as_str().starts_with(prefix),
                None => *label.keys.text == *name.as_str(),
            };
            self.rules.iter().find(fits).cloned().unwrap_or_default()
        }
        #[cfg(not(feature = "metrics"))]
        Label {}
    }
}

/// The label of all other locks.
#[cfg(feature = "metrics")]
static OTHER: std::sync::LazyLock<Label> = std::sync::LazyLock::new(|| Label::new("other".into()));

#[cfg(feature = "metrics")]
impl Default for Label {
    fn default() -> Self {
        OTHER.clone()
    }
}

/// Counts one waiter from its creation until it is dropped.
pub(crate) struct Waiting(Label);

impl Waiting {
    pub(crate) fn start(label: Label) -> Self {
        record_as!(label.keys.waiters, register_gauge, increment(1));
        Self(label)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        record_as!(self.0.keys.waiters, register_gauge, decrement(1));
    }
}

const NOT_HELD: &str = "not_held";
const MAX_HOLD: &str = "max_hold";
const EXPIRED: &str = "expired";

/// Counts one hold until it ends, for whichever reason is noticed first.
#[derive(Debug, Default)]
pub(crate) struct Held {
    label: Label,
    #[cfg(feature = "metrics")]
    is_counted: std::sync::atomic::AtomicBool,
}

impl Held {
    pub(crate) fn start(label: Label) -> Self {
        record_as!(label.keys.held, register_gauge, increment(1));
        #[cfg(feature = "metrics")]
        return Self { label, is_counted: true.into() };
        #[cfg(not(feature = "metrics"))]
        Self { label }
    }

    /// Counts the hold from now on, in place of this one.
    pub(crate) fn pass_on(&self) -> Self {
        let label = self.label.clone();
        #[cfg(feature = "metrics")]
        let is_counted = self.is_counted.swap(false, std::sync::atomic::Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        return Self { label, is_counted: is_counted.into() };
        #[cfg(not(feature = "metrics"))]
        Self { label }
    }

    pub(crate) fn end(&self) {
        #[cfg(feature = "metrics")]
        if self.is_counted.swap(false, std::sync::atomic::Ordering::Relaxed) {
            record_as!(self.label.keys.held, register_gauge, decrement(1));
        }
    }

    pub(crate) fn given_up(&self, held: Duration) {
        record_as!(self.label.keys.hold_seconds, register_histogram, record(held));
    }

    pub(crate) fn in_danger(&self) {
        let label = &self.label;
        record!(counter!("tenure_renewals_late_total", "lock" => label.text()).increment(1));
    }

    pub(crate) fn renewal_missed(&self) {
        let label = &self.label;
        record!(counter!("tenure_renewals_missed_total", "lock" => label.text()).increment(1));
    }

    pub(crate) fn lost(&self, reason: LossReason) {
        let reason = match reason {
            LossReason::NotHeld => NOT_HELD,
            LossReason::MaxHold => MAX_HOLD,
            _ => EXPIRED,
        };
        let label = &self.label;
        record!(
            counter!("tenure_losses_total", "lock" => label.text(), "reason" => reason)
                .increment(1)
        );
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}

/// A claim was granted. `waited`: it was queued before, so that another handed the lock over to it.
pub(crate) fn acquired(label: &Label, after: Duration, waited: bool) {
    record_as!(label.keys.acquire_wait_seconds, register_histogram, record(after));
    if waited {
        record_as!(label.keys.handoffs, register_counter, increment(1));
    }
}

pub(crate) fn not_acquired(label: &Label, kind: ErrorKind) {
    record!(
        counter!("tenure_acquire_failures_total", "lock" => label.text(), "kind" => word(kind))
            .increment(1)
    );
}

/// The value of the label `kind`.
#[cfg(feature = "metrics")]
const fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Busy => "busy",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::QuorumLost => "quorum_lost",
        ErrorKind::Lost => "lost",
        ErrorKind::Broken => "broken",
        ErrorKind::LeaseTooShort => "lease_too_short",
        ErrorKind::Invalid => "invalid",
        ErrorKind::OutOfRange => "out_of_range",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Denied => "denied",
        ErrorKind::Full => "full",
        ErrorKind::Damaged => "damaged",
        ErrorKind::Internal => "internal",
    }
}

pub(crate) fn release_abandoned() {
    record!(counter!("tenure_releases_abandoned_total").increment(1));
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_the_label_of_the_first_rule_that_fits_or_is_among_the_others() {
        let labels = Labels::new(["deploy", "orders/*", "orders/7"]);
        for (name, label) in
            [("deploy", "deploy"), ("deploy2", "other"), ("orders/7", "orders/*"), ("x", "other")]
        {
            assert_eq!(&*labels.of(&name.parse().unwrap()).text(), label, "{name}");
        }
        assert_eq!(&*Labels::default().of(&"x".parse().unwrap()).text(), "other");
    }
}
