//! What a store tells of holds by itself.

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{OwnerId, Token};

/// One grant, as a store and a client both know it.
///
/// The claim alone would not do: one that lost its hold, asked again and was granted anew has another
/// token, and old news are no news of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// Whose claim was granted.
    pub owner: OwnerId,
    /// The token it was granted with, if the store gives one.
    pub token: Option<Token>,
}

impl Hold {
    /// The hold of the claim `owner` that was granted with `token`.
    pub const fn new(owner: OwnerId, token: Option<Token>) -> Self {
        Self { owner, token }
    }
}

/// Where a store tells of holds: one for each client that uses it. Nothing comes of news of holds that
/// are not that client's.
#[derive(Clone, Debug)]
pub struct LossListener(mpsc::UnboundedSender<Hold>);

impl LossListener {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Hold>) {
        let (sender, news) = mpsc::unbounded_channel();
        (Self(sender), news)
    }

    /// Tells, without waiting, that a hold is over. The store knows it for certain.
    pub fn lost(&self, hold: Hold) {
        // Where nobody listens any more, nobody holds.
        let _ = self.0.send(hold);
    }

    /// Whether nobody listens any more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Resolves when nobody listens any more.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// All who want to hear of a store's holds.
#[derive(Debug, Default)]
pub struct LossListeners(Mutex<Vec<LossListener>>);

impl LossListeners {
    /// Takes in one more, and forgets those that have gone.
    pub fn add(&self, listener: LossListener) {
        let mut all = self.0.lock();
        all.retain(|one| !one.is_closed());
        all.push(listener);
    }

    /// Tells each of them that a hold is over.
    pub fn lost(&self, hold: Hold) {
        for listener in &*self.0.lock() {
            listener.lost(hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_who_listens_is_told_and_nobody_else_is_kept() {
        let listeners = LossListeners::default();
        let hold = Hold::new(OwnerId::random(), None);
        let (first, gone) = LossListener::new();
        let (second, mut here) = LossListener::new();
        listeners.add(first);
        drop(gone);
        listeners.add(second.clone());
        assert_eq!(listeners.0.lock().len(), 1);
        listeners.lost(hold);
        assert_eq!(here.try_recv(), Ok(hold));
        assert!(!second.is_closed());
    }
}
