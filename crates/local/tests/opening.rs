//! Opening a directory that others use, or that an earlier boot or another version has left.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tenure_core::store::{ClaimOutcome, Clock, Store, WaitPolicy};
use tenure_core::{Client, ErrorKind, Options};
use tenure_local::{LocalStore, Setup};
use tenure_testkit::{GENEROUS, eventually};

fn boot(id: u8) -> Setup {
    Setup { boot_id: Some([id; 16]), ..Setup::default() }
}

/// Not a test of its own: what the processes started by the tests below do.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    if role == "renew" {
        return runtime().block_on(renew(&dir));
    }
    let setup = role.strip_prefix("boot ").map_or(Setup::default(), |id| boot(id.parse().unwrap()));
    runtime().block_on(async {
        let store = match LocalStore::open_with(&dir, setup) {
            Ok(store) => store,
            Err(error) => return say(&format!("refused {:?} {error}", error.kind())),
        };
        match store.claim(&exclusive("a"), WaitPolicy::NoWait).await.unwrap() {
            ClaimOutcome::Granted(grant) => say(&format!("held {}", grant.token.unwrap())),
            _ => say("busy"),
        }
        listen();
    });
}

fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "skipped: {why}");
}

fn token_of(said: &str) -> u64 {
    said.strip_prefix("held ").unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

#[tokio::test]
async fn a_table_that_a_process_uses_is_never_replaced_whatever_the_boot_id_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = Peer::start("boot 1", dir.path());
    token_of(&holder.hear());
    let before = std::fs::read(dir.path().join("table")).unwrap();

    let error = LocalStore::open_with(dir.path(), boot(2)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let message = error.to_string();
    let table = dir.path().join("table");
    for part in [table.to_str().unwrap(), "boot id", &holder.pid().to_string(), "use another"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(before, std::fs::read(table).unwrap(), "the table was changed");

    // An idle member counts as well as a holder, also one of this process.
    let idle = LocalStore::open_with(dir.path(), boot(1)).unwrap();
    holder.kill();
    LocalStore::open_with(dir.path(), boot(2)).map(drop).unwrap_err();
    drop(idle);
    let store = LocalStore::open_with(dir.path(), boot(2)).unwrap();
    assert!(store.list("").await.unwrap().is_empty());
}

/// As LXC, Incus and systemd-nspawn do it: another file is mounted over the kernel's boot id.
#[test]
fn a_container_with_a_boot_id_of_its_own_cannot_replace_a_table_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = Peer::start("hold", dir.path());
    token_of(&holder.hear());
    let id = dir.path().join("another_boot_id");
    std::fs::write(&id, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let mount = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$@\" || echo says no mount",
        id.display()
    );
    let probe = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let works = std::process::Command::new(probe[0]).args(&probe[1..]).arg("true").output();
    if !works.is_ok_and(|output| output.status.success() && output.stdout.is_empty()) {
        return skipped("a container's boot id: no mount namespace to be had");
    }
    let said = Peer::start_under(&probe, "hold", dir.path()).hear();
    assert!(said.starts_with("refused Unsupported"), "{said}");
    assert!(said.contains("boot id"), "{said}");
    let said = Peer::start("hold", dir.path()).hear();
    assert_eq!(said, "busy");
}

#[test]
fn after_a_reboot_the_table_is_new_and_tokens_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for id in 1..5 {
        let mut holder = Peer::start(&format!("boot {id}"), dir.path());
        let token = token_of(&holder.hear());
        assert!(last < token);
        last = token;
        // As in a power cut, nothing is given up.
        holder.kill();
    }
}

#[test]
fn of_many_processes_that_open_a_table_at_once_after_a_reboot_one_gets_the_lock() {
    for id in 2..5 {
        let dir = tempfile::tempdir().unwrap();
        let mut before = Peer::start("boot 1", dir.path());
        token_of(&before.hear());
        before.kill();
        let role = format!("boot {id}");
        let mut peers: Vec<_> = (0..8).map(|_| Peer::start(&role, dir.path())).collect();
        let mut said: Vec<_> = peers.iter_mut().map(Peer::hear).collect();
        said.sort();
        assert_eq!(said[..7], ["busy"; 7], "{said:?}");
        token_of(&said[7]);
    }
}

/// Turns the table into one of a later version, of which only magic, version and boot id are known.
fn change_version(dir: &Path) {
    let file = std::fs::File::options().write(true).open(dir.join("table")).unwrap();
    file.write_all_at(&99_u64.to_ne_bytes(), 8).unwrap();
    for other in [2, 5, 6, 7, 8, 15] {
        file.write_all_at(&[0xa5; 8], other * 8).unwrap();
    }
}

#[tokio::test]
async fn a_table_of_another_version_is_replaced_as_soon_as_no_process_uses_it() {
    for next in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut holder = Peer::start("boot 1", dir.path());
        let first = token_of(&holder.hear());
        change_version(dir.path());
        let error = LocalStore::open_with(dir.path(), boot(next)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("format 99"), "{error}");
        assert!(error.to_string().contains("same version"), "{error}");
        holder.kill();
        let store = LocalStore::open_with(dir.path(), boot(next)).unwrap();
        let second = token(store.claim(&exclusive("a"), WaitPolicy::NoWait).await.unwrap());
        assert!(first < second.get(), "tokens go on");
    }
}

#[test]
fn processes_that_read_another_clock_cannot_share_a_table() {
    for offset in [["--boottime", "86400"], ["--monotonic", "-1"]] {
        let namespace = ["unshare", "--time", offset[0], offset[1]];
        let mut works = std::process::Command::new(namespace[0]);
        works.args(&namespace[1..]).arg("true");
        if !works.status().is_ok_and(|status| status.success()) {
            return skipped("another clock: no time namespace to be had");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut holder = Peer::start("hold", dir.path());
        let first = token_of(&holder.hear());
        let said = Peer::start_under(&namespace, "hold", dir.path()).hear();
        assert!(said.starts_with("refused Unsupported"), "{offset:?}: {said}");
        assert!(said.contains("time namespace"), "{said}");
        // Once alone, it takes the table over, and keeps others out in turn.
        holder.kill();
        let mut inside = Peer::start_under(&namespace, "hold", dir.path());
        assert!(first < token_of(&inside.hear()));
        let beside = Peer::start_under(&namespace, "hold", dir.path()).hear();
        assert_eq!(beside, "busy", "another namespace with the same offsets is no obstacle");
        let said = Peer::start("hold", dir.path()).hear();
        assert!(said.starts_with("refused Unsupported"), "{offset:?}: {said}");
    }
}

/// Holds a lock until it was renewed, and says whether its moments make sense.
async fn renew(dir: &Path) {
    let store = LocalStore::open(dir).unwrap();
    let raw = exclusive("raw");
    let before = Clock::Monotonic.now();
    let since = grant(store.claim(&raw, WaitPolicy::NoWait).await.unwrap()).since.unwrap();
    let by_clock = since >= before && since <= Clock::Monotonic.now();
    let client = Client::new(Arc::new(store.clone())).unwrap();
    let ttl = Duration::from_secs(6);
    let mutex = client.mutex("kept").unwrap().with(Options::new().ttl(ttl));
    let guard = mutex.acquire().await.unwrap();
    let first_deadline = Clock::Monotonic.now() + guard.remaining();
    let renewed = || async {
        let margin = Duration::from_millis(1);
        Clock::Monotonic.now() + guard.remaining() > first_deadline + margin
    };
    let renewed = eventually(GENEROUS, renewed).await && guard.remaining() <= ttl;
    say(&format!("{by_clock} {renewed} {:?}", guard.release().await));
}

/// In a time namespace the two clocks can be set apart, as a suspend would: terms are judged by the
/// one that stands still with the machine, in the table and in the client.
#[test]
fn terms_stand_still_while_the_machine_sleeps() {
    let namespace = ["unshare", "--time", "--boottime", "86400"];
    let mut works = std::process::Command::new(namespace[0]);
    works.args(&namespace[1..]).arg("true");
    if !works.status().is_ok_and(|status| status.success()) {
        return skipped("terms in a suspend: no time namespace to be had");
    }
    let dir = tempfile::tempdir().unwrap();
    let said = Peer::start_under(&namespace, "renew", dir.path()).hear();
    assert_eq!(said, "true true Ok(())");
}

#[tokio::test]
async fn a_symbolic_link_leads_to_the_same_locks() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    let store = LocalStore::open(&real).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let linked = LocalStore::open(&link).unwrap();
    let held = exclusive("a");
    token(store.claim(&held, WaitPolicy::NoWait).await.unwrap());
    assert_eq!(
        linked.claim(&exclusive("a"), WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Busy
    );
}
