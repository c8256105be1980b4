//! A lock store over any engine that keeps, for each lock, a queue of ordered entries which end
//! with a session: etcd (keys on a lease, ordered by create revision) and ZooKeeper (ephemeral
//! sequential nodes).
//!
//! [`Engine`] is what such an engine must be able to do. Everything else is here.

mod engine;
mod losses;
mod record;

pub use engine::{Change, Details, Engine, Entered, Entry, Listing, Session, Watching};
pub use losses::{losses, with_loss};
pub use record::Record;
