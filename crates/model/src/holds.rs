//! A hold that is renewed and repaired while nodes lose their data, and a rival that claims later.
//!
//! Here each message is sent, handled and answered in one step; the other model covers delays. While the
//! holder trusts its lease, nothing expires.

use tenure_proto::Token;
use tenure_proto::quorum::{Majority, Order, Raised, Renewal, RenewalVote, Repair, Vote};

use crate::Model;
use crate::rounds::{Event as RoundEvent, NODES, Rounds};

const ALL: u8 = (1 << NODES) - 1;

/// One holder, with token 1, and one rival.
#[derive(Debug, Default)]
pub struct Holds {
    /// The counters the holder's claim may have got from the nodes, in the order of the nodes.
    pub votes: Vec<[Option<u8>; NODES]>,
    /// How often nodes may lose all their data.
    pub forgets: u8,
    /// If true, a node may lose its data only while two other nodes are known to have the token. Counters
    /// without a clock need that; otherwise only the hold is checked, not the token.
    pub remembered: bool,
    /// A deliberate mistake.
    pub broken: Option<BrokenHold>,
    /// The rival's rounds.
    pub rounds: Rounds,
    /// Whether the rival ever won: a search in which it cannot win proves nothing.
    pub rival_won: bool,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenHold {
    /// Repairs and renewals leave the counter as it is.
    NeverRaised,
    /// A node that lost its data is asked again at once, without a quarantine.
    NoQuarantine,
}

/// The nodes, the holder and its rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    forgets: u8,
    /// The holder trusts its lease.
    believes: bool,
    /// Nodes known to have had the claim and a counter of at least the token.
    remember: u8,
    /// Nodes that have not lost data since the renewal of the present lease was sent.
    settled: u8,
    renewal: Option<Asked>,
    repairs: u8,
    rival: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    counter: u8,
    holder: Option<NodeHolder>,
    /// In quarantine.
    young: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NodeHolder {
    Holder,
    Rival,
}

/// A renewal in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    eligible: u8,
    settled: u8,
    votes: [Option<RenewalVote>; NODES],
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node restarts empty.
    Forget(usize),
    /// The longest TTL has passed since the restart.
    Return(usize),
    /// The holder starts a renewal, which replaces the one before.
    Renew,
    /// A node answers the renewal.
    Vote(usize),
    /// A node is repaired.
    Repair(usize),
    /// The holder stops: it released, or its lease ended.
    Stop,
    /// The rest of the holder's claim on a node ends.
    End(usize),
    /// The rival asks the nodes that are not in quarantine.
    Claim,
    /// A node answers the rival, and is raised if need be.
    Answer(usize),
}

impl Model for Holds {
    type State = State;
    type Step = Event;

    fn starts(&mut self) -> Vec<State> {
        self.votes.clone().into_iter().map(|votes| self.start(votes)).collect()
    }

    fn next(&mut self, state: &State, found: &mut Vec<(Event, State)>) {
        let on_nodes = (0..NODES).flat_map(|node| {
            use Event::{Answer, End, Forget, Repair, Return, Vote};
            [Forget(node), Return(node), Vote(node), Repair(node), End(node), Answer(node)]
        });
        for event in on_nodes.chain([Event::Renew, Event::Stop, Event::Claim]) {
            let mut next = *state;
            if self.take(&mut next, event).is_some() {
                found.push((event, next));
            }
        }
    }

    fn fault(&mut self, state: &State) -> Option<String> {
        let (token, _) = self.rounds.won(state.rival?)?;
        self.rival_won = true;
        if state.believes {
            return Some("FAULT: the rival holds the lock beside the holder".into());
        }
        let fault = "FAULT: the rival's token is not above the holder's, which was 1";
        (self.remembered && token <= TOKEN).then(|| fault.into())
    }

    fn tell_start(&self, state: &State) -> String {
        format!("The holder has won with token 1. {}", nodes(state))
    }

    fn tell(&self, _before: &State, event: Event, after: &State) -> String {
        let what = match event {
            Event::Forget(node) => format!("node {node} restarts empty"),
            Event::Return(node) => format!("node {node} has been up for the longest TTL"),
            Event::Renew => "the holder begins to renew".into(),
            Event::Vote(node) => format!("node {node} answers the renewal"),
            Event::Repair(node) => format!("the repair reaches node {node}"),
            Event::Stop => "the holder stops".into(),
            Event::End(node) => format!("the holder's claim on node {node} ends"),
            Event::Claim => "the rival asks all nodes that count".into(),
            Event::Answer(node) => format!("node {node} answers the rival"),
        };
        format!("{what}. {}", nodes(after))
    }
}

const TOKEN: Token = Token::new(1);

impl Holds {
    fn start(&mut self, votes: [Option<u8>; NODES]) -> State {
        let mut round = self.rounds.begin([true; NODES]);
        for (node, vote) in votes.iter().enumerate() {
            if let Some(counter) = vote {
                let vote = Vote::Granted(Token::new(u64::from(*counter)));
                round = self.rounds.handle(round, RoundEvent::Vote(node, vote)).round;
            }
        }
        let remember = self.rounds.won(round).map_or(0, |(_, nodes)| nodes);
        let nodes = votes.map(|vote| Node {
            counter: vote.unwrap_or(0),
            holder: vote.map(|_| NodeHolder::Holder),
            young: false,
        });
        State {
            nodes,
            forgets: 0,
            believes: true,
            remember,
            settled: ALL,
            renewal: None,
            repairs: 0,
            rival: None,
        }
    }

    /// Takes a step. `None` if it is not possible.
    fn take(&mut self, state: &mut State, event: Event) -> Option<()> {
        match event {
            Event::Forget(node) => {
                let left = state.remember & !bit(node);
                let known = !self.remembered || left.count_ones() >= 2;
                possible(state.rival.is_none() && state.forgets < self.forgets && known)?;
                state.forgets += 1;
                let young = self.broken != Some(BrokenHold::NoQuarantine);
                state.nodes[node] = Node { counter: 0, holder: None, young };
                state.remember = left;
                state.settled &= !bit(node);
                // The node's connections broke, so messages on them are lost.
                state.repairs &= !bit(node);
                if let Some(asked) = &mut state.renewal {
                    asked.votes[node] = asked.votes[node].or(Some(RenewalVote::Silent));
                    asked.settled &= !bit(node);
                }
            }
            Event::Return(node) => {
                let settled = state.settled & bit(node) != 0 || !state.believes;
                possible(state.nodes[node].young && settled)?;
                state.nodes[node].young = false;
            }
            Event::Renew => {
                possible(state.believes && state.rival.is_none())?;
                let votes = [None; NODES];
                let eligible = old_enough(state);
                state.renewal = Some(Asked { eligible, settled: ALL, votes });
            }
            Event::Vote(node) => self.vote(state, node)?,
            Event::Repair(node) => {
                possible(state.repairs & bit(node) != 0)?;
                state.repairs &= !bit(node);
                if state.nodes[node].holder.is_none() {
                    state.nodes[node].holder = Some(NodeHolder::Holder);
                    self.raise(&mut state.nodes[node]);
                }
            }
            Event::Stop => {
                possible(state.believes)?;
                (state.believes, state.renewal) = (false, None);
            }
            Event::End(node) => {
                possible(!state.believes && state.nodes[node].holder == Some(NodeHolder::Holder))?;
                state.nodes[node].holder = None;
            }
            Event::Claim => {
                possible(state.rival.is_none())?;
                let eligible = old_enough(state);
                let eligible = [0, 1, 2].map(|node| eligible & bit(node) != 0);
                state.rival = Some(self.rounds.begin(eligible));
            }
            Event::Answer(node) => self.answer_rival(state, node)?,
        }
        Some(())
    }

    /// A node renews, and the real renewal decides.
    fn vote(&self, state: &mut State, node: usize) -> Option<()> {
        let mut asked = state.renewal?;
        possible(asked.votes[node].is_none())?;
        let before = asked.decide(None);
        let vote = if state.nodes[node].holder == Some(NodeHolder::Holder) {
            self.raise(&mut state.nodes[node]);
            RenewalVote::Renewed
        } else {
            RenewalVote::NotMine
        };
        asked.votes[node] = Some(vote);
        let (outcome, repairs) = asked.decide(Some(node));
        state.repairs |= repairs & !before.1;
        state.renewal = Some(asked);
        match outcome {
            Majority::For => {
                let renewed = |&n: &usize| asked.votes[n] == Some(RenewalVote::Renewed);
                let renewed = (0..NODES).filter(renewed).map(bit).sum::<u8>();
                // A node that lost its data after its vote does not count.
                state.remember |= renewed & asked.settled;
                state.settled |= asked.settled;
            }
            Majority::Against => (state.believes, state.renewal) = (false, None),
            Majority::Pending | Majority::Unclear => {}
        }
        Some(())
    }

    fn raise(&self, node: &mut Node) {
        if self.broken != Some(BrokenHold::NeverRaised) {
            node.counter = node.counter.max(1);
        }
    }

    fn answer_rival(&mut self, state: &mut State, node: usize) -> Option<()> {
        let round = state.rival?;
        let place = &mut state.nodes[node];
        possible(!place.young && place.holder != Some(NodeHolder::Rival))?;
        let vote = if place.holder.is_some() {
            Vote::Held
        } else {
            let counter = Token::after(Some(Token::new(u64::from(place.counter))), 0);
            place.counter = u8::try_from(counter.get()).ok()?;
            place.holder = Some(NodeHolder::Rival);
            Vote::Granted(counter)
        };
        let mut outcome = self.rounds.handle(round, RoundEvent::Vote(node, vote));
        for order in outcome.orders.into_iter().flatten() {
            if let Order::Raise { node, to } = order {
                let place = &mut state.nodes[node];
                place.counter = place.counter.max(u8::try_from(to.get()).ok()?);
                let raised = RoundEvent::Raised(node, Raised::Acknowledged);
                outcome = self.rounds.handle(outcome.round, raised);
            }
        }
        state.rival = Some(outcome.round);
        Some(())
    }
}

impl Asked {
    /// The real renewal's outcome with these votes, the one of `last` coming last, and the nodes to repair.
    fn decide(&self, last: Option<usize>) -> (Majority, u8) {
        let eligible = [0, 1, 2].map(|node| self.eligible & bit(node) != 0);
        let mut renewal = Renewal::new(&eligible, TOKEN);
        let others = (0..NODES).filter(|&node| Some(node) != last);
        for node in others.chain(last) {
            if let Some(vote) = self.votes[node] {
                renewal.handle_vote(node, vote);
            }
        }
        let mut repairs = 0;
        while let Some(Repair { node, .. }) = renewal.poll_repair() {
            repairs |= bit(node);
        }
        (renewal.outcome(), repairs)
    }
}

fn old_enough(state: &State) -> u8 {
    (0..NODES).filter(|&node| !state.nodes[node].young).map(bit).sum()
}

const fn bit(node: usize) -> u8 {
    1 << node
}

fn possible(condition: bool) -> Option<()> {
    condition.then_some(())
}

fn nodes(state: &State) -> String {
    let tell = |node: &Node| {
        let owner = |it: NodeHolder| format!("{it:?}'s").to_lowercase();
        let holder = node.holder.map_or("free".into(), owner);
        let young = if node.young { ", in quarantine" } else { "" };
        format!("{holder}, counter {}{young}", node.counter)
    };
    format!("Nodes: {}", state.nodes.each_ref().map(tell).join("; "))
}
