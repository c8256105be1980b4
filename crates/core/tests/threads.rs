//! A client for which no thread can be started is an error, in an async context, too.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::process::Command;
use std::sync::Arc;

use tenure_core::{Client, ErrorKind, MemoryStore};

const INSIDE: &str = "TENURE_TEST_WITHOUT_THREADS";

fn blocked_signals() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with("SigBlk:")).unwrap().to_owned()
}

/// The size of stacks is read once in a process: the test starts itself anew.
#[test]
fn a_thread_that_cannot_be_started_is_an_error_and_signals_stay_as_they_were() {
    if std::env::var_os(INSIDE).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        // More than the address space has; the harness runs the only test on its own thread.
        again.env(INSIDE, "1").env("RUST_MIN_STACK", "70000000000000");
        let output = again.args(["--test-threads", "1"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let before = blocked_signals();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused =
        runtime.block_on(async { Client::new(Arc::new(MemoryStore::new())).unwrap_err() });
    assert_eq!(refused.kind(), ErrorKind::Internal);
    assert_eq!(blocked_signals(), before);
}
