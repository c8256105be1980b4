//! The example of a late write ends as it says: each gate refuses the holder that was stopped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use tenure_testkit::{PostgresServer, ZooKeeperServer, lacks, skip};

#[test]
fn each_gate_refuses_the_late_write_of_a_stopped_process() {
    const TEST: &str = "each_gate_refuses_the_late_write_of_a_stopped_process";
    let programs = ["redis-server", "etcd", "etcdctl"];
    if programs.iter().any(|program| lacks(program, TEST)) || ZooKeeperServer::is_missing(TEST) {
        return;
    }
    if !PostgresServer::is_installed() {
        return skip(TEST, "postgres is not installed");
    }
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/late_write");
    // `cargo test` builds examples beside the tests; `cargo test --test late_write` does not.
    if !program.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "tenure-gate", "--example", "late_write"]);
        assert!(cargo.status().unwrap().success(), "the example does not compile");
    }
    let done = Command::new(program).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let (second, late) = said.split_once("the first holder goes on").unwrap();
    for gate in ["Redis", "PostgreSQL", "file", "HTTP", "etcd", "ZooKeeper"] {
        assert!(second.contains(&format!("  {gate}: accepted\n")), "{said}");
        assert!(late.contains(&format!("  {gate}: refused: ")), "{said}");
    }
    assert!(late.contains("HTTP/1.1 412"), "{said}");
    // Otherwise the test would not show that the write was late.
    assert!(late.contains("  no gate: accepted\n"), "{said}");
}
