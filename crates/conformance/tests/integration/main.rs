//! The conformance suite on each store, and checks of the suite itself.
//!
//! They are one program, because each program would compile the generic code of the libraries again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cell_mutants;
mod chaos;
mod costs;
mod documents;
mod etcd;
mod etcd_cluster;
mod local;
mod memory;
mod mutants;
mod redis;
mod redis_6_2;
mod redis_acl;
mod redis_cluster;
mod redis_sentinel;
mod redis_unfenced;
mod redisson;
mod redisson_6_2;
mod redisson_cluster;
mod redisson_sentinel;
mod redisson_valkey_9;
mod redlock_3;
mod redlock_5;
mod shared_server;
mod valkey_9;
mod zookeeper;
mod zookeeper_compat;
mod zookeeper_ensemble;
