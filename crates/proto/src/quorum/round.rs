//! One claim on a quorum.

use std::time::Duration;

use super::majority;
use crate::{Moment, Token, deadline};

/// The largest counter a node may vote with. A node counts in doubles, which are exact up to here;
/// only a wrong clock gets beyond, and its value must not spread to the other nodes.
pub(super) const LARGEST_COUNTER: Token = Token::new(1 << 53);

/// A node's answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The claim holds the node, whose counter it advanced to this. Where there are no tokens,
    /// every node votes zero.
    Granted(Token),
    /// Another claim holds the node.
    Held,
    /// The node refused the request without effect, or could not be reached.
    Failed,
    /// No answer in time. It may still come; a round that is not decided then counts it.
    Unknown,
}

/// A node's answer to [`Order::Raise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Raised {
    /// The claim still held the node, whose counter is at least the token now.
    Acknowledged,
    /// The claim does not hold the node any more.
    NotMine,
    /// No answer, or an error.
    Failed,
}

/// The state of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not decided yet.
    Pending,
    /// The claim holds the lock, with this token.
    Won(Token),
    /// The claim does not hold the lock, and is being released on the nodes that granted it.
    Lost(Defeat),
}

/// Why a round was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defeat {
    /// Enough nodes answered, but too few let the claim in: another claim holds it, or rivals split the
    /// votes.
    Contended,
    /// Too few nodes answered, or may be counted, for any claim to win.
    NoQuorum,
    /// Too little of the TTL was left for the claimant's minimum.
    TooShort,
    /// The claimant gave up, or released what it had won.
    GivenUp,
}

/// What to send to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Ask it for the lock. Report the outcome with [`Round::handle_vote`].
    Claim {
        /// The node.
        node: usize,
    },
    /// Raise its counter, if the claim still holds it: `c = max(c, to)`. Report the outcome with
    /// [`Round::handle_raised`].
    Raise {
        /// The node.
        node: usize,
        /// The token.
        to: Token,
    },
    /// Release the claim there, whatever the node said. The outcome need not be reported.
    Release {
        /// The node.
        node: usize,
    },
}

/// The times a round is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// The moment before the first claim was sent.
    pub sent: Moment,
    /// The claim's TTL.
    pub ttl: Duration,
    /// How much of it the claimant needs.
    pub minimum: Duration,
}

impl Term {
    /// The moment from which less than the claimant's minimum would be left of the term.
    pub fn give_up_at(&self) -> Moment {
        deadline(self.sent, self.ttl) - self.minimum
    }
}

/// Decides one claim.
///
/// All eligible nodes are asked at once. The round is decided as soon as the votes that have arrived
/// allow, whatever the other nodes do. A lost round releases every node that was asked, also those that
/// refused or did not answer: each when its own answer is in, or known to be late, so that a release
/// never overtakes its claim. A late vote for a lost round is answered with a release; a late vote for a
/// won round still counts.
///
/// The token is fixed when a majority has granted; the round does not wait for more. A later vote
/// below the token is raised with the others, one that equals it counts at once, and one above it
/// does not count: the token was chosen without it. All nodes that granted stay held.
///
/// ```
/// use std::time::Duration;
/// use tenure_proto::{Moment, Token, quorum::*};
///
/// let now = Moment::from_nanos(0);
/// let term = Term { sent: now, ttl: Duration::from_secs(30), minimum: Duration::ZERO };
/// let mut round = Round::new(&[true; 3], term);
/// for node in 0..3 {
///     assert_eq!(round.poll_order(), Some(Order::Claim { node }));
/// }
/// round.handle_vote(0, Vote::Granted(Token::new(7)), now);
/// round.handle_vote(2, Vote::Granted(Token::new(8)), now);
/// assert_eq!(round.poll_order(), Some(Order::Raise { node: 0, to: Token::new(8) }));
/// round.handle_raised(0, Raised::Acknowledged, now);
/// assert_eq!(round.verdict(), Verdict::Won(Token::new(8)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    nodes: Vec<NodeState>,
    token: Option<Token>,
    verdict: Verdict,
    term: Term,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeState {
    vote: VoteState,
    /// A request is on its way, and not known to be late.
    awaited: bool,
    due: Option<Due>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum VoteState {
    /// Not eligible, and never asked.
    Excluded,
    Asked,
    /// Waits for the token to be fixed.
    Granted(Token),
    /// Voted below the token, and is asked to catch up.
    Raising,
    Acknowledged,
    /// Voted above the token, too late to be part of it.
    Above,
    /// Held by another claim.
    Refused,
    /// Failed, or silent: a later answer still counts.
    Silent,
    /// The same, when asked to catch up.
    RaiseSilent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Due {
    Claim,
    Raise,
    Release,
}

impl Round {
    /// A round among nodes of which only the eligible ones are asked, and none if they are too few.
    pub fn new(eligible: &[bool], term: Term) -> Self {
        let state = |&eligible: &bool| {
            let vote = if eligible { VoteState::Asked } else { VoteState::Excluded };
            NodeState { vote, awaited: false, due: eligible.then_some(Due::Claim) }
        };
        let nodes = eligible.iter().map(state).collect();
        let mut round = Self { nodes, token: None, verdict: Verdict::Pending, term };
        round.decide(term.sent);
        round
    }

    /// The state of the round.
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) if the round is pending still.
    pub fn poll_timeout(&self) -> Moment {
        self.term.give_up_at()
    }

    /// The token, once it is fixed: before the round is decided.
    pub const fn token(&self) -> Option<Token> {
        self.token
    }

    /// Whether the node's counter is known to have reached the token while the claim held it.
    pub fn is_acknowledged(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|state| state.vote == VoteState::Acknowledged)
    }

    /// The next thing to send. Call until it answers `None`, after every `new` and `handle_*`.
    pub fn poll_order(&mut self) -> Option<Order> {
        let (node, state) = self.nodes.iter_mut().enumerate().find(|(_, s)| s.due.is_some())?;
        let due = state.due.take()?;
        state.awaited = due != Due::Release;
        Some(match (due, self.token) {
            (Due::Claim, _) => Order::Claim { node },
            (Due::Raise, Some(to)) => Order::Raise { node, to },
            _ => Order::Release { node },
        })
    }

    /// A node has answered the claim, or is late.
    pub fn handle_vote(&mut self, node: usize, vote: Vote, now: Moment) {
        let Some(state) = self.nodes.get_mut(node) else { return };
        if !matches!(state.vote, VoteState::Asked | VoteState::Silent) {
            return;
        }
        state.awaited = false;
        state.vote = match vote {
            Vote::Granted(counter) if counter <= LARGEST_COUNTER => VoteState::Granted(counter),
            Vote::Held => VoteState::Refused,
            _ => VoteState::Silent,
        };
        self.settle(node);
        self.decide(now);
    }

    /// A node has answered [`Order::Raise`], or is late.
    pub fn handle_raised(&mut self, node: usize, raised: Raised, now: Moment) {
        let Some(state) = self.nodes.get_mut(node) else { return };
        if !matches!(state.vote, VoteState::Raising | VoteState::RaiseSilent) {
            return;
        }
        state.awaited = false;
        state.vote = match raised {
            Raised::Acknowledged => VoteState::Acknowledged,
            Raised::NotMine => VoteState::Refused,
            Raised::Failed => VoteState::RaiseSilent,
        };
        self.settle(node);
        self.decide(now);
    }

    /// From [`poll_timeout`](Self::poll_timeout) on it is too late to win.
    pub fn handle_timeout(&mut self, now: Moment) {
        if self.verdict == Verdict::Pending && now >= self.term.give_up_at() {
            self.lose(Defeat::TooShort);
        }
    }

    /// The claimant gave up, or has released the lock: every node is released, also after a win.
    pub fn give_up(&mut self) {
        if !matches!(self.verdict, Verdict::Lost(_)) {
            self.lose(Defeat::GivenUp);
        }
    }

    /// Places a node that has answered: against the token, or in a round that is lost.
    fn settle(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if matches!(self.verdict, Verdict::Lost(_)) {
            state.due = Some(Due::Release);
        }
        let (VoteState::Granted(counter), Some(token)) = (state.vote, self.token) else { return };
        state.vote = match counter.cmp(&token) {
            std::cmp::Ordering::Less => VoteState::Raising,
            std::cmp::Ordering::Equal => VoteState::Acknowledged,
            std::cmp::Ordering::Greater => VoteState::Above,
        };
        if self.verdict == Verdict::Pending && state.vote == VoteState::Raising {
            state.due = Some(Due::Raise);
        }
    }

    fn decide(&mut self, now: Moment) {
        if self.verdict != Verdict::Pending {
            return;
        }
        let quorum = majority(self.nodes.len());
        if self.token.is_none() && self.count(|s| matches!(s, VoteState::Granted(_))) >= quorum {
            self.fix_token();
        }
        let acknowledged = self.count(|s| s == VoteState::Acknowledged);
        if let Some(token) = self.token
            && acknowledged >= quorum
        {
            if now < self.term.give_up_at() {
                self.verdict = Verdict::Won(token);
                self.nodes.iter_mut().for_each(|state| state.due = None);
            } else {
                self.lose(Defeat::TooShort);
            }
            return;
        }
        let open = |s| matches!(s, VoteState::Asked | VoteState::Granted(_) | VoteState::Raising);
        if acknowledged + self.count(open) < quorum {
            let silent =
                |s| matches!(s, VoteState::Excluded | VoteState::Silent | VoteState::RaiseSilent);
            let answering = self.nodes.len() - self.count(silent);
            self.lose(if answering < quorum { Defeat::NoQuorum } else { Defeat::Contended });
        }
    }

    fn fix_token(&mut self) {
        let counters = self.nodes.iter().filter_map(|state| match state.vote {
            VoteState::Granted(counter) => Some(counter),
            _ => None,
        });
        self.token = counters.max();
        (0..self.nodes.len()).for_each(|node| self.settle(node));
    }

    /// Releases every node that was asked and has answered; the others follow when they do.
    fn lose(&mut self, why: Defeat) {
        self.verdict = Verdict::Lost(why);
        for state in &mut self.nodes {
            if state.due == Some(Due::Claim) {
                state.vote = VoteState::Excluded;
            }
            let settled = !state.awaited && state.vote != VoteState::Excluded;
            state.due = settled.then_some(Due::Release);
        }
    }

    fn count(&self, which: impl Fn(VoteState) -> bool) -> usize {
        self.nodes.iter().filter(|state| which(state.vote)).count()
    }
}
