//! What a program that uses the store need not fear for its own signals and descriptors.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::*;
use tenure_core::{Patience, Store};
use tenure_local::LocalStore;
use tenure_testkit::{GENEROUS, eventually};

/// Not a test of its own: what the processes started by the tests below do.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    runtime().block_on(async {
        let store = LocalStore::open(&dir).unwrap();
        match role.as_str() {
            "leave" => leave(&store).await,
            "queue" => {
                queue(&store).await;
                listen();
            }
            other => panic!("no such role: {other}"),
        }
    });
}

async fn queue(store: &LocalStore) -> [tenure_core::Claim; 2] {
    let claims = [exclusive("x"), exclusive("y")];
    for claim in &claims {
        place(store.claim(claim, QUEUE).await.unwrap());
    }
    say("queued");
    claims
}

/// Leaves two lines, one after the other, as a program that dies of a write to a closed pipe.
async fn leave(store: &LocalStore) {
    restore_sigpipe();
    for claim in queue(store).await {
        listen();
        store.release(&claim).await.unwrap();
        say("left");
    }
    listen();
}

#[allow(unsafe_code)]
fn restore_sigpipe() {
    // SAFETY: sets a signal to its default action; no handler is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

#[tokio::test]
async fn a_wake_up_for_a_process_that_died_does_not_kill_its_sender() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    for lock in ["x", "y"] {
        grant(store.claim(&exclusive(lock), Patience::None).await.unwrap());
    }
    let mut sender = Peer::start("leave", dir.path());
    assert_eq!(sender.hear(), "queued");
    let mut behind = Peer::start("queue", dir.path());
    assert_eq!(behind.hear(), "queued");
    // Leaving a line wakes the next in it.
    sender.tell("leave x");
    assert_eq!(sender.hear(), "left");
    behind.kill();
    sender.tell("leave y");
    assert_eq!(sender.hear(), "left");
}

/// Descriptors of this process that lead to something with this in its name.
fn open_files(what: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().contains(what)).count()
}

fn stores(dir: &Path) -> Vec<LocalStore> {
    (0..80).map(|_| LocalStore::open(dir).unwrap()).collect()
}

#[tokio::test]
async fn wake_ups_for_many_processes_keep_no_descriptor_open() {
    let dir = tempfile::tempdir().unwrap();
    let fifos = format!("{}/wake/", dir.path().display());
    let (store, others) = (LocalStore::open(dir.path()).unwrap(), stores(dir.path()));
    let before = open_files(&fifos);
    for (n, other) in others.iter().enumerate() {
        let (ours, theirs) = (exclusive(&n.to_string()), exclusive(&n.to_string()));
        grant(store.claim(&ours, Patience::None).await.unwrap());
        place(other.claim(&theirs, QUEUE).await.unwrap());
        store.release(&ours).await.unwrap();
        acquire(other, &theirs).await;
    }
    assert_eq!(open_files(&fifos), before);
}

#[tokio::test]
async fn the_processes_watched_at_a_time_are_limited_and_let_go_afterwards() {
    const MOST: usize = 64;
    const IDLE: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let (store, others) = (LocalStore::open(dir.path()).unwrap(), stores(dir.path()));
    let mut waiting = Vec::new();
    for (n, other) in others.iter().enumerate() {
        let (ours, theirs) = (exclusive(&n.to_string()), exclusive(&n.to_string()));
        grant(other.claim(&theirs, Patience::None).await.unwrap());
        let store = store.clone();
        waiting.push(tokio::spawn(async move { acquire(&store, &ours).await }));
    }
    let seen = || async { open_files("[pidfd]") };
    assert!(eventually(GENEROUS, || async { store.check().unwrap().waiters == 80 }).await);
    assert!(eventually(GENEROUS, || async { seen().await == MOST }).await, "{}", seen().await);
    waiting.into_iter().for_each(|task| task.abort());
    let let_go = eventually(GENEROUS, || async { seen().await <= IDLE }).await;
    assert!(let_go, "{}", seen().await);
}
