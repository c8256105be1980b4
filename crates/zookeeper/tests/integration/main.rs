//! Tests on real ZooKeeper servers and on stubs of them.
//!
//! They are one program, because each program would compile the generic code of the libraries again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A test that needs servers.
macro_rules! on_servers {
    ($(#[doc = $why:literal])* async fn $name:ident() $body:block) => {
        $(#[doc = $why])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !tenure_testkit::ZooKeeperServer::is_missing(stringify!($name)) $body
        }
    };
}

mod access;
mod common;
mod connections;
mod crowds;
mod doctor;
mod faults;
mod notifications;
mod outages;
mod storm;
