//! All real rounds, stored once each. A state of the model refers to a round by its number.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use tenure_proto::quorum::{Order, Raised, Round, Term, Verdict, Vote};
use tenure_proto::{Moment, Token};

use crate::search::Mixer;

/// How many nodes there are.
pub const NODES: usize = 3;

/// Every round seen, and the result of every event on it. Time does not pass in the model: expiry is an event
/// that may happen at any time.
#[derive(Debug, Default)]
pub struct Rounds {
    rounds: Vec<Round>,
    numbers: HashMap<Round, u16>,
    known: HashMap<(u16, Event), Outcome, BuildHasherDefault<Mixer>>,
}

/// What can happen to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A node's vote.
    Vote(usize, Vote),
    /// A node's answer to a raise.
    Raised(usize, Raised),
    /// The client gives up.
    GiveUp,
}

/// The result of an event on a round.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The number of the round it is now.
    pub round: u16,
    /// The request it sends to each node.
    pub orders: [Option<Order>; NODES],
}

impl Rounds {
    /// The number of a round in which all eligible nodes have been asked.
    pub fn begin(&mut self, eligible: [bool; NODES]) -> u16 {
        let sent = Moment::from_nanos(0);
        let term = Term { sent, ttl: Duration::from_secs(30), minimum: Duration::ZERO };
        let mut round = Round::new(&eligible, term);
        while round.poll_order().is_some() {}
        self.number(round)
    }

    /// The round with this number.
    pub fn get(&self, number: u16) -> &Round {
        &self.rounds[usize::from(number)]
    }

    /// Its token and its acknowledged nodes as bits, if it was won.
    pub fn won(&self, number: u16) -> Option<(Token, u8)> {
        let round = self.get(number);
        let Verdict::Won(token) = round.verdict() else { return None };
        let bits = (0..NODES).filter(|&node| round.is_acknowledged(node)).map(|node| 1 << node);
        Some((token, bits.sum()))
    }

    /// Applies an event to a round.
    pub fn handle(&mut self, number: u16, event: Event) -> Outcome {
        if let Some(outcome) = self.known.get(&(number, event)) {
            return *outcome;
        }
        let mut round = self.get(number).clone();
        let now = Moment::from_nanos(0);
        match event {
            Event::Vote(node, vote) => round.handle_vote(node, vote, now),
            Event::Raised(node, raised) => round.handle_raised(node, raised, now),
            Event::GiveUp => round.give_up(),
        }
        let mut orders = [None; NODES];
        while let Some(order) = round.poll_order() {
            let (Order::Claim { node } | Order::Raise { node, .. } | Order::Release { node }) =
                order;
            orders[node] = Some(order);
        }
        let outcome = Outcome { round: self.number(round), orders };
        self.known.insert((number, event), outcome);
        outcome
    }

    fn number(&mut self, round: Round) -> u16 {
        if let Some(&number) = self.numbers.get(&round) {
            return number;
        }
        let number = u16::try_from(self.rounds.len()).expect("fewer than 65536 different rounds");
        self.rounds.push(round.clone());
        self.numbers.insert(round, number);
        number
    }
}
