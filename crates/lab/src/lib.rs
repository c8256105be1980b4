//! The laboratory: plays the hazards of distributed locks on real servers with real processes, and judges what
//! happened.
pub mod history;
pub mod judge;
