//! `kill -9` of `tenure run` on stores that do not detect the death of a process: the guardian
//! releases the lock as soon as the command is dead.

use tenure_testkit::{EtcdServer, Process, RedisServer, ZooKeeperServer, lacks};

use crate::common::{Store, children, code, is_guardian, line};

/// Longer than the test waits, and within the session limit of ZooKeeper.
const TTL: &str = "35s";

fn start(store: &Store, url: &str, arguments: &[&str]) -> Process {
    let mut command = store.tenure(arguments);
    command.env("TENURE_STORE", url).env("TENURE_PASSWORD", "secret");
    Process::spawn(command).unwrap()
}

async fn killing_run_frees_the_lock(url: &str) {
    let store = Store::new();
    let shell_line = "sleep 100 & echo $$ $!; wait";
    let mut run = start(&store, url, &["run", "--ttl", TTL, "a", "-c", shell_line]);
    let pids = line(&mut run).await;
    let pids: Vec<_> = pids.split(' ').collect();
    // A zombie counts as dead.
    let check = format!("cat /proc/{}/stat /proc/{}/stat 2>&- | grep -v ') Z'", pids[0], pids[1]);
    let next = ["run", "a", "-c", &format!("{check} || echo dead")];
    let mut next = start(&store, url, &next);
    run.kill9().unwrap();
    assert_eq!(line(&mut next).await, "dead", "{url}");
    assert_eq!(code(&mut next).await, Some(0));
}

#[tokio::test]
async fn killing_run_frees_the_lock_on_redis() {
    if lacks("redis-server", "a killed run on Redis") {
        return;
    }
    let server = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    killing_run_frees_the_lock(&format!("redis://127.0.0.1:{}", server.port())).await;
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    killing_run_frees_the_lock(&url).await;
}

#[tokio::test]
async fn killing_run_frees_the_lock_on_a_quorum() {
    if lacks("redis-server", "a killed run on Redlock") {
        return;
    }
    let servers = [(); 3].map(|()| RedisServer::start(&["--requirepass", "secret"]).unwrap());
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    killing_run_frees_the_lock(&format!("redlock://{}", hosts.join(","))).await;
}

#[tokio::test]
async fn killing_run_frees_the_lock_on_etcd() {
    if lacks("etcd", "a killed run on etcd") {
        return;
    }
    let server = EtcdServer::start(&[]).unwrap();
    killing_run_frees_the_lock(&format!("etcd://127.0.0.1:{}", server.port())).await;
}

#[tokio::test]
async fn killing_run_frees_the_lock_on_zookeeper() {
    if ZooKeeperServer::is_missing("a killed run on ZooKeeper") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    killing_run_frees_the_lock(&format!("zk://127.0.0.1:{}", server.port())).await;
}

#[tokio::test]
async fn the_guardian_shows_no_password_in_its_arguments_and_environment() {
    if lacks("redis-server", "secrets of a guardian") {
        return;
    }
    let server = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    let store = Store::new();
    let mut run = start(&store, &url, &["run", "a", "-c", "echo ready; read word"]);
    assert_eq!(line(&mut run).await, "ready");
    for pid in children(&run).into_iter().filter(is_guardian) {
        for file in ["cmdline", "environ"] {
            let seen = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let seen = String::from_utf8_lossy(&seen).into_owned();
            assert!(!seen.contains("secret"), "{pid} {file} {seen}");
        }
    }
}
