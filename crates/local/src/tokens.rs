//! The durable ceiling of the fencing tokens.
//!
//! The file `tokens` has two checksummed records, which are written alternately and synced. So a power cut
//! during a write damages at most one of them. Tokens are reserved in blocks: one sync serves a million
//! grants.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use tenure_core::ErrorKind;
use tenure_proto::Token;

use crate::access::Access;
use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::mix;

/// Tokens reserved by one durable write. Half of them last for 50 ms at ten million grants a second,
/// longer than most syncs take. A reboot skips what is left: about a second of the clock that new
/// directories start from.
pub(crate) const BLOCK: u64 = 1 << 20;
/// The offsets of the two records: far enough apart that they never share a sector.
const PLACES: [u64; 2] = [0, 4096];
const MARK: u64 = u64::from_le_bytes(*b"tenuretk");

#[derive(Debug)]
pub(crate) struct Tokens {
    file: File,
    path: PathBuf,
    block: u64,
    /// The ceiling when it was last synced here.
    #[cfg(test)]
    pub(crate) synced: std::sync::atomic::AtomicU64,
}

/// The lock on the file `tokens`, which lets one process at a time reserve.
#[derive(Debug)]
pub(crate) struct ReservationLock<'t>(&'t File);

impl Drop for ReservationLock<'_> {
    fn drop(&mut self) {
        // The lock ends with the file at the latest.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

impl Tokens {
    /// Opens the file, or creates it with a ceiling of at least `floor` and at least the wall clock's value.
    /// So tokens do not fall when the directory is deleted, unless the clock was set back. Reserves `block`
    /// tokens at a time.
    pub(crate) fn open(dir: &Path, access: &Access, floor: u64, block: u64) -> Result<Self> {
        let path = dir.join("tokens");
        if let Some(file) = files::open(&path, access)? {
            return Ok(Self::new(file, path, block));
        }
        let draft = dir.join("tokens.new");
        let failed = |error| Fault::io("writing", &draft, error);
        let file = files::draft(dir, "tokens.new")?;
        let first = record(floor.max(Token::after(None, clock_ms()).get()));
        file.write_all_at(&first, PLACES[0]).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&draft, &path).map_err(failed)?;
        files::sync_dir(dir)?;
        Ok(Self::new(file, path, block))
    }

    fn new(file: File, path: PathBuf, block: u64) -> Self {
        Self {
            file,
            path,
            block,
            #[cfg(test)]
            synced: Default::default(),
        }
    }

    /// The durable ceiling. Every token in use is below it.
    pub(crate) fn ceiling(&self) -> Result<u64> {
        let [a, b] = self.read()?;
        a.max(b).ok_or_else(|| {
            let why = format!(
                "{} has no valid record; if no fenced resource remembers a token, delete it, \
                 and tokens start again from the clock",
                self.path.display()
            );
            Fault::new(ErrorKind::Damaged, why)
        })
    }

    /// Whether the path still names this file.
    pub(crate) fn is_linked(&self) -> Result<bool> {
        files::is_linked(&self.file, &self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// With fewer tokens left, another block is reserved.
    #[inline]
    pub(crate) const fn low_water(&self) -> u64 {
        self.block / 2
    }

    /// Waits until no other process reserves tokens. It does not exclude threads that share this `Tokens`.
    pub(crate) fn lock_reservation(&self) -> Result<ReservationLock<'_>> {
        loop {
            match flock(&self.file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(ReservationLock(&self.file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Fault::io("locking", &self.path, error)),
            }
        }
    }

    /// Writes the reservation of a block above all earlier ones and above `floor`. The block may be used
    /// after a [`sync`](Self::sync).
    pub(crate) fn write(&self, floor: u64) -> Result<Range<u64>> {
        let first = self.ceiling()?.max(floor);
        let end = first.checked_add(self.block).ok_or_else(|| {
            Fault::new(ErrorKind::Full, "all fencing tokens are used up: use a new directory")
        })?;
        let [a, b] = self.read()?;
        let place = usize::from(a > b);
        self.file
            .write_all_at(&record(end), PLACES[place])
            .map_err(|error| Fault::io("writing", &self.path, error))?;
        Ok(first..end)
    }

    /// Makes the written reservation durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| Fault::io("syncing", &self.path, error))?;
        #[cfg(test)]
        self.synced.store(self.ceiling()?, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    fn read(&self) -> Result<[Option<u64>; 2]> {
        let mut found = [None; 2];
        for (place, at) in PLACES.into_iter().enumerate() {
            let mut bytes = [0; 24];
            match self.file.read_exact_at(&mut bytes, at) {
                Ok(()) => found[place] = parse(&bytes),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(Fault::io("reading", &self.path, error)),
            }
        }
        Ok(found)
    }
}

fn record(ceiling: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (part, word) in [MARK, ceiling, mix(MARK, 0, ceiling)].into_iter().enumerate() {
        bytes[part * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn parse(bytes: &[u8; 24]) -> Option<u64> {
    let ceiling = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    (record(ceiling) == *bytes).then_some(ceiling)
}

fn clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_damaged_record_loses_only_the_last_block() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), &Access::default(), 0, BLOCK).unwrap();
        let first = tokens.ceiling().unwrap();
        assert_eq!(tokens.write(0).unwrap(), first..first + BLOCK);
        assert_eq!(tokens.write(0).unwrap(), first + BLOCK..first + 2 * BLOCK);
        assert_eq!(tokens.ceiling().unwrap(), first + 2 * BLOCK);
        tokens.file.write_all_at(b"x", PLACES[0] + 9).unwrap();
        assert_eq!(tokens.ceiling().unwrap(), first + BLOCK);
        tokens.file.write_all_at(b"x", PLACES[1] + 9).unwrap();
        assert_eq!(tokens.ceiling().unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(tokens.write(0).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_block_is_above_the_file_and_above_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), &Access::default(), 0, BLOCK).unwrap();
        let durable = tokens.ceiling().unwrap();
        assert_eq!(tokens.write(5).unwrap().start, durable);
        assert_eq!(tokens.write(durable + 3 * BLOCK).unwrap().start, durable + 3 * BLOCK);
        assert_eq!(tokens.ceiling().unwrap(), durable + 4 * BLOCK);
    }

    #[test]
    fn one_process_reserves_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, theirs] =
            [(); 2].map(|()| Tokens::open(dir.path(), &Access::default(), 0, BLOCK).unwrap());
        let lock = ours.lock_reservation().unwrap();
        let ask = || flock(&theirs.file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(ask(), Err(rustix::io::Errno::AGAIN));
        drop(lock);
        assert_eq!(ask(), Ok(()));
    }

    #[test]
    fn a_new_file_starts_at_the_clock_or_at_the_floor() {
        let dir = tempfile::tempdir().unwrap();
        let ceiling =
            Tokens::open(dir.path(), &Access::default(), 0, BLOCK).unwrap().ceiling().unwrap();
        assert!(ceiling > 1_700_000_000_000 * 1024);
        let dir = tempfile::tempdir().unwrap();
        let floor = 1 << 60;
        assert_eq!(
            Tokens::open(dir.path(), &Access::default(), floor, BLOCK).unwrap().ceiling().unwrap(),
            floor
        );
        assert_eq!(
            Tokens::open(dir.path(), &Access::default(), 0, BLOCK).unwrap().ceiling().unwrap(),
            floor
        );
    }
}
