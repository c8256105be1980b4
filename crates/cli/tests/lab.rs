//! The laboratory's verdicts are the expected ones.

use std::process::{Command, Stdio};

use tenure_testkit::{lacks, with_default_signals};

fn tenure(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let output = with_default_signals(command.args(arguments)).stdin(Stdio::null()).output();
    let output = output.expect("the command can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Every hazard against every algorithm, but for servers that start slowly: a specimen that does not break is as
/// wrong as a lock that does.
#[test]
fn every_experiment_ends_as_expected() {
    let test = "every_experiment_ends_as_expected";
    if lacks("redis-server", test) || lacks("cc", test) {
        return;
    }
    let page = tenure_testkit::temp_dir();
    let file = page.path().join("lab.html");
    let file = file.to_str().unwrap();
    let (code, table, wrong) = tenure(&["lab", "matrix", "--quick", "--html", file]);
    assert_eq!(code, Some(0), "{table}\n{wrong}");
    for word in ["one-restarts-empty", "s safe"] {
        assert!(table.contains(word), "{table}");
    }
    let page = std::fs::read_to_string(file).unwrap();
    for part in ["<svg", "class=\"overlap\"", "class=\"rejected\"", "id=\"pause.blind-del\""] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") || !page.contains("src="), "the page needs no network");
}

#[test]
fn hazards_and_algorithms_are_listed_and_unknown_ones_refused() {
    let (code, listed, _) = tenure(&["lab", "ls"]);
    assert_eq!(code, Some(0));
    for name in ["pause", "herd", "redlock-incr", "zookeeper"] {
        assert!(listed.contains(name), "{listed}");
    }
    for wrong in [["pause", "nothing"], ["nothing", "local"]] {
        let (code, _, why) = tenure(&["lab", "run", wrong[0], "--algorithm", wrong[1]]);
        assert_eq!(code, Some(64), "{why}");
        assert!(why.contains("\"nothing\"") && why.contains("tenure lab ls"), "{why}");
    }
}
