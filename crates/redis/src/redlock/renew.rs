//! One renewal: sends the messages that `proto::quorum::Renewal` orders.

use std::sync::Arc;

use tenure_core::store::{Claim, Renewal, now};
use tenure_core::{OwnerId, Result, Token};
use tenure_proto::quorum::{self, Majority, RenewalVote};

use super::Quorum;
use super::ballot::request;
use super::node::Node;
use super::nodes::View;
use super::replies::{Replies, ReplyEvent};
use crate::held::HeldClaims;
use crate::keys::Keys;
use crate::wire::{Command, Outcome, Value};

/// A renewal that may go on after its outcome is known, to repair nodes.
struct RenewalRound {
    renewal: quorum::Renewal,
    replies: Replies<()>,
    nodes: Vec<Arc<Node>>,
    view: View,
    repair: Command,
    held: Arc<HeldClaims>,
    owner: OwnerId,
    answered: usize,
}

impl Quorum {
    /// Renews a claim that holds with this token; one that was downgraded is downgraded wherever it is
    /// not yet.
    pub(super) async fn renew(&self, claim: &Claim, keys: &Keys, token: Token) -> Result<Renewal> {
        let sent = now();
        let limit = self.limit(claim.ttl);
        let view = self.nodes.view(sent, limit);
        let mut round = RenewalRound {
            renewal: quorum::Renewal::new(&view.eligible, token),
            replies: Replies::new(limit),
            nodes: self.nodes.list.clone(),
            repair: request(self, claim, keys, token, std::time::Duration::ZERO),
            held: Arc::clone(&self.held),
            owner: claim.owner,
            answered: 0,
            view,
        };
        let command = self.renewal(claim, keys, token);
        // Repeated with every renewal: a node may have missed the downgrade.
        let downgraded = self.held.get(claim.owner).is_some_and(|hold| hold.downgraded);
        let downgrade = downgraded.then(|| self.downgrading(claim, keys));
        for node in 0..self.nodes.list.len() {
            let mut reply = round.view.post(node, &command);
            if let (Some(_), Some(downgrade)) = (&reply, &downgrade) {
                reply = round.view.post(node, downgrade);
            }
            match reply {
                Some(reply) => round.replies.push(node, (), reply),
                None => round.renewal.handle_vote(node, RenewalVote::Silent),
            }
        }
        round.replies.decided_by(self.nodes.majority());
        let mut faults = Vec::new();
        while round.renewal.outcome() == Majority::Pending {
            if let Some((node, value)) = round.handle_next_reply().await {
                faults.push((node, self.nodes.refused("renew", &round.view, node, &value)));
            }
        }
        match round.renewal.outcome() {
            Majority::For => {
                self.held.extend(claim.owner, sent + claim.ttl);
                if round.repair() {
                    // Nodes that answer late may need a repair, too.
                    self.background.runtime().spawn(round.finish());
                }
                Ok(Renewal::Renewed)
            }
            Majority::Against => {
                self.held.remove(claim.owner);
                let release = self.release(claim, keys, false);
                for (number, node) in self.nodes.list.iter().enumerate() {
                    let reply = round.view.post(number, &release.command);
                    node.confirm_later(&release, reply, sent + claim.ttl);
                }
                Ok(Renewal::Lost)
            }
            Majority::Pending | Majority::Unclear => {
                let error = self.nodes.too_few("renew", round.answered, &faults);
                Err(error.about(&claim.name).with_unknown_effect())
            }
        }
    }
}

impl RenewalRound {
    /// Handles the next reply. An unexpected reply is returned with its node.
    async fn handle_next_reply(&mut self) -> Option<(usize, Value)> {
        match self.replies.next().await {
            ReplyEvent::Arrived(node, (), outcome) => {
                let (vote, odd) = read(outcome);
                self.answered += usize::from(vote != RenewalVote::Silent);
                self.renewal.handle_vote(node, vote);
                odd.map(|value| (node, value))
            }
            ReplyEvent::TimedOut => {
                for (node, ()) in self.replies.give_up() {
                    self.renewal.handle_vote(node, RenewalVote::Silent);
                }
                None
            }
        }
    }

    /// Claims the nodes again that lost the claim. False if no reply is outstanding.
    fn repair(&mut self) -> bool {
        while let Some(repair) = self.renewal.poll_repair() {
            let (nodes, view, request) = (&self.nodes, &self.view, &self.repair);
            self.held.while_held(self.owner, repair.node, || {
                nodes[repair.node].forget_releases_of(self.owner);
                view.post(repair.node, request);
            });
        }
        !self.replies.is_empty()
    }

    async fn finish(mut self) {
        while self.repair() {
            self.handle_next_reply().await;
        }
    }
}

fn read(outcome: Outcome) -> (RenewalVote, Option<Value>) {
    match outcome {
        // A downgrade returns the token.
        Ok(Value::Integer(1) | Value::Text(_)) => (RenewalVote::Renewed, None),
        Ok(Value::Integer(0)) => (RenewalVote::NotMine, None),
        Ok(odd) => (RenewalVote::Silent, Some(odd)),
        Err(_) => (RenewalVote::Silent, None),
    }
}
