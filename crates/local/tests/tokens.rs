//! Fencing tokens on a slow or full disk: it delays only claims that need a token when none is left.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::path::Path;

use common::*;
use tenure_core::store::{Released, Store, WaitPolicy};
use tenure_core::{ErrorKind, Result, Token};
use tenure_local::{LocalStore, Setup};
use tenure_testkit::{FakeSync, GENEROUS, eventually};

/// Tokens reserved at a time, small enough to be used up in a test.
const BLOCK: u64 = 64;

fn open(dir: &Path) -> LocalStore {
    let setup = Setup { token_block: Some(BLOCK), ..Setup::default() };
    LocalStore::open_with(dir, setup).unwrap()
}

/// Not a test of its own: a process on a disk of the test's choice.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    runtime().block_on(async {
        let store = open(&dir);
        say("open");
        match role.as_str() {
            "use tokens" => use_tokens(&store).await,
            "run out of tokens" => run_out_of_tokens(&store).await,
            other => panic!("no such role: {other}"),
        }
    });
}

async fn use_tokens(store: &LocalStore) {
    while listen() {
        // Reaches the mark below which more are reserved, and leaves some.
        for _ in 0..BLOCK * 3 / 4 {
            take_one(store).await.unwrap();
        }
        say("used");
    }
}

async fn run_out_of_tokens(store: &LocalStore) {
    let (holder, next) = (exclusive("held"), exclusive("held"));
    grant(store.claim(&holder, WaitPolicy::NoWait).await.unwrap());
    place(store.claim(&next, QUEUE).await.unwrap());
    say("queued");
    listen();
    let (last, error) = use_up(store).await;
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("make room"), "{error}");
    assert_eq!(store.renew(&holder).await.unwrap(), tenure_core::store::Renewal::Renewed);
    assert_eq!(store.release(&holder).await.unwrap(), Released::Released);
    let error = store.claim(&next, QUEUE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    say("released");
    listen();
    assert!(grant(store.claim(&next, QUEUE).await.unwrap()).token.unwrap() > last);
    assert_eq!(store.release(&next).await.unwrap(), Released::Released);
    assert_eq!(store.check().unwrap().locks, 0);
    say("in order");
}

async fn take_one(store: &LocalStore) -> Result<Token> {
    // Each process has a lock of its own: two that meet on one would find it busy.
    let claim = exclusive(&format!("free-{}", std::process::id()));
    let answer = store.claim(&claim, WaitPolicy::NoWait).await?;
    assert_eq!(store.release(&claim).await.unwrap(), Released::Released);
    Ok(token(answer))
}

/// Takes tokens until there are none: the last one, and the error.
async fn use_up(store: &LocalStore) -> (Token, tenure_core::Error) {
    let mut last = take_one(store).await.unwrap();
    for _ in 0..10 * BLOCK {
        match take_one(store).await {
            Ok(next) => {
                assert!(next > last);
                last = next;
            }
            Err(error) => return (last, error),
        }
    }
    panic!("tokens are never used up");
}

/// `None`, and it is said, where there is no C compiler.
fn fake_disk() -> Option<FakeSync> {
    let disk = FakeSync::of("tokens");
    if let Err(error) = &disk {
        let _ = writeln!(std::io::stdout(), "skipped: no C compiler ({error})");
    }
    disk.ok()
}

#[tokio::test]
async fn a_sync_that_hangs_in_one_process_delays_no_other_claim() {
    let Some(disk) = fake_disk() else { return };
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut slow = Peer::start_with("use tokens", dir.path(), disk.environment());
    assert_eq!(slow.hear(), "open");
    disk.hold().unwrap();
    slow.tell("go on");
    assert!(eventually(GENEROUS, || async { disk.held().unwrap() == 1 }).await);
    let mut last = take_one(&store).await.unwrap();
    // Nor in the way of its own process.
    assert_eq!(slow.hear(), "used");
    let (used, error) = use_up(&store).await;
    assert!(used > last);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.is_transient() && error.to_string().contains("tokens"), "{error}");
    assert_eq!(disk.held().unwrap(), 1, "one process at a time reserves tokens");
    last = used;
    disk.recover().unwrap();
    for _ in 0..4 * BLOCK {
        let next = take_one(&store).await.unwrap();
        assert!(next > last);
        last = next;
    }
    store.check().unwrap();
}

#[test]
fn a_release_succeeds_on_a_full_disk_when_tokens_are_used_up() {
    let Some(disk) = fake_disk() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut child = Peer::start_with("run out of tokens", dir.path(), disk.environment());
    assert_eq!(child.hear(), "open");
    assert_eq!(child.hear(), "queued");
    disk.fail().unwrap();
    child.tell("go on");
    assert_eq!(child.hear(), "released");
    disk.recover().unwrap();
    child.tell("go on");
    assert_eq!(child.hear(), "in order");
}
