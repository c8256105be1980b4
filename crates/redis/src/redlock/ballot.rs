//! One round of votes: sends the messages that `proto::quorum::Round` orders.

use std::time::Duration;

use tenure_core::store::{Claim, Moment, now};
use tenure_core::{Error, ErrorKind, Mode, Result, Token};
use tenure_proto::quorum::{Defeat, Order, Raised, Round, Term, Verdict, Vote};

use super::Quorum;
use super::nodes::{Fault, View};
use super::replies::{Replies, ReplyEvent};
use super::unconfirmed_releases::Release;
use crate::keys::Keys;
use crate::store::{millis, origin_text};
use crate::wire::{Arg, Command, Outcome, Reply, Value};

/// The outcome of a round.
pub(super) enum Decision {
    /// The claim holds the lock. `asked` has a bit for each node that was asked.
    Won { token: Token, asked: u32 },
    /// Another claim holds, or rivals split the votes.
    Contended {
        /// Some nodes voted for the claim.
        split: bool,
        took: Duration,
        /// When the holds that are in the way end.
        again: Option<Duration>,
    },
}

pub(super) struct Ballot<'a> {
    quorum: &'a Quorum,
    claim: &'a Claim,
    keys: &'a Keys,
    /// How long the claim stays in the queue if it loses. Zero: not at all.
    lease: Duration,
    view: View,
    request: Command,
    round: Round,
    replies: Replies<Asked>,
    limit: Duration,
    sent: Moment,
    asked: u32,
    /// In how many milliseconds each node is free, by its own reply; 0 if it voted for the claim.
    free_in: Vec<Option<u64>>,
    faults: Vec<Fault>,
    /// Releases sent to nodes that granted: their replies are awaited.
    undone: Vec<(usize, Reply)>,
    /// Releases to the other nodes, with the reply if they could be sent.
    unconfirmed: Vec<(usize, Option<Reply>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Vote,
    Raise,
}

impl<'a> Ballot<'a> {
    pub(super) fn new(
        quorum: &'a Quorum,
        claim: &'a Claim,
        keys: &'a Keys,
        lease: Duration,
    ) -> Self {
        let sent = now();
        // A claim that would get less than half of its TTL is better off asking again.
        let term = Term { sent, ttl: claim.ttl, minimum: claim.ttl / 2 };
        let limit = quorum.limit(claim.ttl).min(term.give_up_at().since(sent));
        let view = quorum.nodes.view(sent, limit);
        let floor = quorum.forecast.lock().floor(sent);
        Self {
            request: request(quorum, claim, keys, floor, lease),
            round: Round::new(&view.eligible, term),
            replies: Replies::new(limit),
            asked: 0,
            free_in: vec![None; view.eligible.len()],
            faults: Vec::new(),
            undone: Vec::new(),
            unconfirmed: Vec::new(),
            quorum,
            claim,
            keys,
            lease,
            view,
            limit,
            sent,
        }
    }

    pub(super) async fn decide(mut self) -> Result<Decision> {
        if !self.lease.is_zero() {
            self.listen();
        }
        self.carry_out();
        self.replies.decided_by(self.quorum.nodes.majority());
        self.view.look(self.asked);
        loop {
            self.carry_out();
            match self.round.verdict() {
                Verdict::Won(token) => return Ok(Decision::Won { token, asked: self.asked }),
                Verdict::Lost(why) => return self.lose(why).await,
                Verdict::Pending => {}
            }
            match self.replies.next().await {
                ReplyEvent::Arrived(node, asked, outcome) => {
                    self.handle_reply(node, asked, outcome)
                }
                ReplyEvent::TimedOut => {
                    // The nodes are too slow for the node timeout or for the TTL.
                    self.round.handle_timeout(now());
                    self.stop_waiting();
                }
            }
            self.round.handle_timeout(now());
        }
    }

    /// Subscribes on every node before the claim is queued there. For nodes that speak RESP2 that was
    /// done before the ballot: see [`Quorum::subscribe_in_resp2`].
    fn listen(&self) {
        let channel = &self.quorum.channel;
        for connection in self.view.connections.iter().flatten() {
            if connection.carries_pushes() && !connection.listens_to(channel) {
                connection.post_subscribe(channel);
            }
        }
    }

    /// Sends what the round orders.
    fn carry_out(&mut self) {
        while let Some(order) = self.round.poll_order() {
            match order {
                Order::Claim { node } => {
                    self.quorum.nodes.list[node].forget_releases_of(self.claim.owner);
                    match self.view.post(node, &self.request) {
                        Some(reply) => {
                            self.asked |= 1 << node;
                            self.replies.push(node, Asked::Vote, reply);
                        }
                        None => self.round.handle_vote(node, Vote::Unknown, now()),
                    }
                }
                Order::Raise { node, to } => {
                    let raise = self.quorum.renewal(self.claim, self.keys, to);
                    match self.view.post(node, &raise) {
                        Some(reply) => self.replies.push(node, Asked::Raise, reply),
                        None => self.round.handle_raised(node, Raised::Failed, now()),
                    }
                }
                Order::Release { node } => match self.view.post(node, &self.release().command) {
                    Some(reply) if self.free_in[node] == Some(0) => {
                        self.undone.push((node, reply));
                    }
                    reply => self.unconfirmed.push((node, reply)),
                },
            }
        }
    }

    fn handle_reply(&mut self, node: usize, asked: Asked, outcome: Outcome) {
        let value = match outcome {
            Ok(value) => value,
            Err(lost) => {
                self.faults.push((node, crate::fault::lost("acquire", &lost)));
                return self.handle_missing(node, asked);
            }
        };
        if asked == Asked::Raise {
            let raised = match value {
                Value::Integer(1) => Raised::Acknowledged,
                Value::Integer(0) => Raised::NotMine,
                other => {
                    self.refused(node, &other);
                    Raised::Failed
                }
            };
            return self.round.handle_raised(node, raised, now());
        }
        let Some((vote, free_in, clock_us)) = read(&value) else {
            self.refused(node, &value);
            return self.handle_missing(node, asked);
        };
        self.free_in[node] = free_in;
        self.quorum.forecast.lock().handle_clock(node, clock_us, self.sent);
        self.round.handle_vote(node, vote, now());
    }

    fn refused(&mut self, node: usize, value: &Value) {
        let error = self.quorum.nodes.refused("acquire", &self.view, node, value);
        self.faults.push((node, error));
    }

    fn handle_missing(&mut self, node: usize, asked: Asked) {
        match asked {
            Asked::Vote => self.round.handle_vote(node, Vote::Unknown, now()),
            Asked::Raise => self.round.handle_raised(node, Raised::Failed, now()),
        }
    }

    /// Nodes that have not answered count as silent. What is sent to them from here on goes down
    /// the same connection, behind their unanswered requests.
    fn stop_waiting(&mut self) {
        let silent: Vec<_> = self.replies.give_up().collect();
        for (node, asked) in silent {
            self.handle_missing(node, asked);
        }
    }

    async fn lose(mut self, why: Defeat) -> Result<Decision> {
        let took = now().since(self.sent);
        self.stop_waiting();
        self.carry_out();
        let _in_time = tokio::time::timeout(self.limit, self.confirm()).await;
        self.confirm_later();
        match why {
            Defeat::Contended => {
                let split = self.free_in.contains(&Some(0));
                Ok(Decision::Contended { split, took, again: self.again() })
            }
            Defeat::TooShort => {
                let ttl = self.claim.ttl;
                let why = format!(
                    "the votes took {took:?} of its {ttl:?}, and too little is left: it was \
                     undone; ask for a longer TTL"
                );
                Err(self.error(Error::new(ErrorKind::LeaseTooShort, "acquire", why)))
            }
            Defeat::NoQuorum | Defeat::GivenUp => {
                // With too few nodes to win, none is asked.
                let there = self.view.eligible.iter().filter(|&&there| there).count();
                let answered = self.free_in.iter().flatten().count();
                let answered = if self.asked == 0 { there } else { answered };
                Err(self.error(self.quorum.nodes.too_few("acquire", answered, &self.faults)))
            }
        }
    }

    /// A node that did not answer may have the claim nevertheless.
    fn error(&self, error: Error) -> Error {
        let error = error.about(&self.claim.name);
        if self.asked == 0 { error } else { error.with_unknown_effect() }
    }

    fn release(&self) -> Release {
        let stay = !self.lease.is_zero();
        self.quorum.release(self.claim, self.keys, stay)
    }

    /// Returns when the nodes that granted have confirmed the release.
    async fn confirm(&mut self) {
        while let Some((node, reply)) = self.undone.last_mut() {
            let node = *node;
            let outcome = reply.await;
            self.undone.pop();
            match outcome {
                Ok(Ok(Value::Refusal(refusal))) => {
                    // A node that lost its scripts gets them again.
                    let refusal = Value::Refusal(refusal);
                    self.quorum.nodes.refused("undo a claim", &self.view, node, &refusal);
                    self.unconfirmed.push((node, self.view.post(node, &self.release().command)));
                }
                Ok(Ok(_)) => {}
                _ => self.unconfirmed.push((node, None)),
            }
        }
    }

    /// Keeps the releases that were not confirmed: they are sent again if the connection breaks.
    fn confirm_later(&mut self) {
        let undone = self.undone.drain(..).map(|(node, reply)| (node, Some(reply)));
        let unconfirmed: Vec<_> = self.unconfirmed.drain(..).chain(undone).collect();
        if unconfirmed.is_empty() {
            return;
        }
        let (release, until) = (self.release(), now() + self.claim.ttl);
        for (node, reply) in unconfirmed {
            self.quorum.nodes.list[node].confirm_later(&release, reply, until);
        }
    }

    /// When enough nodes will be free, if the lock is not released before.
    fn again(&self) -> Option<Duration> {
        let mut free_in: Vec<u64> = self.free_in.iter().flatten().copied().collect();
        free_in.sort_unstable();
        let enough = *free_in.get(self.quorum.nodes.majority() - 1)?;
        (enough < NEVER).then(|| Duration::from_millis(enough))
    }
}

const NEVER: u64 = u64::MAX;

/// A vote, in how many milliseconds the node will be free for the claim, and the node's clock.
fn read(value: &Value) -> Option<(Vote, Option<u64>, u64)> {
    let Value::Text(words) = value else { return None };
    let mut words = std::str::from_utf8(words).ok()?.split(' ');
    let (kind, number, clock_us) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    match kind {
        "granted" => Some((Vote::Granted(Token::new(number.parse().ok()?)), Some(0), clock_us)),
        // A hold that never ends is -1.
        "held" => Some((Vote::Held, Some(number.parse().unwrap_or(NEVER).max(1)), clock_us)),
        _ => None,
    }
}

/// The request for a node's vote. It also repairs a node that lost the claim.
pub(super) fn request(
    quorum: &Quorum,
    claim: &Claim,
    keys: &Keys,
    floor: Token,
    lease: Duration,
) -> Command {
    let kind = if claim.mode == Mode::Shared { "s 1 0" } else { "x 0 0" };
    let note = origin_text(claim);
    let arguments: [Arg<'_>; 7] = [
        claim.owner.into(),
        kind.into(),
        millis(claim.ttl).into(),
        (&*note).into(),
        floor.get().into(),
        millis(lease).into(),
        (&*quorum.channel).into(),
    ];
    let waits = if lease.is_zero() { 5 } else { 7 };
    quorum.nodes.scripts.claim.call(&keys.all(), &arguments[..waits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_read_and_nonsense_is_none() {
        let text = |words: &str| Value::Text(words.as_bytes().to_vec());
        let granted = Some((Vote::Granted(Token::new(7)), Some(0), 9));
        assert_eq!(read(&text("granted 7 9")), granted);
        assert_eq!(read(&text("held 250 9")), Some((Vote::Held, Some(250), 9)));
        assert_eq!(read(&text("held -1 9")), Some((Vote::Held, Some(NEVER), 9)));
        for nonsense in ["", "granted", "granted x 9", "granted 7", "busy 1 2"] {
            assert_eq!(read(&text(nonsense)), None, "{nonsense}");
        }
        assert_eq!(read(&Value::Null), None);
    }
}
