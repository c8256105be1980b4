//! The claims that this client holds, by owner.

use std::collections::HashMap;

use parking_lot::Mutex;
use tenure_core::store::Moment;
use tenure_core::{OwnerId, Token};

#[derive(Default)]
pub(crate) struct HeldClaims(Mutex<Holds>);

#[derive(Default)]
struct Holds {
    holds: HashMap<OwnerId, Hold>,
    /// At this size, expired holds are removed.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    /// The claim was granted exclusively, and downgraded since.
    pub(crate) downgraded: bool,
    /// A bit for each node that may have the claim.
    pub(crate) asked: u32,
    /// When the hold ends at the latest.
    pub(crate) ends: Moment,
}

impl HeldClaims {
    pub(crate) fn put(&self, owner: OwnerId, hold: Hold, now: Moment) {
        let mut table = self.0.lock();
        if table.holds.len() >= table.sweep_at.max(64) {
            table.holds.retain(|_, hold| hold.ends > now);
            table.sweep_at = table.holds.len() * 2;
        }
        table.holds.insert(owner, hold);
    }

    pub(crate) fn get(&self, owner: OwnerId) -> Option<Hold> {
        self.0.lock().holds.get(&owner).copied()
    }

    pub(crate) fn extend(&self, owner: OwnerId, ends: Moment) {
        if let Some(hold) = self.0.lock().holds.get_mut(&owner) {
            hold.ends = ends;
        }
    }

    /// The claim is about to be downgraded.
    pub(crate) fn downgrade(&self, owner: OwnerId) {
        if let Some(hold) = self.0.lock().holds.get_mut(&owner) {
            hold.downgraded = true;
        }
    }

    pub(crate) fn remove(&self, owner: OwnerId) -> Option<Hold> {
        self.0.lock().holds.remove(&owner)
    }

    /// Calls `send`, which sends something to a node, only while the claim is held: never after its release.
    pub(crate) fn while_held(&self, owner: OwnerId, node: usize, send: impl FnOnce()) {
        let mut table = self.0.lock();
        if let Some(hold) = table.holds.get_mut(&owner) {
            hold.asked |= 1 << node;
            send();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_hold_that_is_never_released_is_forgotten_after_its_end() {
        let held = HeldClaims::default();
        let start = Moment::from_nanos(0);
        for number in 0..10_000u64 {
            let now = start + Duration::from_secs(number);
            let ends = now + Duration::from_secs(30);
            let hold = Hold { token: Token::new(1), downgraded: false, asked: 0, ends };
            held.put(OwnerId::random(), hold, now);
        }
        assert!(held.0.lock().holds.len() < 200);
    }

    #[test]
    fn nothing_is_sent_for_a_claim_that_was_released() {
        let (held, owner) = (HeldClaims::default(), OwnerId::random());
        let ends = Moment::from_nanos(9);
        let hold = Hold { token: Token::new(1), downgraded: false, asked: 1, ends };
        held.put(owner, hold, Moment::default());
        let mut sent = 0;
        held.while_held(owner, 2, || sent += 1);
        assert_eq!(held.remove(owner).unwrap().asked, 0b101);
        held.while_held(owner, 2, || sent += 1);
        assert_eq!(sent, 1);
    }
}
