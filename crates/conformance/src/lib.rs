//! The conformance suite: the test cases that every store must pass.
//!
//! Each case is an async function over a [`Fixture`] that panics if the store violates the
//! requirement in the case's name. A case uses the public API and the
//! [`Store`](tenure_core::store::Store) trait only, and depends on nothing about the store but its
//! declared capabilities. Capabilities are asserted in both directions: a store must refuse what it
//! declares it cannot do.
//!
//! To test a store, implement [`Fixture`] in a test file and call [`suite!`]. `tests/integration/mutants.rs`
//! checks the suite itself: it runs the cases on deliberately faulty stores and expects failures.

#![allow(clippy::unwrap_used, reason = "a case fails by panicking")]

pub mod cases;
mod fixture;
pub mod holder;
mod holder_process;
mod raw;
mod starvation;
mod suite;

pub use fixture::Fixture;
pub use suite::{CASES, lacks};
