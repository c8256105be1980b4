//! What a waiter finds when it looks, and whose death would be news to it.

use std::time::Duration;

use tenure_core::store::{Claim, ClaimOutcome, QueueTicket};

use crate::fault::Fault;
use crate::layout::{high, low};
use crate::members::Member;
use crate::ops::{granted, now, owner_words, queued};
use crate::records::Name;
use crate::store::Inner;

/// Holders' processes a head watches at most; the poll looks after the rest.
const WATCHED: usize = 64;

#[derive(Debug)]
pub(crate) enum Look {
    ClaimOutcome(ClaimOutcome),
    /// Nothing yet: these members' deaths would be news.
    Watch(Vec<Member>),
}

impl Inner {
    pub(crate) fn look(&self, claim: &Claim, place: &QueueTicket) -> Result<Look, (Fault, bool)> {
        let owner = owner_words(claim.owner);
        let mut is_head = false;
        let mut look = self.change(|txn, _| {
            let now = now();
            let known = txn.claim_at(low(place.mark), high(place.mark))?;
            let Some(known) = known.filter(|known| known.owner == owner && known.ends > now) else {
                return Ok(Look::ClaimOutcome(ClaimOutcome::Queued(QueueTicket::default())));
            };
            if known.holds {
                return Ok(Look::ClaimOutcome(granted(&known)));
            }
            let lock = txn.lock(known.lock)?;
            let mut watched = Vec::new();
            if known.before == 0 {
                if lock.room().admits(known.mode) {
                    // There was no token for it. Asking waits for one.
                    let mut place = *place;
                    place.ask_again_in = Some(Duration::ZERO);
                    return Ok(Look::ClaimOutcome(ClaimOutcome::Queued(place)));
                }
                if place.ask_again_in.is_none() {
                    // It has become the head, and must know when to ask again.
                    return queued(txn, &lock, &known, now).map(Look::ClaimOutcome);
                }
                is_head = true;
            } else {
                watched.push(txn.claim_on(&lock, known.before)?.member);
            }
            Ok(Look::Watch(watched))
        })?;
        if let Look::Watch(watched) = &mut look {
            if is_head {
                *watched = self.holding_members(&Name::new(claim.name.as_str()), WATCHED)?;
            }
            watched.retain(|member| *member != self.table.me());
        }
        Ok(look)
    }
}
