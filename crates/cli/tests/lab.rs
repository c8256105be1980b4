//! The laboratory's verdicts are the expected ones.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_testkit::{GENEROUS, lacks, with_default_signals};

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

/// Its servers have ended, and their files are gone.
#[test]
fn an_interrupted_laboratory_leaves_nothing_behind() {
    if lacks("redis-server", "an_interrupted_laboratory_leaves_nothing_behind") {
        return;
    }
    let folder = tenure_testkit::temp_dir();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["lab", "matrix", "--hazards", "long-work", "--algorithms", "redis,redlock"]);
    command.env("TMPDIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut lab = with_default_signals(&mut command).spawn().expect("the command can be started");
    // Each server works in its directory.
    let servers = || {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let places = processes.filter_map(|one| std::fs::read_link(one.path().join("cwd")).ok());
        places.filter(|place| place.starts_with(folder.path())).count()
    };
    let until = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() && start.elapsed() < GENEROUS {
            std::thread::sleep(Duration::from_millis(10));
        }
        done()
    };
    assert!(until(&|| servers() >= 6), "{} servers run", servers());
    let pid = i32::try_from(lab.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), rustix::process::Signal::INT)
        .expect("it runs");
    assert_eq!(lab.wait().expect("it was started here").code(), Some(130));
    assert!(until(&|| servers() == 0), "{} servers still run", servers());
    let left = std::fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(left, 0, "files are left in {}", folder.path().display());
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
