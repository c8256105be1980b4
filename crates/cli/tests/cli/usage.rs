//! Invalid command lines, stores that cannot be opened, help, completions and the manual page.

use std::os::unix::fs::PermissionsExt;

use tenure_testkit::{RedisServer, lacks};

use crate::common::{Ran, Store};

#[test]
fn an_invalid_command_line_is_reported_in_one_line_with_code_64() {
    let store = Store::new();
    let long = "x".repeat(201);
    for arguments in [
        &[][..],
        &["doctor", "a"],
        &["run"],
        &["run", "a"],
        &["run", "a", "true"],
        &["run", "", "--", "true"],
        &["run", &long, "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["run", "--ttl", "0s", "a", "--", "true"],
        &["run", "--ttl", "25h", "a", "--", "true"],
        &["run", "--ttl", "5", "a", "--", "true"],
        &["run", "-n", "-w", "1s", "a", "--", "true"],
        &["run", "--max-hold", "0s", "a", "--", "true"],
        &["hold", "--on-lost", "term", "a"],
        &["status", &long],
        &["watch", "--every", "0s"],
        &["--store", "http://host", "ls"],
        &["--store", "local:relative", "ls"],
        &["--store", "memory:?ttl=5s", "ls"],
        &["--store", "redis://host/db", "ls"],
    ] {
        store.run(arguments).failed(64);
    }
    let unknown = store.run(&["--store", "http://host", "ls"]).failed(64);
    assert!(unknown.contains("redis+sentinel") && unknown.contains("zk"), "{unknown}");
}

#[test]
fn passwords_are_never_printed() {
    let store = Store::new();
    for url in [
        "redis://app:hunter2@cache",
        "redis://app:hunter2",
        "redsi://app:hunter2@cache",
        "redis://app:hunter2/@cache",
        "app:hunter2@cache",
    ] {
        for verbose in ["-q", "-vvv"] {
            for arguments in [&["--store", url, verbose, "ls"][..], &[verbose, url]] {
                let ran = store.run(arguments);
                assert!(matches!(ran.code, Some(64 | 69)), "{ran:?}");
                assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
            }
        }
        for arguments in [&["ls"][..], &["ls", "--help"], &["--help"], &["nonsense"]] {
            let mut command = store.tenure(arguments);
            let ran = Ran::from(command.env("TENURE_STORE", url).output().unwrap());
            assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
        }
    }
}

#[test]
fn an_unusable_directory_is_reported_in_one_line() {
    let store = Store::new();
    let file = store.scratch().join("file");
    std::fs::write(&file, "").unwrap();
    let on = |directory: &std::path::Path| {
        store.run(&["--store", &format!("local:{}", directory.display()), "ls"])
    };
    let printed = on(&file.join("below"));
    assert!(matches!(printed.code, Some(64 | 69 | 77)), "{printed:?}");
    let code = printed.code.unwrap();
    printed.failed(code);
    // Root may write everywhere, so this checks nothing as root.
    let closed = store.scratch().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    if std::fs::write(closed.join("probe"), "").is_err() {
        on(&closed.join("below")).failed(77);
    }
}

#[test]
fn the_memory_store_serves_one_process() {
    let store = Store::new();
    let ran =
        store.run(&["--store", "memory:", "run", "a", "-c", "echo $TENURE_STORE $TENURE_LOCK"]);
    assert_eq!(ran.ok(), "memory: a\n");
}

#[test]
fn help_lists_every_exit_code() {
    let store = Store::new();
    for arguments in [&["--help"][..], &["run", "--help"], &["hold", "--help"], &["run", "-h"]] {
        let help = store.run(arguments).ok();
        for code in ["64", "69", "70", "75", "76", "77", "126", "127"] {
            let has = |line: &str| line.split_whitespace().next() == Some(code);
            assert!(help.lines().any(has), "{arguments:?} does not list {code}");
        }
    }
    assert!(store.run(&["--version"]).ok().starts_with("tenure "));
}

#[test]
fn completions_and_the_manual_page_are_printed() {
    let store = Store::new();
    for (shell, has) in
        [("bash", "_tenure()"), ("zsh", "#compdef tenure"), ("fish", "complete -c tenure")]
    {
        let script = store.run(&["completions", shell]).ok();
        assert!(script.contains(has) && script.contains("max-hold"), "{shell}");
    }
    let page = store.run(&["man"]).ok();
    for part in
        [".TH", "TENURE RUN", "TENURE RELEASE", "max\\-hold", "EXIT STATUS", "127", "TENURE_DIR"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[tokio::test]
async fn environment_variables_set_defaults_for_ttl_grace_and_on_lost() {
    let store = Store::new();
    let with = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = store.tenure(arguments);
        Ran::from(command.envs(variables.iter().copied()).output().unwrap())
    };
    let show = [env!("CARGO_BIN_EXE_tenure"), "status", "--json", "a"];
    let run = [&["run", "a", "--"], &show[..]].concat();
    let left = |ran: Ran| {
        let status: serde_json::Value = serde_json::from_str(&ran.ok()).unwrap();
        status["holders"][0]["expires_in_ms"].as_u64().unwrap()
    };
    assert!(left(with(&[("TENURE_TTL", "2h")], &run)) > 3_600_000);
    let overruled = [&["run", "--ttl", "1h", "a", "--"], &show[..]].concat();
    assert!(left(with(&[("TENURE_TTL", "2h")], &overruled)) <= 3_600_000);
    for variable in ["TENURE_TTL", "TENURE_GRACE", "TENURE_ON_LOST"] {
        let printed = with(&[(variable, "often")], &["run", "a", "--", "true"]).failed(64);
        assert!(printed.contains("often"), "{printed}");
        let help = with(&[], &["run", "--help"]).ok();
        assert!(help.contains(&format!("[env: {variable}")), "{variable}: {help}");
    }
    // The command ignores SIGTERM, so only an immediate SIGKILL ends it in time.
    let stubborn =
        ["run", "--max-hold", "100ms", "a", "-c", "trap '' TERM; while :; do sleep 0.05; done"];
    let lost = with(&[("TENURE_ON_LOST", "kill"), ("TENURE_GRACE", "1h")], &stubborn);
    assert_eq!(lost.code, Some(76));
    assert!(lost.stderr.contains("killing the command"), "{lost:?}");
}

#[test]
fn an_explicit_ttl_above_the_limit_of_the_store_is_refused_and_the_default_is_shortened() {
    if lacks("redis-server", "a limit on TTLs") {
        return;
    }
    let servers = [(); 3].map(|()| RedisServer::start(&[]).unwrap());
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    let url = format!("redlock://{}?max-ttl=10s", hosts.join(","));
    let store = Store::new();
    let run = |variables: &[(&str, &str)], options: &[&str]| {
        let begin = ["--store", url.as_str(), "run"];
        let line = ["a", "-c", "echo \"$TENURE_HELD\""];
        let mut command = store.tenure(&[&begin, options, &line].concat());
        Ran::from(command.envs(variables.iter().copied()).output().unwrap())
    };
    let held = run(&[], &[]).ok();
    assert!(held.contains("\"ttl_ms\":10000,"), "the environment has the TTL in use: {held}");
    for refused in [run(&[], &["--ttl", "30s"]), run(&[("TENURE_TTL", "30s")], &[])] {
        let why = refused.failed(64);
        assert!(why.contains("30s is above 10s"), "{why}");
    }
    let help = store.run(&["run", "--help"]).ok();
    assert!(
        help.contains("[default: 30s, or the maximum of the store if that is shorter]"),
        "{help}"
    );
}
