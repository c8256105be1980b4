//! The table's file: how it is created, opened, and replaced after a reboot.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::ErrorKind;

use crate::access::Access;
use crate::clock::Epoch;
use crate::fault::{Fault, Result};
use crate::files;
use crate::header::Header;
use crate::layout::*;
use crate::mapping::{Mapping, allocate, write_in_place};
use crate::process_slots::{self, ProcessSlot, ProcessSlots};
use crate::tokens::{BLOCK, Tokens};

/// A table in use by this process.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) map: Mapping,
    pub(crate) slots: ProcessSlots,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) dir: PathBuf,
    pub(crate) access: Access,
    /// The most records this table may ever have.
    pub(crate) limit: u32,
    /// When the path was last verified to name this table, on the monotonic clock.
    verified: AtomicU64,
    #[cfg(test)]
    pub(crate) kill: crate::kill_tests::Kill,
}

/// How often a claim verifies that the path still names this table: every 10 ms.
const VERIFY_EVERY: u64 = 10_000_000;

/// Settings for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Stands in for the kernel's boot id.
    pub boot_id: Option<[u8; 16]>,
    /// The most records a new table may have.
    pub max_records: Option<u32>,
    /// Fencing tokens reserved at a time.
    pub token_block: Option<u64>,
}

impl Table {
    pub(crate) fn open(dir: &Path, access: Access, setup: Setup) -> Result<Self> {
        files::prepare(dir, &access)?;
        let epoch = Epoch::here(setup.boot_id)?;
        let opening = files::hold_init(dir, &access)?;
        let path = dir.join("table");
        let members = files::open_or_create(dir, "members", &access)?;
        let block = setup.token_block.unwrap_or(BLOCK).max(2);
        let (map, limit) = match open_existing(&path, &access, epoch, &members)? {
            Some(open) => open,
            None => {
                let tokens = Tokens::open(dir, &access, 0, block)?;
                let lock = tokens.lock_reservation()?;
                let reserved = tokens.write(0)?;
                tokens.sync()?;
                drop(lock);
                let limit = setup.max_records.unwrap_or(MAX_RECORDS).clamp(2, MAX_RECORDS);
                let slots_inode = inode(&members, &path)?;
                create(dir, Header { epoch, limit, slots_inode }, reserved)?;
                open_existing(&path, &access, epoch, &members)?
                    .ok_or_else(|| Fault::damaged("it vanished while it was created"))?
            }
        };
        // The file `tokens` may have been deleted and the table left.
        let known = map.word(STATE + 3).map_or(0, load);
        let tokens = Tokens::open(dir, &access, known, block)?;
        tokens.ceiling()?;
        let slots = ProcessSlots::take(members, dir, &map)?;
        drop(opening);
        Ok(Self {
            map,
            slots,
            tokens: Arc::new(tokens),
            dir: dir.to_owned(),
            access,
            limit,
            verified: AtomicU64::new(0),
            #[cfg(test)]
            kill: crate::kill_tests::Kill::default(),
        })
    }

    pub(crate) const fn me(&self) -> ProcessSlot {
        self.slots.me
    }

    pub(crate) fn is_alive(&self, process: ProcessSlot) -> Result<bool> {
        self.slots.is_alive(&self.map, process)
    }

    /// Fails with an error of this kind if the table was deleted, moved or replaced: processes that open it
    /// later share another table.
    pub(crate) fn verify_shared(&self, kind: ErrorKind) -> Result<()> {
        let path = self.dir.join("table");
        if files::is_linked(self.map.file(), &path)? {
            return Ok(());
        }
        let path = path.display();
        let why = format!(
            "{path} was deleted, moved or replaced while in use, so others may hold the same \
             locks: stop, and open the store again"
        );
        Err(Fault::new(kind, why))
    }

    /// As [`verify_shared`](Self::verify_shared), at most every [`VERIFY_EVERY`], because it costs more than
    /// a free lock. For claims that hold nothing yet.
    pub(crate) fn verify_shared_recently(&self, now: u64) -> Result<()> {
        let verified = self.verified.load(Ordering::Relaxed);
        if now.saturating_sub(verified) < VERIFY_EVERY {
            return Ok(());
        }
        self.verify_shared(ErrorKind::Damaged)?;
        self.verified.store(now, Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) fn load(word: &std::sync::atomic::AtomicU64) -> u64 {
    word.load(std::sync::atomic::Ordering::Acquire)
}

/// `None` if there is no table, or only an obsolete one that no process uses.
fn open_existing(
    path: &Path,
    access: &Access,
    here: Epoch,
    members: &File,
) -> Result<Option<(Mapping, u32)>> {
    let Some(file) = files::open(path, access)? else {
        return Ok(None);
    };
    let header = match Header::read(&file, path, here)? {
        Ok(header) => header,
        Err(obsolete) => {
            // Processes take slots under the lock on `init`, which this process holds.
            let user = process_slots::other_user(members, &file);
            return match user.map_err(|error| Fault::io("asking for a lock on", path, error))? {
                Some(process) => Err(obsolete.in_use(path, process, here)),
                None => Ok(None),
            };
        }
    };
    if header.slots_inode != inode(members, path)? {
        return Err(Fault::damaged("the file `members` beside it was replaced"));
    }
    let map = Mapping::new(file, words_for(header.limit))
        .map_err(|error| Fault::io("mapping", path, error))?;
    if map.backed() < words_for(1) {
        return Err(Fault::damaged("the file is shorter than its header says"));
    }
    Ok(Some((map, header.limit)))
}

fn inode(file: &File, path: &Path) -> Result<u64> {
    let meta = file.metadata().map_err(|error| Fault::io("looking at", path, error))?;
    Ok(meta.ino())
}

/// Writes a new table to a draft file and renames it, so that no process sees half a table.
fn create(dir: &Path, header: Header, tokens: Range<u64>) -> Result<()> {
    let draft = dir.join("table.new");
    let failed = |error| Fault::io("writing", &draft, error);
    let file = files::draft(dir, "table.new")?;
    write_in_place(&file);
    let capacity = CHUNK.min(header.limit);
    allocate(&file, words_for(capacity) as u64 * 8).map_err(failed)?;

    let mut words = [0; STATE + STATE_WORDS];
    words[..FIXED_WORDS].copy_from_slice(&header.words());
    // Record 0 is never used.
    let state = [pair(0, 1), u64::from(capacity), tokens.start, tokens.end];
    words[STATE..].copy_from_slice(&state);
    words[STATE_CHECK] = state_check(&state);

    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, 0).map_err(failed)?;
    // After a power cut the table is replaced, because its boot id is old. For that its header must be on
    // disk: a file of zeros would be refused as not one of ours.
    file.sync_all().map_err(failed)?;
    std::fs::rename(&draft, dir.join("table")).map_err(failed)?;
    files::sync_dir(dir)
}

pub(crate) fn state_check(state: &[u64; STATE_WORDS]) -> u64 {
    let mixed = state.iter().enumerate();
    mixed.fold(0, |sum, (word, value)| sum ^ mix(0, word, *value))
}
