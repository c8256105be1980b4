//! How a store reports holds that ended early.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{OwnerId, Token};

/// One grant, as both the store and the client know it.
///
/// The owner alone does not identify a grant: a claim that lost its hold, asked again and was granted anew
/// has another token, and a report about the old grant must not end the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The owner of the claim that was granted.
    pub owner: OwnerId,
    /// The token of the grant, if the store gives one.
    pub token: Option<Token>,
}

impl Hold {
    /// The hold of the claim `owner` that was granted with `token`.
    pub const fn new(owner: OwnerId, token: Option<Token>) -> Self {
        Self { owner, token }
    }
}

/// What a client does with the losses that a store reports.
pub(crate) trait HandleLoss: Send + Sync {
    fn handle_loss(&self, hold: Hold);
}

/// One client that is told when a hold ends early ([`Store::subscribe_losses`](crate::Store)). A report
/// about a hold of another client has no effect.
#[derive(Clone)]
pub struct LossListener(Weak<dyn HandleLoss>);

impl LossListener {
    /// Reports losses to `handler`, as long as that is kept alive elsewhere.
    pub(crate) fn new(handler: &Arc<impl HandleLoss + 'static>) -> Self {
        // In two steps: a weak pointer is coerced only when its type is known.
        let handler: Weak<dyn HandleLoss> = Arc::downgrade(handler) as _;
        Self(handler)
    }

    /// Reports that a hold is over, which the store must know for certain. The guard of this hold is lost
    /// when the call returns. Never blocks for long.
    pub fn lost(&self, hold: Hold) {
        if let Some(handler) = self.0.upgrade() {
            handler.handle_loss(hold);
        }
    }

    /// Whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for LossListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossListener").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// The clients of a store that are told when a hold ends early.
#[derive(Debug, Default)]
pub struct LossListeners(Mutex<Vec<LossListener>>);

impl LossListeners {
    /// Adds a listener, and removes those whose clients are gone.
    pub fn add(&self, listener: LossListener) {
        let mut all = self.0.lock();
        all.retain(|one| !one.is_closed());
        all.push(listener);
    }

    /// Reports to all of them that a hold is over.
    pub fn lost(&self, hold: Hold) {
        for listener in &*self.0.lock() {
            listener.lost(hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Hold>>);

    impl HandleLoss for Heard {
        fn handle_loss(&self, hold: Hold) {
            self.0.lock().push(hold);
        }
    }

    #[test]
    fn a_loss_is_reported_to_every_live_client_and_dropped_clients_are_removed() {
        let listeners = LossListeners::default();
        let hold = Hold::new(OwnerId::random(), None);
        let (gone, here) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        listeners.add(LossListener::new(&gone));
        drop(gone);
        listeners.add(LossListener::new(&here));
        assert_eq!(listeners.0.lock().len(), 1);
        listeners.lost(hold);
        assert_eq!(*here.0.lock(), [hold]);
    }
}
