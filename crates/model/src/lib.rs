//! Searches every short history of claims on three nodes for one that breaks a guarantee.
//!
//! The clients are the real [`Round`](tenure_proto::quorum::Round) and
//! [`Renewal`](tenure_proto::quorum::Renewal), the counters the real
//! [`Token::after`](tenure_proto::Token::after). Only nodes and network are
//! simulated. Code here decides nothing about locks: the code that is checked must be the code that runs.
//!
//! Each guarantee is also broken on purpose, to show that the search finds it.

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
