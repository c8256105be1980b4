//! The introductory examples run to their end and say what they promise.

#![cfg(all(target_os = "linux", feature = "local"))]
#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

#[test]
fn first_lock_works_under_the_lock_and_releases_it() {
    let folder = tempfile::tempdir().unwrap();
    let said = run("first_lock", folder.path());
    assert!(said.contains("held, token ") && said.ends_with("released\n"), "{said}");
}

#[test]
fn payouts_with_fencing_refuses_the_late_holder() {
    let folder = tempfile::tempdir().unwrap();
    let said = run("payouts_with_fencing", folder.path());
    assert!(said.contains("first holder pays out 30:  accepted = false"), "{said}");
}

#[test]
fn once_per_hour_runs_the_job_once() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run("once_per_hour", folder.path()), "ran the job\n");
    let second = run("once_per_hour", folder.path());
    assert!(second.starts_with("skipped: the last run was"), "{second}");
}

#[test]
fn flash_sale_oversells_only_without_a_lock() {
    let folder = tempfile::tempdir().unwrap();
    let said = run("flash_sale", folder.path());
    for line in said.lines().skip(1) {
        let (way, rest) = line.split_at(22);
        let numbers: Vec<u64> = rest.split_whitespace().map_while(|it| it.parse().ok()).collect();
        match way.trim_end() {
            // How much the crowd buys without a lock is chance.
            "without a lock" => assert_eq!(numbers[0], 13, "{said}"),
            "WATCH / MULTI / EXEC" => assert!(rest.contains("only Redis has WATCH"), "{said}"),
            _ => assert!([5, 8].contains(&numbers[0]) && numbers[1] == 100, "{said}"),
        }
    }
    assert_eq!(said.lines().count(), 6, "{said}");
}

#[test]
fn leader_leads_and_resigns() {
    let folder = tempfile::tempdir().unwrap();
    let said = run("leader", folder.path());
    assert!(said.contains("leading") && said.trim_end().ends_with("resigned"), "{said}");
}

#[test]
fn leader_is_replaced_when_it_is_killed_and_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let said = run_with("leader", &["play"], folder.path());
    let expected = "killed:  the next leader has a higher term: true\n\
                    stopped: the next leader has a higher term: true\n\
                    it said: lost\n\
                    last:    led and resigned\n";
    assert_eq!(said, expected);
}

#[test]
fn once_takes_over_from_a_killed_and_from_a_stopped_runner() {
    let folder = tempfile::tempdir().unwrap();
    let said = run("once", folder.path());
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "killed:  Ran(\"done by the second\")", "{said}");
    assert_eq!(lines[1], "again:   Replayed(\"done by the second\")", "{said}");
    assert_eq!(lines[2], "stopped: Ran(\"done by the second\")", "{said}");
    assert!(lines[3].starts_with("runner:  could not ") && lines.len() == 4, "{said}");
}

#[test]
fn testing_with_chaos_passes_its_own_tests() {
    let folder = tempfile::tempdir().unwrap();
    assert!(run("testing_with_chaos", folder.path()).ends_with("all passed\n"));
}

/// Runs an example with a local store and temporary files of its own.
fn run(example: &str, folder: &Path) -> String {
    run_with(example, &[], folder)
}

fn run_with(example: &str, arguments: &[&str], folder: &Path) -> String {
    let mut command = Command::new(program(example));
    command.args(arguments);
    command.env_remove("TENURE_STORE").env("TENURE_DIR", folder.join("locks"));
    let done = command.env("TMPDIR", folder).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{example}: {}\n{said}{complaint}", done.status);
    said
}

/// `cargo test` builds examples beside the tests of their package; `cargo test --test examples` does not.
fn program(example: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(example);
    BUILT.call_once(|| {
        if !program.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--package", "tenure", "--examples"]);
            assert!(cargo.status().unwrap().success(), "the examples do not compile");
        }
    });
    program
}
