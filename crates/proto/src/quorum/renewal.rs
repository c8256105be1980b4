//! One renewal on a quorum, and the repair of nodes that lost the claim.

use super::{Majority, Reply, Tally};
use crate::Token;

/// A node's answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenewalVote {
    /// The claim holds the node, its term there starts anew, and the node's counter is at least the
    /// holder's token now.
    Renewed,
    /// The claim does not hold the node.
    NotMine,
    /// No answer in time, or an error.
    Silent,
}

/// An order to claim a node again for the holder, with the holder's token as the minimum. A node that
/// another claim holds is left alone. The outcome need not be reported: the next renewal sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The node.
    pub node: usize,
    /// The holder's token: the node counts for the holder from the next renewal on, and must have
    /// its token by then, so that the next claim gets a larger one.
    pub to: Token,
}

/// Decides one renewal, sent to all nodes, and orders the repairs.
///
/// Only nodes that still have the claim are counted: a holder that needs a repaired node for its
/// majority may have been away while another claim held the lock. Repairs are ordered only once
/// the renewal has succeeded, so that a lease that is lost claims nothing anew. They help the
/// next renewal: the holder can lose another node then, and another node may forget its counter.
///
/// All nodes are asked, and an ineligible node may confirm the renewal, because it still has the claim, but
/// it is not repaired: it may have forgotten a rival claim that it had granted. A node whose connection was replaced since
/// the renewal began may have restarted: report it silent.
///
/// A renewal carries the token, and raises the counters of nodes that are behind: one that granted
/// too late to be raised in its round is counted, too.
///
/// ```
/// use tenure_proto::{Token, quorum::*};
///
/// let mut renewal = Renewal::new(&[true; 3], Token::new(7));
/// renewal.handle_vote(0, RenewalVote::NotMine);
/// renewal.handle_vote(1, RenewalVote::Renewed);
/// assert_eq!(renewal.poll_repair(), None);
/// renewal.handle_vote(2, RenewalVote::Renewed);
/// assert_eq!(renewal.outcome(), Majority::For);
/// assert_eq!(renewal.poll_repair(), Some(Repair { node: 0, to: Token::new(7) }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renewal {
    tally: Tally,
    token: Token,
    eligible: Vec<bool>,
    /// Nodes to repair, if the renewal succeeds.
    lacking: Vec<bool>,
}

impl Renewal {
    /// A renewal of a claim that holds the lock with this token.
    pub fn new(eligible: &[bool], token: Token) -> Self {
        Self {
            tally: Tally::new(eligible.len()),
            token,
            eligible: eligible.to_vec(),
            lacking: vec![false; eligible.len()],
        }
    }

    /// [`For`](Majority::For): the term starts anew, from the moment before the renewal was sent.
    /// [`Against`](Majority::Against): the lock is lost; release what is left of it.
    /// [`Unclear`](Majority::Unclear): try again while the lease lasts.
    pub fn outcome(&self) -> Majority {
        self.tally.outcome()
    }

    /// A node has answered, or is late.
    pub fn handle_vote(&mut self, node: usize, vote: RenewalVote) {
        let reply = match vote {
            RenewalVote::Renewed => Reply::Yes,
            RenewalVote::NotMine => Reply::No,
            RenewalVote::Silent => Reply::Silent,
        };
        if self.tally.handle_reply(node, reply) && reply == Reply::No {
            self.lacking[node] = self.eligible[node];
        }
    }

    /// The next node to repair. Call until it answers `None`, after every vote.
    pub fn poll_repair(&mut self) -> Option<Repair> {
        if self.outcome() != Majority::For {
            return None;
        }
        let node = self.lacking.iter().position(|&lacking| lacking)?;
        self.lacking[node] = false;
        Some(Repair { node, to: self.token })
    }
}
