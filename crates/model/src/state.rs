//! The state of the nodes, the clients and the messages between them, in few bytes.

use std::hash::{Hash, Hasher};

use crate::claims::CLIENTS;
use crate::rounds::NODES;

/// The nodes, the clients and the messages between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) troubles: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Node {
    pub(crate) counter: u8,
    /// The clients that hold it, as bits.
    pub(crate) holders: u8,
    /// The clients that held it, in order: two bits each, one more than the client's number, the latest
    /// lowest.
    pub(crate) order: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) round: u16,
    /// The token and the acknowledged nodes, from when the round was won.
    pub(crate) won: Option<(u8, u8)>,
    pub(crate) links: [Link; NODES],
}

/// The messages in flight between a client and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Link {
    pub(crate) request: Option<Request>,
    pub(crate) answer: Option<Answer>,
    /// The client knows that its request was not answered in time.
    pub(crate) late: bool,
    pub(crate) release: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Claim,
    Raise(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(u8),
    Held,
    Acknowledged,
    NotMine,
}

impl Client {
    /// Whether none of its claims has arrived.
    pub(crate) fn is_fresh(&self) -> bool {
        self.links.iter().all(|link| link.request == Some(Request::Claim))
    }
}

/// One word instead of six: the search spends most of its time here.
impl Hash for Link {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let request = match self.request {
            None => 0,
            Some(Request::Claim) => 1,
            Some(Request::Raise(to)) => 0x100 | u64::from(to),
        };
        let answer = match self.answer {
            None => 0,
            Some(Answer::Held) => 1,
            Some(Answer::Acknowledged) => 2,
            Some(Answer::NotMine) => 3,
            Some(Answer::Granted(counter)) => 0x100 | u64::from(counter),
        };
        let flags = u64::from(self.late) | u64::from(self.release) << 1;
        hasher.write_u64(request << 32 | answer << 16 | flags);
    }
}

impl Link {
    pub(crate) const fn is_busy(&self) -> bool {
        self.request.is_some() || self.answer.is_some()
    }
}

impl Node {
    pub(crate) const fn is_held_by(&self, client: usize) -> bool {
        self.holders & (1 << client) != 0
    }

    pub(crate) fn held_before(self, first: usize, second: usize) -> bool {
        // The latest comes first here.
        let held = [0, 2, 4].map(|shift| usize::from(self.order >> shift & 3));
        let place = |client: usize| held.iter().position(|&c| c == client + 1);
        matches!((place(first), place(second)), (Some(a), Some(b)) if a > b)
    }
}
