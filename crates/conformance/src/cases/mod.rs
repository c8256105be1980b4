//! The cases, one module per subject. The name of a case states its requirement.

pub mod barrier;
pub mod cancel;
pub mod capabilities;
pub mod cells;
pub mod counters;
pub mod downgrade;
pub mod election;
pub mod eviction;
pub mod exclusion;
pub mod handover;
pub mod inspection;
pub mod latch;
pub mod lease;
pub mod limits;
pub mod loss;
pub mod names;
pub mod once;
pub mod permits;
pub mod processes;
pub mod queue;
pub mod release;
pub mod revocation;
pub mod runtimes;
pub mod scale;
pub mod shared;
pub mod waiting;
