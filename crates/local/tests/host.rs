//! The store does not disturb the signals and descriptors of the program that uses it.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use tenure_core::ErrorKind;
use tenure_core::store::{ClaimOutcome, Store, WaitPolicy};
use tenure_local::LocalStore;
use tenure_testkit::{GENEROUS, eventually};

/// Not a test of its own: what the processes started by the tests below do.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    let (before, role) = role.split_once(": ").unwrap_or(("", &role));
    match before {
        "handles SIGBUS" => {
            let handler = ends_with_77 as extern "C" fn(libc::c_int);
            on_sigbus(handler as libc::sighandler_t);
        }
        "dies of SIGBUS" => on_sigbus(libc::SIG_DFL),
        _ => {}
    }
    runtime().block_on(async {
        let store = LocalStore::open(&dir).unwrap();
        match role {
            "leave" => leave(&store).await,
            "wait" => wait(&store).await,
            "idle" => {
                say("idle");
                listen();
            }
            "go on" => go_on(&store).await,
            "churn" => churn(&store).await,
            "fault" => fault(&dir),
            other => panic!("no such role: {other}"),
        }
    });
}

/// Uses a table that was truncated, and says how that went.
async fn go_on(store: &LocalStore) {
    let held = exclusive("a");
    grant(store.claim(&held, WaitPolicy::NoWait).await.unwrap());
    say("held");
    listen();
    let kind = |result: tenure_core::Result<()>| result.map_err(|error| error.kind());
    let outcomes = [
        kind(store.claim(&exclusive("a"), WaitPolicy::NoWait).await.map(drop)),
        kind(store.claim(&exclusive("b"), QUEUE).await.map(drop)),
        kind(store.renew(&held).await.map(drop)),
        kind(store.inspect(&name("a")).await.map(drop)),
        kind(store.list("").await.map(drop)),
        kind(store.release(&held).await.map(drop)),
    ];
    say(&format!("{outcomes:?}"));
    listen();
}

/// Changes many pages of the table each time it is told to.
async fn churn(store: &LocalStore) {
    say("ready");
    while listen() {
        let claims: Vec<_> = (0..200).map(|n| exclusive(&format!("many/{n}"))).collect();
        for claim in &claims {
            grant(store.claim(claim, WaitPolicy::NoWait).await.unwrap());
        }
        for claim in &claims {
            store.release(claim).await.unwrap();
        }
        say("churned");
    }
}

/// Reads from a mapping of the program's own, whose file was truncated.
#[allow(unsafe_code)]
fn fault(dir: &Path) {
    let path = dir.join("of the host");
    std::fs::write(&path, [1; 8192]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), 8192, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    say("faulting");
    // SAFETY: the byte is inside the mapping; that it is gone is what the test is about.
    let byte = unsafe { base.cast::<u8>().add(5000).read_volatile() };
    say(&format!("read {byte}"));
}

/// The host's own handler of SIGBUS: ends the process with a code of its own.
#[allow(unsafe_code)]
extern "C" fn ends_with_77(_signal: libc::c_int) {
    // SAFETY: may be called in a signal handler.
    unsafe { libc::_exit(77) };
}

#[allow(unsafe_code)]
fn on_sigbus(action: libc::sighandler_t) {
    // SAFETY: the action is the default one, or a handler that does nothing but end the process.
    unsafe { libc::signal(libc::SIGBUS, action) };
}

/// Where the table's records begin.
const RECORDS: u64 = 8 * 25_600;

/// Other processes never get the lock that is held: neither one that comes after the table was
/// truncated, nor one that had it open already.
fn others_find(idle: &LocalStore, length: u64) {
    let claim = |store: &LocalStore| {
        runtime()
            .block_on(store.claim(&exclusive("a"), WaitPolicy::NoWait))
            .map_err(|error| error.kind())
    };
    let late = LocalStore::open(idle.dir()).map_err(|error| error.kind());
    assert_eq!(late.and_then(|late| claim(&late)), Err(ErrorKind::Damaged), "{length}");
    // Processes that had the table open still share the remaining records.
    let left = if length > RECORDS { Ok(ClaimOutcome::Busy) } else { Err(ErrorKind::Damaged) };
    assert_eq!(claim(idle), left, "{length}");
}

#[test]
fn a_truncated_table_is_an_error_and_not_a_signal() {
    // Nothing left; the header alone; up to the middle of the buckets; the records but not all.
    for length in [0, 128, 8 * 12_000, RECORDS, RECORDS + 8192] {
        let dir = tempfile::tempdir().unwrap();
        let mut holder = Peer::start("go on", dir.path());
        assert_eq!(holder.hear(), "held");
        let idle = LocalStore::open(dir.path()).unwrap();
        let table = std::fs::File::options().write(true).open(dir.path().join("table")).unwrap();
        table.set_len(length).unwrap();
        others_find(&idle, length);
        holder.tell("go on");
        let said = holder.hear();
        if length <= RECORDS {
            assert_eq!(said, format!("{:?}", [Err::<(), _>(ErrorKind::Damaged); 6]), "{length}");
            others_find(&idle, length);
        }
        drop(idle);
        assert_eq!(table.metadata().unwrap().len(), length, "the table is not written any more");
    }
}

/// A btrfs of its own, for as long as it lives.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: &Path) -> Option<Self> {
        let done = |command: &mut Command| {
            command.output().is_ok_and(|output| output.status.success()).then_some(())
        };
        std::fs::File::create(image).unwrap().set_len(200 << 20).unwrap();
        done(Command::new("mkfs.btrfs").arg("-q").arg(image))?;
        done(Command::new("mount").args(["-o", "loop"]).args([image, at]))?;
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Leaves no room for data.
fn fill(dir: &Path) {
    let mut length = 64 << 20;
    for n in 0..10_000 {
        let file = std::fs::File::create(dir.join(format!("fill{n}"))).unwrap();
        if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length).is_err() {
            length /= 2;
            if length < 64 << 10 {
                return;
            }
        }
    }
    panic!("the disk is never full");
}

/// btrfs writes a changed page to a new block, for which there may be no room, unless copying is off for
/// the file.
#[test]
fn a_table_on_a_full_btrfs_stays_usable() {
    let above = tempfile::tempdir().unwrap();
    let mounted = above.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let Some(_mount) = Mount::new(&above.path().join("image"), &mounted) else {
        let _ = writeln!(std::io::stdout(), "skipped: a full btrfs: none can be mounted here");
        return;
    };
    let mut user = Peer::start("churn", &mounted.join("locks"));
    assert_eq!(user.hear(), "ready");
    user.tell("churn");
    assert_eq!(user.hear(), "churned");
    fill(&mounted);
    for _ in 0..3 {
        // Written back, a page must be made writable again.
        rustix::fs::syncfs(std::fs::File::open(&mounted).unwrap()).unwrap();
        user.tell("churn");
        assert_eq!(user.hear(), "churned");
    }
}

#[test]
fn a_sigbus_in_the_hosts_own_memory_still_ends_it() {
    for role in ["fault", "dies of SIGBUS: fault"] {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Peer::start(role, dir.path());
        assert_eq!(host.hear(), "faulting");
        assert_eq!(host.ended().signal(), Some(libc::SIGBUS));
    }
}

#[test]
fn the_hosts_own_sigbus_handler_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Peer::start("handles SIGBUS: fault", dir.path());
    assert_eq!(host.hear(), "faulting");
    assert_eq!(host.ended().code(), Some(77));
}

#[test]
fn a_sigbus_from_another_process_still_ends_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Peer::start("dies of SIGBUS: idle", dir.path());
    assert_eq!(host.hear(), "idle");
    host.signal(rustix::process::Signal::BUS);
    assert_eq!(host.ended().signal(), Some(libc::SIGBUS));
}

/// Waits for two locks, and so has its FIFO open for reading.
async fn wait(store: &LocalStore) {
    for lock in ["x", "y"] {
        let store = store.clone();
        tokio::spawn(async move { acquire(&store, &exclusive(lock)).await });
    }
    let fifos = format!("{}/wake/", store.dir().display());
    let waits = || async { store.check().unwrap().waiters == 4 && open_files(&fifos) > 0 };
    assert!(eventually(GENEROUS, waits).await);
    say("waiting");
    listen();
}

/// Leaves two queues, one after the other, in a program that a write to a closed pipe would kill.
async fn leave(store: &LocalStore) {
    restore_sigpipe();
    let claims = [exclusive("x"), exclusive("y")];
    for claim in &claims {
        place(store.claim(claim, QUEUE).await.unwrap());
    }
    say("queued");
    for claim in claims {
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
        grant(store.claim(&exclusive(lock), WaitPolicy::NoWait).await.unwrap());
    }
    let mut sender = Peer::start("leave", dir.path());
    assert_eq!(sender.hear(), "queued");
    let mut behind = Peer::start("wait", dir.path());
    assert_eq!(behind.hear(), "waiting");
    // Leaving a queue wakes its next waiter; the sender keeps the FIFO open for the next time.
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
async fn wake_ups_for_many_processes_keep_few_descriptors_open() {
    const MOST: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let fifos = format!("{}/wake/", dir.path().display());
    let (store, others) = (LocalStore::open(dir.path()).unwrap(), stores(dir.path()));
    let before = open_files(&fifos);
    for (n, other) in others.iter().enumerate() {
        let (ours, theirs) = (exclusive(&n.to_string()), exclusive(&n.to_string()));
        grant(store.claim(&ours, WaitPolicy::NoWait).await.unwrap());
        place(other.claim(&theirs, QUEUE).await.unwrap());
        store.release(&ours).await.unwrap();
        acquire(other, &theirs).await;
    }
    assert_eq!(open_files(&fifos), before + MOST);
}

#[tokio::test]
async fn the_number_of_watched_processes_is_bounded_and_watches_end() {
    const MOST: usize = 64;
    const IDLE: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let (store, others) = (LocalStore::open(dir.path()).unwrap(), stores(dir.path()));
    let mut waiting = Vec::new();
    for (n, other) in others.iter().enumerate() {
        let (ours, theirs) = (exclusive(&n.to_string()), exclusive(&n.to_string()));
        grant(other.claim(&theirs, WaitPolicy::NoWait).await.unwrap());
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
