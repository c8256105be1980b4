//! Tests on real Redis servers and on stubs of them.
//!
//! They are one program, because each program would compile the generic code of the libraries again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A test that needs servers.
macro_rules! on_servers {
    ($(#[doc = $why:literal])* async fn $name:ident() $body:block) => {
        $(#[doc = $why])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !tenure_testkit::lacks("redis-server", stringify!($name)) $body
        }
    };
}

mod access;
mod bad_input;
mod cluster;
mod counters;
mod crowds;
mod dating;
mod doctor;
mod faults;
mod foreign;
mod line;
mod logins;
mod messages;
mod newer_commands;
mod older;
mod outages;
mod quorum;
mod reconnect;
mod redisson;
mod redlock;
mod redlock_clock;
mod redlock_messages;
mod redlock_servers;
mod redlock_storm;
mod replicas;
mod round_trips;
mod runtimes;
mod secrets;
mod sentinel;
mod servers;
mod storm;
mod stubs;
mod transactions;
