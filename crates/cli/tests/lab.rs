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

/// The first seed begins with faults of all kinds, the second one with holders that are stopped past their TTL.
#[test]
fn a_soak_finds_a_fenced_lock_sound_and_a_specimen_broken() {
    if lacks("redis-server", "a_soak_finds_a_fenced_lock_sound_and_a_specimen_broken") {
        return;
    }
    let soak = |algorithm, seed| {
        let time = ["--duration", "14s", "--ttl", "1s", "--rate", "1500", "--seed", seed];
        let (code, figures, wrong) =
            tenure(&[&["--json", "lab", "soak", "-a", algorithm][..], &time].concat());
        let figures: serde_json::Value = serde_json::from_str(&figures).expect(&wrong);
        (code, figures, wrong)
    };
    let (code, figures, wrong) = soak("redis", "118");
    assert_eq!(code, Some(0), "{figures}\n{wrong}");
    for kind in ["holder stopped past the TTL", "server stopped", "server killed and restarted"] {
        assert!(figures["faults"][kind].as_u64() >= Some(1), "{kind}: {figures}");
    }
    assert!(figures["stale_rejected"].as_u64() >= Some(1), "{figures}");
    assert!(figures["acquisitions"].as_u64() >= Some(100), "{figures}");
    let (code, figures, wrong) = soak("blind-del", "1334");
    assert_eq!(code, Some(1), "{figures}\n{wrong}");
    assert!(wrong.contains("stale write"), "{wrong}");
}

#[test]
fn what_has_no_server_here_is_not_played_and_its_package_is_named() {
    let empty = tenure_testkit::temp_dir();
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).env("PATH", empty.path()).stdin(Stdio::null());
        with_default_signals(&mut command).output().expect("the command can be started")
    };
    for (algorithm, package) in
        [("etcd", "etcd-server"), ("redis", "redis-server"), ("zookeeper", "default-jre-headless")]
    {
        let played = lab(&["lab", "run", "pause", "--algorithm", algorithm]);
        let said = String::from_utf8_lossy(&played.stdout);
        assert!(said.contains(package), "{said}");
        assert_eq!(played.status.code(), Some(69), "{said}");
    }
    let played = lab(&["lab", "matrix", "--hazards", "nested-names", "--algorithms", "etcd,local"]);
    assert_eq!(played.status.code(), Some(0), "what can be played is as expected");
    assert!(String::from_utf8_lossy(&played.stderr).contains("etcd-server"));
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
