//! Tests of the public API on the memory store.
//!
//! They are one program, because each program would compile the generic code of the libraries again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod blocking;
mod cancel;
mod downgrade;
mod faults;
mod janitor;
mod latches;
mod layer;
mod leases;
mod mistakes;
mod multi;
mod once;
mod reentrant;
mod runtimes;
mod serde;
