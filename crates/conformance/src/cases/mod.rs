//! The cases, by subject. Each is named by the behaviour it holds.

pub mod cancel;
pub mod cells;
pub mod eviction;
pub mod exclusion;
pub mod handover;
pub mod inspection;
pub mod lease;
pub mod line;
pub mod loss;
pub mod names;
pub mod permits;
pub mod processes;
pub mod promises;
pub mod release;
pub mod runtimes;
pub mod scale;
pub mod shared;
pub mod waiting;
