//! Searches every history of a few claims on three nodes for one that breaks a promise.
//!
//! The clients are the real [`Round`](tenure_proto::quorum::Round) and
//! [`Renewal`](tenure_proto::quorum::Renewal), the counters the real
//! [`Token::after`](tenure_proto::Token::after). Only nodes and network are played. Code here may
//! not decide anything about locks: what it checks must be what runs.
//!
//! Each promise is also broken on purpose, to see the search find it.

mod claims;
mod holds;
mod rounds;
mod search;
mod state;
mod words;

pub use claims::{Broken, CLIENTS, Claims, Step};
pub use holds::{BrokenHold, Event as HoldStep, Holds, State as HoldState};
pub use rounds::{Event, NODES, Outcome, Rounds};
pub use search::{Mixer, Model, Report, search};
pub use state::State;
