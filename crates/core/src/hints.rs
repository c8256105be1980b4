//! How a store says that locks may have changed, for those that watch it.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::LockName;

/// Hints that locks may have changed, from [`Store::changes`](crate::Store::changes). They are coalesced, so
/// that a receiver which is slow, or does not ask, costs a bounded amount of memory.
#[derive(Debug)]
pub struct ChangeHints(Arc<Shared>);

/// The store's end of [`ChangeHints`]. When it is dropped, the hints end.
#[derive(Debug)]
pub struct HintSender(Arc<Shared>);

/// What may have changed since the last hint was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hint {
    /// These locks may have changed.
    pub names: BTreeSet<LockName>,
    /// Others may have, too: there were too many to name, or the store has just begun to listen.
    pub others: bool,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    hint: Hint,
    is_ended: bool,
    is_closed: bool,
}

impl ChangeHints {
    /// How many names a hint has at the most.
    pub const MOST: usize = 1_000;

    /// Hints, and the sender that a store keeps.
    pub fn new() -> (HintSender, Self) {
        let shared = Arc::new(Shared::default());
        (HintSender(Arc::clone(&shared)), Self(shared))
    }

    /// Waits for a hint. `None`: the store has ceased to send any.
    ///
    /// # Cancel safety
    /// Safe to drop: no hint is lost.
    pub async fn next(&mut self) -> Option<Hint> {
        loop {
            {
                let mut pending = self.0.pending.lock();
                if pending.hint.others || !pending.hint.names.is_empty() {
                    return Some(std::mem::take(&mut pending.hint));
                }
                if pending.is_ended {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }
}

impl Drop for ChangeHints {
    fn drop(&mut self) {
        self.0.pending.lock().is_closed = true;
        self.0.closed.notify_one();
    }
}

impl HintSender {
    /// Says that this lock may have changed. Never waits.
    pub fn changed(&self, name: &LockName) {
        let mut pending = self.0.pending.lock();
        let Hint { names, others } = &mut pending.hint;
        if *others || names.contains(name) {
            return;
        }
        if names.len() < ChangeHints::MOST {
            names.insert(name.clone());
        } else {
            names.clear();
            *others = true;
        }
        drop(pending);
        self.0.changed.notify_one();
    }

    /// Says that any lock may have changed: the store has just begun to listen, or has missed something.
    pub fn any_changed(&self) {
        self.0.pending.lock().hint = Hint { names: BTreeSet::new(), others: true };
        self.0.changed.notify_one();
    }

    /// Whether the receiver of the hints is gone.
    pub fn is_closed(&self) -> bool {
        self.0.pending.lock().is_closed
    }

    /// Waits until the receiver of the hints is gone.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn closed(&self) {
        while !self.is_closed() {
            self.0.closed.notified().await;
        }
        // For another call.
        self.0.closed.notify_one();
    }
}

impl Drop for HintSender {
    fn drop(&mut self) {
        self.0.pending.lock().is_ended = true;
        self.0.changed.notify_one();
    }
}

/// Those that watch a store in this process.
#[derive(Debug, Default)]
pub(crate) struct HintSenders(Mutex<Vec<(String, HintSender)>>);

impl HintSenders {
    /// Hints at locks that begin with this prefix.
    pub(crate) fn add(&self, prefix: &str) -> ChangeHints {
        let (sender, hints) = ChangeHints::new();
        sender.any_changed();
        let mut all = self.0.lock();
        all.retain(|(_, sender)| !sender.is_closed());
        all.push((prefix.to_owned(), sender));
        hints
    }

    /// Says that this lock may have changed.
    pub(crate) fn changed(&self, name: &LockName) {
        let all = self.0.lock();
        let concerned = all.iter().filter(|(prefix, _)| name.as_str().starts_with(prefix));
        concerned.for_each(|(_, sender)| sender.changed(name));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn name(number: usize) -> LockName {
        number.to_string().parse().unwrap()
    }

    #[tokio::test]
    async fn hints_are_coalesced_and_bounded_and_end_with_their_sender() {
        let (sender, mut hints) = ChangeHints::new();
        assert!(hints.next().now_or_never().is_none());
        sender.changed(&name(1));
        sender.changed(&name(1));
        let one = Hint { names: [name(1)].into(), others: false };
        assert_eq!(hints.next().await, Some(one));
        assert!(hints.next().now_or_never().is_none());
        (0..=ChangeHints::MOST).for_each(|number| sender.changed(&name(number)));
        let overflow = Hint { names: BTreeSet::new(), others: true };
        assert_eq!(hints.next().await, Some(overflow));
        sender.changed(&name(2));
        assert!(!sender.is_closed() && sender.closed().now_or_never().is_none());
        drop(sender);
        assert_eq!(hints.next().await.map(|hint| hint.names.len()), Some(1), "what was sent");
        assert_eq!(hints.next().await, None);

        let (sender, hints) = ChangeHints::new();
        drop(hints);
        sender.closed().await;
        assert!(sender.is_closed());
    }
}
