//! The program as `cargo xtask bench` runs it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs a quick measurement. Its times are those of a debug build on a busy machine, so bounds may be missed.
fn bench(folder: &Path, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-bench"));
    let output = command
        .arg("--quick")
        .arg("--out")
        .arg(folder)
        .args(words)
        .output()
        .expect("the bench can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
}

fn report(folder: &Path) -> Value {
    let written = std::fs::read(folder.join("bench.json")).expect("the bench writes its results");
    serde_json::from_slice(&written).expect("the results are JSON")
}

#[test]
fn rows_are_added_to_those_of_earlier_runs_also_when_there_was_none() {
    let folder = tempfile::tempdir().unwrap();
    bench(folder.path(), &["--add", "local-free"]);
    bench(folder.path(), &["--add", "local-reentry"]);
    let report = report(folder.path());
    let whats: Vec<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        whats,
        ["local: acquire + release, free, one process", "local: acquire + release, re-entry"]
    );
    assert_eq!(report["failed"].as_array().unwrap().len(), 0, "{report}");
    assert!(folder.path().join("bench.html").is_file());
}
