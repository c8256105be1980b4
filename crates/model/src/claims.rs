//! Claims on three nodes: real rounds, simulated nodes, and a network that may delay and lose anything.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use tenure_proto::Token;
use tenure_proto::quorum::{Order, Raised, Verdict, Vote};

use crate::Model;
use crate::rounds::{Event, NODES, Outcome, Rounds};
use crate::search::Mixer;
use crate::state::{Answer, Client, Link, Node, Request, State};

/// The most clients. Each makes one claim; a second attempt is modelled as another client.
pub const CLIENTS: usize = 3;

/// Up to three clients that claim one lock.
///
/// Requests and replies may arrive at any time or never, and a node's hold may expire at any time.
/// Requests of one client to one node stay in order.
#[derive(Debug, Default)]
pub struct Claims {
    /// How many clients there are.
    pub clients: usize,
    /// The clients that claim a shared hold, as bits.
    pub readers: u8,
    /// The floor each client sends with its claim.
    pub floors: [u8; CLIENTS],
    /// The counters the nodes may start with.
    pub counters: Vec<[u8; NODES]>,
    /// Nodes that another client holds at the start, as bits.
    pub taken: Vec<u8>,
    /// How often clients give up, release what they won, or stop waiting for an answer. With none,
    /// nothing is released, and nodes are freed by expiry alone.
    pub troubles: u8,
    /// Leaves out events that cannot change which client wins with which token. A claim that would be refused
    /// does not arrive, because a refusal can only keep a client from winning. For a claim that arrives, the
    /// conflicting holder has just expired. A client that has won receives nothing more.
    pub lean: bool,
    /// A deliberate mistake, which the search must find.
    pub broken: Option<Broken>,
    /// The rounds.
    pub rounds: Rounds,
    /// The tokens and acknowledged nodes of all clients, for every outcome that was seen.
    pub wins: HashSet<[Option<(u8, u8)>; CLIENTS], BuildHasherDefault<Mixer>>,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The token is the largest counter, and no node is raised to it.
    MaximumOnly,
    /// A vote above the token counts as acknowledged.
    VotesAboveTheToken,
    /// A node raises its counter for any client.
    RaiseWithoutOwner,
    /// A release is not ordered after the claim, and may arrive first.
    ReleaseOvertakes,
}

/// An event between a client and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request arrives, and is answered.
    Arrive(usize, usize),
    /// A reply arrives.
    Answer(usize, usize),
    /// The client stops waiting for an answer.
    Late(usize, usize),
    /// A request or an answer that the client has stopped waiting for is lost.
    Lose(usize, usize),
    /// A release arrives.
    Release(usize, usize),
    /// The hold expires.
    Expire(usize, usize),
    /// The client gives up, or releases what it won.
    GiveUp(usize),
}

impl Model for Claims {
    type State = State;
    type Step = Step;

    fn starts(&mut self) -> Vec<State> {
        let round = self.rounds.begin([true; NODES]);
        let client = |active: bool| {
            let request = active.then_some(Request::Claim);
            Client { round, won: None, links: [Link { request, ..Link::default() }; NODES] }
        };
        let clients = [0, 1, 2].map(|number| client(number < self.clients));
        let mut starts = Vec::new();
        for counters in &self.counters {
            for taken in &self.taken {
                let nodes = [0, 1, 2].map(|node| Node {
                    counter: counters[node],
                    holders: (taken >> node & 1) << CLIENTS,
                    order: 0,
                });
                starts.push(State { nodes, clients, troubles: 0 });
            }
        }
        starts
    }

    fn next(&mut self, state: &State, found: &mut Vec<(Step, State)>) {
        for client in 0..self.clients {
            let steps = (0..NODES).flat_map(|node| steps(client, node));
            for step in steps.chain([Step::GiveUp(client)]) {
                if self.can(state, step) {
                    let mut next = *state;
                    self.take(&mut next, step);
                    found.push((step, next));
                }
            }
        }
    }

    fn fault(&mut self, state: &State) -> Option<String> {
        self.wins.insert(state.clients.map(|client| client.won));
        let orphan = if self.troubles > 0 { self.orphan(state) } else { None };
        orphan.or_else(|| self.disorder(state))
    }

    fn tell_start(&self, state: &State) -> String {
        crate::words::start(state)
    }

    fn tell(&self, before: &State, step: Step, after: &State) -> String {
        crate::words::step(&self.rounds, before, step, after)
    }
}

const fn steps(client: usize, node: usize) -> [Step; 6] {
    [
        Step::Arrive(client, node),
        Step::Answer(client, node),
        Step::Late(client, node),
        Step::Lose(client, node),
        Step::Release(client, node),
        Step::Expire(client, node),
    ]
}

impl Claims {
    fn can(&self, state: &State, step: Step) -> bool {
        let trouble = state.troubles < self.troubles;
        let link = |client: usize, node: usize| state.clients[client].links[node];
        match step {
            Step::Arrive(client, node) => {
                link(client, node).request.is_some() && self.in_order(state, client, node)
            }
            Step::Answer(client, node) => link(client, node).answer.is_some(),
            Step::Late(client, node) => {
                let link = link(client, node);
                trouble && !link.late && link.is_busy()
            }
            Step::Lose(client, node) => {
                let link = link(client, node);
                link.late && link.is_busy()
            }
            Step::Release(client, node) => {
                let link = link(client, node);
                let overtakes = self.broken == Some(Broken::ReleaseOvertakes);
                link.release && (link.request.is_none() || overtakes)
            }
            Step::Expire(client, node) => !self.lean && state.nodes[node].is_held_by(client),
            Step::GiveUp(client) => trouble && !self.has_lost(&state.clients[client]),
        }
    }

    /// Symmetry reduction: equivalent nodes and clients are numbered in the order in which they first appear.
    /// Otherwise every history would be searched once for each numbering.
    fn in_order(&self, state: &State, client: usize, node: usize) -> bool {
        let fresh = |client: &Client| client.is_fresh();
        let kind = |client: usize| (self.readers >> client & 1, self.floors[client]);
        let first = || state.clients[..self.clients].iter().all(fresh);
        let alike = self.counters == [[0; NODES]] && self.taken == [0];
        (node == 0 || !alike || !first())
            && (client == 0
                || kind(client) != kind(client - 1)
                || !fresh(&state.clients[client - 1]))
    }

    fn take(&mut self, state: &mut State, step: Step) {
        match step {
            Step::Arrive(client, node) => {
                let link = &mut state.clients[client].links[node];
                let Some(request) = link.request.take() else { return };
                let answer = self.serve(&mut state.nodes[node], client, request);
                let deaf = self.lean && state.clients[client].won.is_some();
                state.clients[client].links[node].answer = (!deaf).then_some(answer);
            }
            Step::Answer(client, node) => {
                let Some(answer) = state.clients[client].links[node].answer.take() else { return };
                let event = self.as_reported(state, client, node, answer);
                self.handle(state, client, event);
            }
            Step::Late(client, node) => {
                let link = &mut state.clients[client].links[node];
                link.late = true;
                state.troubles += 1;
                let raising = matches!(link.request, Some(Request::Raise(_)))
                    || matches!(link.answer, Some(Answer::Acknowledged | Answer::NotMine));
                let event = match raising {
                    true => Event::Raised(node, Raised::Failed),
                    false => Event::Vote(node, Vote::Unknown),
                };
                self.handle(state, client, event);
            }
            Step::Lose(client, node) => {
                let link = &mut state.clients[client].links[node];
                (link.request, link.answer) = (None, None);
            }
            Step::Release(client, node) => {
                state.clients[client].links[node].release = false;
                state.nodes[node].holders &= !(1 << client);
            }
            Step::Expire(client, node) => state.nodes[node].holders &= !(1 << client),
            Step::GiveUp(client) => {
                state.troubles += 1;
                self.handle(state, client, Event::GiveUp);
            }
        }
    }

    /// What a node does. Each is one script on a real node.
    fn serve(&self, node: &mut Node, client: usize, request: Request) -> Answer {
        let mine = node.is_held_by(client);
        match request {
            Request::Claim => {
                let reads = self.readers & (1 << client) != 0;
                let in_the_way = node.holders & if reads { !self.readers } else { !0 };
                if in_the_way != 0 && !self.lean {
                    return Answer::Held;
                }
                node.holders &= !in_the_way;
                let last = Token::new(u64::from(node.counter));
                let floor = Token::new(u64::from(self.floors[client]));
                let counter = Token::after(Some(last), 0).max(floor);
                node.counter = small(counter);
                node.holders |= 1 << client;
                node.order = node.order << 2 | (client as u8 + 1);
                Answer::Granted(node.counter)
            }
            Request::Raise(to) if mine || self.broken == Some(Broken::RaiseWithoutOwner) => {
                node.counter = node.counter.max(to);
                Answer::Acknowledged
            }
            Request::Raise(_) => Answer::NotMine,
        }
    }

    /// A reply as the client's round sees it: unchanged, except with one of the mistakes.
    fn as_reported(&self, state: &State, client: usize, node: usize, answer: Answer) -> Event {
        match answer {
            Answer::Granted(counter) => {
                let mut counter = Token::new(u64::from(counter));
                if self.broken == Some(Broken::VotesAboveTheToken) {
                    let token = self.rounds.get(state.clients[client].round).token();
                    counter = counter.min(token.unwrap_or(counter));
                }
                Event::Vote(node, Vote::Granted(counter))
            }
            Answer::Held => Event::Vote(node, Vote::Held),
            Answer::Acknowledged => Event::Raised(node, Raised::Acknowledged),
            Answer::NotMine => Event::Raised(node, Raised::NotMine),
        }
    }

    fn has_lost(&self, client: &Client) -> bool {
        matches!(self.rounds.get(client.round).verdict(), Verdict::Lost(_))
    }

    fn handle(&mut self, state: &mut State, client: usize, event: Event) {
        let Outcome { round, orders } = self.rounds.handle(state.clients[client].round, event);
        let me = &mut state.clients[client];
        me.round = round;
        if let (None, Some((token, nodes))) = (me.won, self.rounds.won(round)) {
            me.won = Some((small(token), nodes));
            if self.lean {
                me.round = self.rounds.begin([true; NODES]);
                me.links.iter_mut().for_each(|link| link.answer = None);
            }
        }
        let mut skipped = [false; NODES];
        for order in orders.into_iter().flatten() {
            match order {
                Order::Raise { node, .. } if self.broken == Some(Broken::MaximumOnly) => {
                    skipped[node] = true;
                }
                Order::Raise { node, to } => {
                    let request = Some(Request::Raise(small(to)));
                    me.links[node] = Link { request, ..Link::default() };
                }
                Order::Release { node } => me.links[node].release = self.troubles > 0,
                Order::Claim { .. } => {}
            }
        }
        for node in (0..NODES).filter(|&node| skipped[node]) {
            self.handle(state, client, Event::Raised(node, Raised::Acknowledged));
        }
    }

    /// Two clients that won and exclude each other must have tokens in the order in which they held any
    /// node that acknowledged both.
    fn disorder(&self, state: &State) -> Option<String> {
        for (first, second) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let (Some((token, nodes)), Some((later, others))) =
                (state.clients[first].won, state.clients[second].won)
            else {
                continue;
            };
            let both_read = self.readers >> first & self.readers >> second & 1 == 1;
            if both_read || token < later {
                continue;
            }
            let shared = (0..NODES).filter(|node| nodes & others & (1 << node) != 0);
            for node in shared {
                if state.nodes[node].held_before(first, second) {
                    let (a, b) = (crate::words::name(first), crate::words::name(second));
                    return Some(format!(
                        "FAULT: {a} won with {token} and {b} with {later}, \
                         but node {node} had {a} before {b}"
                    ));
                }
            }
        }
        None
    }

    /// A client that lost or gave up, and has no message in flight to a node, must not hold it.
    fn orphan(&self, state: &State) -> Option<String> {
        for (number, client) in state.clients.iter().enumerate() {
            for (node, link) in client.links.iter().enumerate() {
                let quiet = !link.is_busy() && !link.release;
                if quiet && state.nodes[node].is_held_by(number) && self.has_lost(client) {
                    let name = crate::words::name(number);
                    return Some(format!(
                        "FAULT: {name} is done, and nothing will ever release its hold on node {node}"
                    ));
                }
            }
        }
        None
    }
}

fn small(token: Token) -> u8 {
    u8::try_from(token.get()).expect("counters of a few claims are small")
}
