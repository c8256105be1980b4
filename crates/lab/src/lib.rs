//! The laboratory: plays the hazards of distributed locks on real servers with real processes, and judges what
//! happened.
//!
//! An [experiment](Experiment) is a [hazard](hazards) and an [algorithm](algorithms). It has a stage: private
//! servers, client processes behind proxies, and a [resource] with a fence. The hazard is a script that
//! tells the clients what to do and injects faults. It waits for events, never for a time to be short, so it comes
//! out the same way each time. What happens is a [`History`](history::History), which the [judge] reads.
//!
//! The algorithms under test are tenure's locks, and specimens: algorithms as people write them, with their
//! mistakes. The specimens show that an experiment can tell good from bad, and are not part of any API.
//!
//! A program that uses this crate must be able to be a client: it starts itself with other arguments, and calls
//! [`play_part`] then.

pub mod algorithms;
mod client;
pub mod expected;
mod folder;
pub mod hazards;
pub mod history;
pub mod judge;
pub mod lock_set;
mod observer;
mod part;
mod real;
pub mod report;
pub mod resource;
mod runner;
mod servers;
pub mod soak;
mod specimens;
mod stage;
mod steps;

pub use folder::private_folder;
pub use part::{ClientProgram, play_part};
pub use runner::{Experiment, Lab, Outcome, Result};
