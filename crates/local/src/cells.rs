//! Values beside locks: one small file each, replaced by renaming.
//!
//! A cell `orders` is the file `cells/cell-orders` in the store's directory: a header (mark, version, when
//! it expires, checksum) and the value. Names may contain slashes, which file names may not: these become
//! the byte 1, which no name contains.
//!
//! - A swap locks one of a few lock files (`flock`), compares, writes a new file, syncs it and renames it
//!   over the old one. The lock ends with the process. Readers take no lock: they see the old file or
//!   the new one.
//! - The new file is synced before it is renamed, so that a power cut leaves one value or the other and
//!   never half of one. The directory is not synced: a power cut may bring back values of a few seconds
//!   before, as a server that saves its data every second does. Cells are for one machine; what must
//!   survive its power cuts belongs in a database.
//! - An expiry is kept on two clocks: the boot clock, which cannot be set, counts within one boot, and
//!   the wall clock after a reboot. Every so many swaps, files that have expired are deleted. The version
//!   is the swap's random id, so a cell that is created again has another version.
//! - A wait polls the file, every 2 to 100 ms.

use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tenure_core::store::{CellClock, CellKey, Cells, Expiry, Stored, Swap, Swapped, Version, now};
use tenure_core::{Error, ErrorKind, Result};

use crate::access::Access;
use crate::fault::{self, Fault};
use crate::files;
use crate::layout::{AT_BOOT, mix};
use crate::store::LocalStore;

/// The longest value.
const MAX_BYTES: usize = 1 << 20;
/// Swaps of cells with different locks do not wait for each other.
const LOCKS: u64 = 16;
/// How long to wait for a process that is in the middle of a swap: it is stopped, or starved.
const SWAP_TAKES: Duration = Duration::from_secs(2);
/// How long a wait for a change sleeps between two looks: it grows from the first to the second.
const POLL: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];
/// After this many swaps of one process, at most this many files are checked for their expiry: twice as many
/// as were created meanwhile, so the checks keep up.
const SWEEP_EVERY: u32 = 512;
const SWEEP_FILES: usize = 1_024;

const READ: &str = "read the cell";
const WRITE: &str = "write the cell";
const WAIT: &str = "wait for a change of the cell";

const MARK: u64 = u64::from_le_bytes(*b"tenurecl");
const WORDS: usize = 7;
const HEADER: usize = WORDS * 8;

#[async_trait]
impl Cells for LocalStore {
    fn max_value_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn clock(&self) -> CellClock {
        CellClock::Shared
    }

    async fn time(&self) -> Result<Duration> {
        Ok(wall_clock())
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        self.cell_file(key).read().map_err(|fault| self.cell_fault(READ, key, fault))
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        key.check_size(swap.value.len(), MAX_BYTES)?;
        let cell = self.cell_file(key);
        let failed = |fault| self.cell_fault(WRITE, key, fault);
        let _lock = self.lock_cell(&cell).await.map_err(failed)?;
        // No await from here on: a swap that is dropped has not begun, or is complete.
        cell.swap(self, swap).map_err(failed)
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let cell = self.cell_file(key);
        let look = || cell.read().map_err(|fault| self.cell_fault(WAIT, key, fault));
        let [mut pause, longest] = POLL;
        while look()?.map(|stored| stored.version) == seen {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        Ok(())
    }
}

impl LocalStore {
    fn cell_file(&self, key: &CellKey) -> CellFile<'_> {
        let table = &self.inner.table;
        // All that share the table are on the same boot of the same clock.
        let boot = table.map.word(AT_BOOT).map_or(0, |word| word.load(Ordering::Relaxed));
        let name = key.name.as_str().replace('/', "\u{1}");
        let name = format!("{}-{name}", key.space.as_str());
        CellFile { access: &table.access, dir: self.dir().join("cells"), name, boot }
    }

    fn cell_fault(&self, operation: &'static str, key: &CellKey, fault: Fault) -> Error {
        fault.during(operation, self.dir()).about(&key.name)
    }

    /// Keeps other swaps of this cell out until the file is dropped, or the process ends.
    async fn lock_cell(&self, cell: &CellFile<'_>) -> fault::Result<File> {
        let access = &self.inner.table.access;
        files::make_shared_dir(self.dir(), "cells", access)?;
        let number = cell.name.bytes().fold(0, |sum: u64, byte| mix(sum, 0, u64::from(byte)));
        let name = format!("lock-{}", number % LOCKS);
        let file = files::open_or_create(&cell.dir, &name, access)?;
        let started = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::AGAIN | Errno::INTR) if started.elapsed() < SWAP_TAKES => {}
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "another process has been in the middle of a swap for more than \
                         {SWAP_TAKES:?}: it is stopped, or starved (fuser {})",
                        cell.dir.join(&name).display()
                    );
                    return Err(Fault::new(ErrorKind::Unreachable, why));
                }
                Err(error) => return Err(Fault::io("locking", &cell.dir.join(&name), error)),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The file of one cell.
struct CellFile<'a> {
    access: &'a Access,
    dir: PathBuf,
    name: String,
    /// What names this boot.
    boot: u64,
}

/// When a cell expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    /// The boot in which the boot clock counts.
    boot: u64,
    /// Nanoseconds on the boot clock; 0: never.
    boot_nanos: u64,
    /// Milliseconds since the Unix epoch.
    wall_millis: u64,
}

impl Ends {
    fn after(ttl: Duration, boot: u64) -> Self {
        let wall_millis = wall_clock().saturating_add(ttl).as_millis();
        let wall_millis = u64::try_from(wall_millis).unwrap_or(u64::MAX);
        Self { boot, boot_nanos: (now() + ttl).as_nanos(), wall_millis }
    }

    /// As the words of a header say.
    fn of(words: &[u64; WORDS]) -> Self {
        Self { boot: words[2], boot_nanos: words[3], wall_millis: words[4] }
    }

    fn has_come(self, boot: u64) -> bool {
        match self.boot_nanos {
            0 => false,
            nanos if self.boot == boot => now().as_nanos() >= nanos,
            _ => wall_clock().as_millis() >= u128::from(self.wall_millis),
        }
    }
}

struct Content {
    stored: Stored,
    ends: Ends,
}

impl CellFile<'_> {
    fn read(&self) -> fault::Result<Option<Stored>> {
        let live = self.content()?.filter(|content| !content.ends.has_come(self.boot));
        Ok(live.map(|content| content.stored))
    }

    fn swap(&self, store: &LocalStore, swap: &Swap) -> fault::Result<Swapped> {
        let present = self.content()?.filter(|content| !content.ends.has_come(self.boot));
        if present.as_ref().map(|content| content.stored.version) != swap.expected {
            return Ok(Swapped::Conflict(present.map(|content| content.stored)));
        }
        let ends = match swap.expiry {
            Expiry::Never => Ends::default(),
            Expiry::Keep => present.map(|content| content.ends).unwrap_or_default(),
            Expiry::After(ttl) => Ends::after(ttl, self.boot),
            _ => {
                let why = "this store does not know this kind of expiry: update it";
                return Err(Fault::new(ErrorKind::Unsupported, why));
            }
        };
        let version = swap.id.get();
        self.replace(&seal(version, ends, &swap.value))?;
        sweep_now_and_then(store, self);
        Ok(Swapped::Done(Version::new(version)))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn content(&self) -> fault::Result<Option<Content>> {
        let path = self.path();
        let Some(bytes) = read_whole(&path, self.access)? else { return Ok(None) };
        open(&bytes).map(Some).ok_or_else(|| {
            let why = format!("the file {} is damaged: delete it", path.display());
            Fault::new(ErrorKind::Damaged, why)
        })
    }

    /// Whether the header says so. It is not compared with the checksum, which needs the value.
    fn seems_expired(&self) -> bool {
        let Ok(Some(mut file)) = files::open(&self.path(), self.access) else { return false };
        let mut header = [0; HEADER];
        let is_read = file.read_exact(&mut header).is_ok();
        is_read && Ends::of(&words(&header)).has_come(self.boot)
    }

    /// The caller has the cell's lock, so the name of the new file is its own.
    fn replace(&self, bytes: &[u8]) -> fault::Result<()> {
        let draft = format!("new-{}", self.name);
        let path = self.dir.join(&draft);
        let written = files::draft(&self.dir, &draft).and_then(|mut file| {
            file.write_all(bytes)
                .and_then(|()| file.sync_data())
                .and_then(|()| std::fs::rename(&path, self.path()))
                .map_err(|error| Fault::io("writing", &path, error))
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        written
    }
}

/// A file is replaced while it is read, not changed: what was opened is complete.
fn read_whole(path: &Path, access: &Access) -> fault::Result<Option<Vec<u8>>> {
    let failed = |error| Fault::io("reading", path, error);
    let Some(file) = files::open(path, access)? else { return Ok(None) };
    let mut bytes = Vec::new();
    // A longer one is damaged, which its checksum tells.
    file.take((HEADER + MAX_BYTES + 1) as u64).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

fn seal(version: u64, ends: Ends, value: &[u8]) -> Vec<u8> {
    let Ends { boot, boot_nanos, wall_millis } = ends;
    let words = [MARK, version, boot, boot_nanos, wall_millis, value.len() as u64];
    let checksum = checksum(&words, value);
    let words = words.into_iter().chain([checksum]);
    words.flat_map(u64::to_le_bytes).chain(value.iter().copied()).collect()
}

fn open(bytes: &[u8]) -> Option<Content> {
    let (header, value) = bytes.split_first_chunk()?;
    let words = words(header);
    let sound = words[0] == MARK
        && words[5] == value.len() as u64
        && words[6] == checksum(&words[..WORDS - 1], value);
    let stored = Stored::new(value.to_vec(), Version::new(words[1]));
    sound.then(|| Content { stored, ends: Ends::of(&words) })
}

fn words(header: &[u8; HEADER]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn checksum(words: &[u64], value: &[u8]) -> u64 {
    let header = words.iter().enumerate().fold(0, |sum, (at, word)| sum ^ mix(1, at, *word));
    let mut sum = header;
    for (at, chunk) in value.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum ^= mix(2 + at as u64, at % 64, u64::from_le_bytes(word));
    }
    sum
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Now and then deletes files that have expired, a part of the directory each time.
fn sweep_now_and_then(store: &LocalStore, present: &CellFile<'_>) {
    static SWAPS: AtomicU32 = AtomicU32::new(0);
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if SWAPS.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
        let first = NEXT.load(Ordering::Relaxed);
        NEXT.store(sweep(store, present, first, SWEEP_FILES), Ordering::Relaxed);
    }
}

/// Checks this many files from the `first` one of the directory on, and deletes those that have expired, each
/// under its lock if that is free. What goes wrong is left for the next time. Returns where to go on.
fn sweep(store: &LocalStore, present: &CellFile<'_>, first: usize, files: usize) -> usize {
    let CellFile { access, dir, boot, .. } = present;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let (mut checked, mut deleted) = (0, 0);
    for entry in entries.flatten().skip(first).take(files) {
        checked += 1;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let cell = CellFile { access, dir: dir.clone(), name, boot: *boot };
        let is_cell = !cell.name.starts_with("lock-") && !cell.name.starts_with("new-");
        if !is_cell || cell.name == present.name || !cell.seems_expired() {
            continue;
        }
        // The lock of the present cell is held already; to open the lock file again would wait for it.
        let locked = futures_now(store.lock_cell(&cell));
        if let Some(Ok(_lock)) = locked
            && let Ok(Some(content)) = cell.content()
            && content.ends.has_come(*boot)
        {
            deleted += usize::from(std::fs::remove_file(cell.path()).is_ok());
        }
    }
    // The entries behind those that were deleted move up.
    if checked == files { first + checked - deleted } else { 0 }
}

/// What a future yields at its first poll, if it is ready by then.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::store::CellSpace;

    #[test]
    fn a_damaged_file_is_distinguished_from_a_sound_one() {
        let sound = seal(7, Ends::default(), b"some value");
        assert_eq!(
            open(&sound).unwrap().stored,
            Stored::new(b"some value".into(), Version::new(7))
        );
        for place in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[place] ^= 4;
            assert!(open(&damaged).is_none(), "byte {place}");
        }
        for length in 0..sound.len() {
            assert!(open(&sound[..length]).is_none(), "cut off at {length}");
        }
    }

    #[test]
    fn an_expiry_of_another_boot_counts_on_the_wall_clock() {
        let past = Ends { boot: 1, boot_nanos: 1, wall_millis: u64::MAX };
        assert!(past.has_come(1) && !past.has_come(2));
        let future = Ends { boot: 1, boot_nanos: u64::MAX, wall_millis: 1 };
        assert!(!future.has_come(1) && future.has_come(2));
        assert!(!Ends::default().has_come(1));
    }

    #[tokio::test]
    async fn a_process_that_is_stopped_in_a_swap_is_reported_and_a_dead_one_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        let key = CellKey::new(CellSpace::Cell, "a".parse().unwrap());
        let swap = |expected| Swap::new(expected, b"x".to_vec(), Expiry::Never);
        let lock = store.lock_cell(&store.cell_file(&key)).await.unwrap();
        let error = store.swap(&key, &swap(None)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(store.read(&key).await.unwrap(), None);
        drop(lock);
        assert!(matches!(store.swap(&key, &swap(None)).await, Ok(Swapped::Done(_))));
    }

    #[tokio::test]
    async fn a_half_written_value_of_a_dead_process_blocks_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        let key = CellKey::new(CellSpace::Cell, "a".parse().unwrap());
        store.swap(&key, &Swap::new(None, b"x".to_vec(), Expiry::Never)).await.unwrap();
        std::fs::write(dir.path().join("cells/new-cell-a"), b"half").unwrap();
        let seen = store.read(&key).await.unwrap().unwrap();
        assert_eq!(seen.value, b"x");
        let swap = Swap::new(Some(seen.version), b"y".to_vec(), Expiry::Never);
        assert!(matches!(store.swap(&key, &swap).await.unwrap(), Swapped::Done(_)));
        std::fs::write(dir.path().join("cells/cell-a"), b"garbage").unwrap();
        assert_eq!(store.read(&key).await.unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[tokio::test]
    async fn files_that_have_expired_are_swept_part_by_part_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        for number in 0..40 {
            let key = CellKey::new(CellSpace::Cell, format!("n{number}").parse().unwrap());
            let expiry = match number % 2 {
                0 => Expiry::After(Duration::ZERO),
                _ => Expiry::After(Duration::from_secs(600)),
            };
            store.swap(&key, &Swap::new(None, b"x".to_vec(), expiry)).await.unwrap();
        }
        // The header alone says that this one has expired.
        let header = seal(1, Ends { boot: 0, boot_nanos: 1, wall_millis: 1 }, b"longer");
        std::fs::write(dir.path().join("cells/cell-cut"), &header[..HEADER]).unwrap();
        let key = CellKey::new(CellSpace::Cell, "a".parse().unwrap());
        let cell = store.cell_file(&key);
        assert_eq!(sweep(&store, &cell, 1_000, 7), 0, "past the end");
        // Two rounds: where a file is deleted, the file system may move others to places before it.
        let (mut next, mut rounds) = (0, 0);
        for _ in 0..50 {
            next = sweep(&store, &cell, next, 7);
            rounds += u32::from(next == 0);
        }
        assert!(rounds >= 2, "{rounds}");
        let mut left: Vec<String> = std::fs::read_dir(dir.path().join("cells"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("cell-"))
            .collect();
        left.retain(|name| name != "cell-cut");
        assert_eq!(left.len(), 20, "{left:?}");
        assert!(left.iter().all(|name| name.ends_with(['1', '3', '5', '7', '9'])), "{left:?}");
        assert!(
            dir.path().join("cells/cell-cut").exists(),
            "a damaged file is for people to look at"
        );
    }
}
