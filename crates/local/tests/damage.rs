//! Files that are damaged, foreign, short or full are reported as errors; no operation panics.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::*;
use tenure_core::store::{ClaimOutcome, Store, WaitPolicy};
use tenure_core::{ErrorKind, Mode};
use tenure_local::{LocalStore, Setup};

const BOOT: Setup = Setup { boot_id: Some([7; 16]), max_records: None, token_block: None };

/// Not a test of its own: a process with a limit on the size of its files.
#[test]
fn child_entry() {
    let Some((_, dir)) = role() else {
        return;
    };
    let limit = rustix::process::Rlimit { current: Some(2 << 20), maximum: Some(2 << 20) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    runtime().block_on(async {
        let store = LocalStore::open(&dir).unwrap();
        say("open");
        listen();
        fill(&store).await;
    });
}

/// Fills the table, and checks that it still works.
async fn fill(store: &LocalStore) {
    let mut claims = Vec::new();
    let error = loop {
        assert!(claims.len() < 20_000, "the table is never full");
        let claim = claim(&format!("many/{}", claims.len()), Mode::Shared);
        match store.claim(&claim, WaitPolicy::NoWait).await {
            Ok(answer) => assert!(matches!(answer, ClaimOutcome::Granted(_))),
            Err(error) => break error,
        }
        claims.push(claim);
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(store.check().unwrap().holders, claims.len());
    store.release(&claims[0]).await.unwrap();
    grant(store.claim(&exclusive("b"), WaitPolicy::NoWait).await.unwrap());
    say(&format!("full {error}"));
}

#[tokio::test]
async fn a_full_table_is_an_error_and_a_release_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { max_records: Some(5_000), ..Setup::default() };
    fill(&LocalStore::open_with(dir.path(), setup).unwrap()).await;
}

#[test]
fn a_file_that_cannot_grow_is_an_error_and_not_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Peer::start("fill", dir.path());
    assert_eq!(child.hear(), "open");
    child.signal(rustix::process::Signal::CONT);
    child.tell("go on");
    let said = child.hear();
    assert!(said.starts_with("full "), "{said}");
    assert!(said.contains("make room"), "{said}");
}

/// A table with every kind of record in it, in use by a store, and the file's bytes.
async fn populated(dir: &Path) -> (LocalStore, Vec<u8>) {
    let store = LocalStore::open_with(dir, BOOT).unwrap();
    for lock in ["a", "b", "c"] {
        grant(store.claim(&exclusive(lock), QUEUE).await.unwrap());
        place(store.claim(&exclusive(lock), QUEUE).await.unwrap());
        place(store.claim(&claim(lock, Mode::Shared), QUEUE).await.unwrap());
    }
    let gone = exclusive("gone");
    grant(store.claim(&gone, QUEUE).await.unwrap());
    store.release(&gone).await.unwrap();
    let bytes = std::fs::read(dir.join("table")).unwrap();
    (store, bytes)
}

async fn open_fails(dir: &Path, kind: ErrorKind, says: &str) {
    let before = std::fs::read(dir.join("table")).unwrap();
    let error = LocalStore::open_with(dir, BOOT).map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    assert_eq!(before, std::fs::read(dir.join("table")).unwrap(), "the file was changed");
}

#[tokio::test]
async fn foreign_and_short_tables_are_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sound) = populated(dir.path()).await;
    drop(store);
    let table = dir.path().join("table");
    let write = |bytes: &[u8]| std::fs::write(&table, bytes).unwrap();

    write(b"");
    open_fails(dir.path(), ErrorKind::Damaged, "too short").await;
    write(&[b'x'; 4096]);
    open_fails(dir.path(), ErrorKind::Damaged, "not a tenure table").await;
    write(&sound[..4096]);
    open_fails(dir.path(), ErrorKind::Damaged, "shorter than its header says").await;
    let mut flipped = sound.clone();
    flipped[8 * 5] ^= 1;
    write(&flipped);
    open_fails(dir.path(), ErrorKind::Damaged, "header has a wrong checksum").await;
    write(&sound[..sound.len() - 4096]);
    let short = LocalStore::open_with(dir.path(), BOOT).map(drop).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Damaged, "{short}");
    assert!(short.to_string().contains("delete"), "{short}");
    write(&sound);
    LocalStore::open_with(dir.path(), BOOT).unwrap().check().unwrap();
}

#[tokio::test]
async fn a_replaced_members_file_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let members = dir.path().join("members");
    std::fs::rename(&members, dir.path().join("members.old")).unwrap();
    let error = LocalStore::open(dir.path()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    drop(store);
}

#[tokio::test]
async fn damaged_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(populated(dir.path()).await);
    std::fs::write(dir.path().join("tokens"), [3; 8192]).unwrap();
    let error = LocalStore::open_with(dir.path(), BOOT).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("tokens"), "{error}");
}

/// Whatever byte is flipped, every operation succeeds or fails, none panics or hangs, and no second claim is
/// granted.
#[tokio::test]
async fn flipped_bytes_cause_errors_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (_holder, sound) = populated(dir.path()).await;
    let file = std::fs::File::options().write(true).open(dir.path().join("table")).unwrap();
    let records = 8 * 25_600;
    let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut refused = 0;
    for round in 0..600 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (random >> 33) as usize;
        // Mostly where there is something: the head of the file, and the first records.
        let at = match round % 3 {
            0 => pick % 600,
            1 => records + 320 + pick % (320 * 12),
            _ => pick % sound.len(),
        };
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (random >> 60 & 7);
        file.write_all_at(&bytes, 0).unwrap();
        refused += usize::from(use_everything(dir.path()).await.is_err());
    }
    assert!(refused > 100, "flips go unnoticed: {refused}");
}

async fn use_everything(dir: &Path) -> tenure_core::Result<()> {
    let store = LocalStore::open_with(dir, BOOT)?;
    let claim = exclusive("b");
    let queued = store.claim(&claim, QUEUE).await;
    let mut result = queued.map(|answer| assert!(matches!(answer, ClaimOutcome::Queued(_))));
    let mut note = |outcome: tenure_core::Result<()>| {
        if outcome.is_err() {
            result = outcome;
        }
    };
    note(store.claim(&claim, QUEUE).await.map(drop));
    note(store.renew(&claim).await.map(drop));
    note(store.list("").await.map(drop));
    for lock in ["a", "b", "c"] {
        note(store.inspect(&name(lock)).await.map(drop));
        let beside = store.claim(&exclusive(lock), WaitPolicy::NoWait).await;
        note(beside.map(|answer| assert_eq!(answer, ClaimOutcome::Busy)));
    }
    note(store.claim(&exclusive("d"), WaitPolicy::NoWait).await.map(drop));
    note(store.release(&claim).await.map(drop));
    note(store.check().map(drop));
    result
}
