//! A client that cannot have what it needs to renew locks is not made at all.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure_core::{Client, ErrorKind, MemoryStore};

/// The limit is the process's: this is the only test of its program.
#[test]
fn a_client_without_descriptors_for_its_timer_is_refused() {
    let before = getrlimit(Resource::Nofile);
    let limit = |current| Rlimit { current: Some(current), maximum: before.maximum };
    setrlimit(Resource::Nofile, limit(64)).unwrap();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let mut refused = 0;
    // One descriptor more at a time, so that each thing that the client needs is the one missing.
    let error = loop {
        match Client::new(Arc::new(MemoryStore::new())) {
            Ok(client) => break client,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Internal);
                assert!(error.to_string().contains("raise the limit"), "{error}");
                refused += 1;
                files.pop().expect("the client needs no more descriptors than there are");
            }
        }
    };
    assert!(refused >= 3, "an epoll, an eventfd and a timer are needed: {refused}");
    drop((error, files));
    setrlimit(Resource::Nofile, before).unwrap();
}
