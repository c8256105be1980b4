//! Tests on real etcd servers and on stubs of them.
//!
//! They are one program, because each program would compile the generic code of the libraries again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A test that needs servers.
macro_rules! on_servers {
    ($(#[doc = $why:literal])* async fn $name:ident() $body:block) => {
        $(#[doc = $why])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !tenure_testkit::lacks("etcd", stringify!($name))
                && !tenure_testkit::lacks("etcdctl", stringify!($name)) $body
        }
    };
}

mod access;
mod clients;
mod common;
mod crowds;
mod doctor;
mod etcdctl;
mod faults;
mod leases;
mod notifications;
mod outages;
mod storm;
