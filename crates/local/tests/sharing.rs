//! Directories of other users, of a group, and on file systems that may reach another machine.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use tenure_core::store::{ClaimOutcome, Eviction, Store};
use tenure_core::{ErrorKind, Finding, Severity};
use tenure_local::{LocalOptions, LocalStore, Setup};

/// Not a test of its own: what the processes started by the tests below do. The role is a boot id
/// and, after it, the group to share with.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    let (boot, group) = role.split_once(' ').unwrap_or((&role, ""));
    let setup = Setup { boot_id: Some([boot.parse().unwrap(); 16]), ..Setup::default() };
    let mut options = LocalOptions::new().for_test(setup);
    if !group.is_empty() {
        options = options.group(group);
    }
    runtime().block_on(async {
        let store = match options.open(&dir) {
            Ok(store) => store,
            Err(error) => return say(&format!("refused {:?} {error}", error.kind())),
        };
        let claim = exclusive("a");
        if let ClaimOutcome::Queued(_) = store.claim(&claim, QUEUE).await.unwrap() {
            say("queued");
            acquire(&store, &claim).await;
        }
        say("held");
        while listen() {
            store.release(&claim).await.unwrap();
            say("released");
        }
    });
}

/// Another user in a group, with a umask that leaves nothing to others.
fn start_as(user: &str, group: &str, role: &str, dir: &Path) -> Peer {
    let as_user = ["setpriv", "--reuid", user, "--regid", user, "--groups", group];
    let closed = ["sh", "-c", "umask 077; exec \"$@\"", "sh"];
    Peer::start_under(&[&as_user[..], &closed[..]].concat(), role, dir)
}

fn mode_and_group(path: &Path) -> (u32, u32) {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    (metadata.mode() & 0o7777, metadata.gid())
}

fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "skipped: {why}");
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("directories of other users: needs root");
    }
    root
}

/// A directory that other users can reach, and the path of one in it that does not exist yet.
fn public() -> (tempfile::TempDir, PathBuf) {
    let above = tempfile::tempdir().unwrap();
    std::fs::set_permissions(above.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let dir = above.path().join("locks");
    (above, dir)
}

fn open_fails(dir: &Path, kind: ErrorKind, says: &[&str]) {
    let error = LocalStore::open(dir).map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_directory_or_file_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let names = ["", "table", "tokens", "members", "init", "wake", "wake/0", "audit.log"];
    for name in names {
        let (_above, dir) = public();
        drop(LocalStore::open(&dir).unwrap());
        std::fs::write(dir.join("audit.log"), "").unwrap();
        let path = if name.is_empty() { dir.clone() } else { dir.join(name) };
        chown(&path, Some(12345), None).unwrap();
        open_fails(&dir, ErrorKind::Denied, &["12345", "owner=any", path.to_str().unwrap()]);
        chown(&path, Some(0), None).unwrap();
        LocalStore::open(&dir).unwrap();
    }
}

#[tokio::test]
async fn an_audit_log_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let (_above, dir) = public();
    let store = LocalStore::open(&dir).unwrap();
    let held = exclusive("a");
    grant(store.claim(&held, QUEUE).await.unwrap());
    std::fs::write(dir.join("audit.log"), "").unwrap();
    chown(dir.join("audit.log"), Some(12345), None).unwrap();
    let eviction = Eviction::new(name("a"), held.owner, "a test");
    let error = store.evict(&eviction).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(store.check().unwrap().holders, 1);
}

#[tokio::test]
async fn another_users_directory_can_be_accepted_and_stays_usable_by_its_owner() {
    if !is_root() {
        return;
    }
    let (_above, dir) = public();
    std::fs::create_dir(&dir).unwrap();
    chown(&dir, Some(12345), Some(12345)).unwrap();
    open_fails(&dir, ErrorKind::Denied, &["12345"]);
    let setup = Setup { boot_id: Some([1; 16]), ..Setup::default() };
    let accepting = LocalOptions::new().any_owner(true).for_test(setup);
    let store = accepting.open(&dir).unwrap();
    let claim = exclusive("a");
    grant(store.claim(&claim, QUEUE).await.unwrap());
    let mut owner = start_as("12345", "12345", "1", &dir);
    assert_eq!(owner.hear(), "queued");
    store.release(&claim).await.unwrap();
    assert_eq!(owner.hear(), "held");
}

#[tokio::test]
async fn the_users_of_a_group_share_a_directory_and_hand_off_locks() {
    if !is_root() {
        return;
    }
    let (_above, dir) = public();
    let mut first = start_as("12345", "4242", "1 4242", &dir);
    assert_eq!(first.hear(), "held");
    assert_eq!(mode_and_group(&dir), (0o2770, 4242));
    assert_eq!(mode_and_group(&dir.join("wake")), (0o2770, 4242));
    let mut second = start_as("12346", "4242", "1 4242", &dir);
    assert_eq!(second.hear(), "queued");
    first.tell("release");
    assert_eq!(first.hear(), "released");
    assert_eq!(second.hear(), "held");
    for name in ["table", "tokens", "members", "init", "wake/0", "wake/1"] {
        assert_eq!(mode_and_group(&dir.join(name)), (0o660, 4242), "{name}");
    }
    // Back by a death, and on by a reboot that the other user is the first to see.
    let mut third = start_as("12345", "4242", "1 4242", &dir);
    assert_eq!(third.hear(), "queued");
    second.kill();
    assert_eq!(third.hear(), "held");
    third.kill();
    first.kill();
    let mut fourth = start_as("12346", "4242", "2 4242", &dir);
    assert_eq!(fourth.hear(), "held");
    assert_eq!(start_as("12345", "4242", "2 4242", &dir).hear(), "queued");
    let said = start_as("12347", "12347", "2 4242", &dir).hear();
    assert!(said.starts_with("refused Denied"), "outside the group: {said}");
    let said = start_as("12346", "4242", "2", &dir).hear();
    assert!(said.starts_with("refused Denied") && said.contains("group=NAME"), "{said}");
}

#[tokio::test]
async fn a_shared_directory_is_no_finding_and_its_log_can_be_written_by_all() {
    if !is_root() {
        return;
    }
    let (_above, dir) = public();
    let store = LocalOptions::new().group("4242").open(&dir).unwrap();
    let claim = exclusive("a");
    grant(store.claim(&claim, QUEUE).await.unwrap());
    store.evict(&Eviction::new(name("a"), claim.owner, "a test")).await.unwrap();
    assert_eq!(mode_and_group(&dir.join("audit.log")), (0o660, 4242));
    let findings = store.diagnose().await.unwrap();
    let is_unsafe = |finding: &&Finding| finding.severity == Severity::Unsafe;
    assert_eq!(findings.iter().find(is_unsafe), None);
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o2777)).unwrap();
    let findings = store.diagnose().await.unwrap();
    assert!(findings.iter().find(is_unsafe).unwrap().remedy.starts_with("chmod o-w"));
}

#[tokio::test]
async fn a_directory_that_is_not_shared_with_the_group_is_refused_until_it_is() {
    if !is_root() {
        return;
    }
    let (_above, dir) = public();
    drop(LocalStore::open(&dir).unwrap());
    let sharing = LocalOptions::new().group("4242");
    let error = sharing.open(&dir).map(drop).unwrap_err().to_string();
    let remedy = error.split_once("): ").unwrap().1;
    assert!(remedy.starts_with("chgrp -R 4242"), "{error}");
    assert!(Command::new("sh").args(["-c", remedy]).status().unwrap().success(), "{remedy}");
    sharing.open(&dir).unwrap();
    let mut user = start_as("12345", "4242", "1 4242", &dir);
    assert_eq!(user.hear(), "held");
}

/// A FUSE file system, for as long as it lives.
struct Mount {
    at: PathBuf,
    server: Child,
}

impl Mount {
    /// Shows one directory as another. `None` where that cannot be done.
    fn new(disk: &Path, at: &Path) -> Option<Self> {
        let mut command = Command::new("bindfs");
        let server = command.arg("-f").args([disk, at]).stderr(Stdio::null()).spawn().ok()?;
        let mut mount = Self { at: at.to_owned(), server };
        let shown = disk.join("shown");
        std::fs::write(&shown, "").unwrap();
        while !at.join("shown").exists() {
            if mount.server.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The store's task still has its FIFO open until the runtime ends.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[tokio::test]
async fn a_fuse_file_system_is_refused_unless_asked_for() {
    let above = tempfile::tempdir().unwrap();
    let (disk, mounted) = (above.path().join("disk"), above.path().join("mounted"));
    for dir in [&disk, &mounted] {
        std::fs::create_dir(dir).unwrap();
    }
    let Some(_mount) = Mount::new(&disk, &mounted) else {
        return skipped("a FUSE file system: bindfs cannot mount one");
    };
    let dir = mounted.join("locks");
    open_fails(&dir, ErrorKind::Unsupported, &["FUSE", "filesystem=any", dir.to_str().unwrap()]);
    let store = LocalOptions::new().any_file_system(true).open(&dir).unwrap();
    grant(store.claim(&exclusive("a"), QUEUE).await.unwrap());
    let findings = store.diagnose().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("FUSE")), "{findings:?}");
}
