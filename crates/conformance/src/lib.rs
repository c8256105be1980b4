//! One suite of cases that every store must pass.
//!
//! Code here judges: each case is a plain async function over a [`Fixture`] that panics when the
//! store breaks its promise. It may use the public API and the [`Store`](tenure_core::store::Store) trait
//! only, and may not know which store it judges but through its capabilities. A capability is
//! asserted in both directions: what a store says it cannot do, it must refuse.
//!
//! A store's test file implements [`Fixture`] and calls [`suite!`]; `tests/teeth.rs` shows that the
//! cases fail on stores that are broken on purpose.

#![allow(clippy::unwrap_used, reason = "a case judges by panicking")]

pub mod cases;
mod disturbance;
mod fixture;
pub mod holder;
mod holder_process;
mod polls;
mod raw;
mod suite;

pub use fixture::Fixture;
pub use suite::{CASES, lacks};
