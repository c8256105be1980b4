//! Searches every short history of claims on three nodes for one that breaks a guarantee.
//!
//! The clients are the real [`Round`](tenure_proto::quorum::Round) and
//! [`Renewal`](tenure_proto::quorum::Renewal), the counters the real
//! [`Token::after`](tenure_proto::Token::after). Only nodes and network are
//! simulated. Code here decides nothing about locks: the code that is checked must be the code that runs.
//!
//! # What is searched
//!
//! On three nodes: three writers; two readers and a writer; two writers on any counters up to two, also
//! with a floor; two writers of which one gives up, releases or is late, once; one writer that does so as
//! often as it can; and a hold that is renewed and repaired while nodes lose their data. Messages arrive
//! at any time, late, or never, and holds expire at any time. These are sixteen million states, in half a
//! minute and half a gigabyte. A search that would need more than its cap fails.
//!
//! Winners' tokens are in the order of their holds, and a claim that lost or was given up leaves nothing
//! behind. Each guarantee is also broken on purpose, and the search finds the history: no second phase,
//! votes above the token, raises that do not compare the owner, releases that overtake, counters that
//! repairs or renewals do not raise, no quarantine.
//!
//! # What is not
//!
//! More than three nodes or claims (an attempt is a claim); the order of two readers' tokens; clocks,
//! TTLs and the lease's validity, which are arithmetic (`tests/quorum/time.txt` in `proto`); nodes that
//! lose their data during a claim; the scripts on the servers.

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
