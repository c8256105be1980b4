//! Passwords: how they reach the store and the command, and that they are never printed.

use tenure_testkit::{RedisServer, RedisStub, lacks};

use crate::common::{Ran, Store};

const PASSWORD: &str = "hunter2/@:%";
const ENCODED: &str = "hunter2%2F%40%3A%25";

fn server() -> RedisServer {
    RedisServer::start(&["--requirepass", PASSWORD]).unwrap()
}

/// Runs `tenure` with the store's URL in TENURE_STORE.
fn on(store: &Store, url: &str, arguments: &[&str]) -> Ran {
    store.tenure(arguments).env("TENURE_STORE", url).output().unwrap().into()
}

#[test]
fn the_command_inherits_the_password_of_the_store() {
    let test = "the_command_inherits_the_password_of_the_store";
    if lacks("redis-server", test) {
        return;
    }
    let (store, server) = (Store::new(), server());
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let nested = ["run", "a", "--", tenure, "run", "b", "--", tenure, "run", "c", "-c"];
    let nested = [&nested[..], &["echo $TENURE_LOCK"]].concat();
    for user in ["", "default"] {
        let url = format!("redis://{user}:{ENCODED}@127.0.0.1:{}", server.port());
        assert_eq!(on(&store, &url, &nested).ok(), "c\n", "user {user:?}");
    }
    let url = format!("redis://127.0.0.1:{}", server.port());
    let mut command = store.tenure(&nested);
    command.env("TENURE_STORE", &url).env("TENURE_PASSWORD", PASSWORD);
    assert_eq!(Ran::from(command.output().unwrap()).ok(), "c\n");
}

#[test]
fn the_command_inherits_the_password_of_a_quorum() {
    if lacks("redis-server", "the_command_inherits_the_password_of_a_quorum") {
        return;
    }
    let (store, servers) = (Store::new(), [server(), server(), server()]);
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port())).join(",");
    let url = format!("redlock://default:{ENCODED}@{hosts}?node-timeout=2s");
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let shown = on(&store, &url, &["run", "a", "--", tenure, "run", "b", "--", "env"]).ok();
    let stored = format!("TENURE_STORE=redlock://default@{hosts}?node-timeout=2s");
    assert!(shown.lines().any(|line| line == stored), "{shown}");
}

#[test]
fn a_command_without_the_password_fails_with_the_reason() {
    let test = "a_command_without_the_password_fails_with_the_reason";
    if lacks("redis-server", test) {
        return;
    }
    let (store, server) = (Store::new(), server());
    let url = format!("redis://:{ENCODED}@127.0.0.1:{}", server.port());
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let mut command =
        store.tenure(&["run", "--withhold-password", "a", "--", tenure, "run", "b", "--", "true"]);
    command.env("TENURE_STORE", &url).env("TENURE_PASSWORD", PASSWORD);
    let printed = Ran::from(command.output().unwrap()).failed(77);
    assert!(printed.contains("no password was given"), "{printed}");
    let env = on(&store, &url, &["run", "--withhold-password", "a", "--", "env"]).ok();
    assert!(!env.contains("hunter2"), "{env}");
}

#[test]
fn the_password_of_one_server_is_not_sent_to_another() {
    if lacks("redis-server", "the_password_of_one_server_is_not_sent_to_another") {
        return;
    }
    let (store, server, other) = (Store::new(), server(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://:{ENCODED}@127.0.0.1:{}", server.port());
    let elsewhere = format!("redis://127.0.0.1:{}", other.port());
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let nested = ["run", "a", "--", tenure, "--store", &elsewhere, "run", "b", "-c"];
    let nested = [&nested[..], &["echo ${TENURE_STORE_PASSWORD-none}"]].concat();
    // A server without a password refuses a login.
    assert_eq!(on(&store, &url, &nested).ok(), "none\n");
}

#[test]
fn the_store_url_in_the_environment_has_no_password() {
    if lacks("redis-server", "the_store_url_in_the_environment_has_no_password") {
        return;
    }
    let (store, server) = (Store::new(), server());
    let port = server.port();
    let url = format!("redis://:{ENCODED}@127.0.0.1:{port}/0?prefix=x&timeout=3s");
    let shown = on(&store, &url, &["run", "a", "-c", "echo $TENURE_STORE"]).ok();
    assert_eq!(shown, format!("redis://127.0.0.1:{port}/0?timeout=3s&prefix=x\n"));
}

#[test]
fn a_password_on_the_command_line_causes_a_warning_and_is_not_printed() {
    let store = Store::new();
    let url = "redis://app:hunter2@127.0.0.1:1?timeout=100ms";
    for arguments in [&["--store", url, "ls"][..], &["ls", "--store", url]] {
        let ran = store.run(arguments);
        let warning = ran.stderr.lines().next().unwrap();
        for part in ["visible", "TENURE_STORE", "TENURE_PASSWORD"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        assert_eq!(ran.stderr.lines().count(), 2, "{ran:?}");
        assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
    }
    store.run(&["-q", "--store", url, "ls"]).failed(69);
    on(&store, url, &["ls"]).failed(69);
    let bare = "redis://app:@127.0.0.1:1?timeout=100ms";
    store.run(&["--store", bare, "ls"]).failed(69);
}

#[test]
fn a_password_in_an_error_of_the_server_is_not_printed() {
    let store = Store::new();
    // Servers before 6.0 repeat the arguments of an unknown command.
    let stub = RedisStub::start(|words| {
        let arguments: String = words[1..].iter().map(|word| format!("`{word}`, ")).collect();
        let name = &words[0];
        Some(format!("-ERR unknown command `{name}`, with args beginning with: {arguments}\r\n"))
    });
    let stub = stub.unwrap();
    let host = format!("127.0.0.1:{}", stub.port());
    for url in [
        format!("redis://app:{ENCODED}@{host}?timeout=500ms"),
        format!("redis+sentinel://app:{ENCODED}@{host}/main?timeout=500ms"),
        format!("redis+cluster://app:{ENCODED}@{host}?timeout=500ms"),
        format!("redlock://app:{ENCODED}@{host},{host},{host}?timeout=500ms"),
    ] {
        for arguments in [
            &["ls", "-vvv"][..],
            &["doctor", "-vv"],
            &["status", "a", "--json", "-vv"],
            &["run", "-vv", "a", "-c", "true"],
        ] {
            let ran = on(&store, &url, arguments);
            assert_ne!(ran.code, Some(0), "{ran:?}");
            assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
        }
    }
    assert!(stub.received(&["AUTH", "app", PASSWORD]) > 0, "no login was attempted");
}
