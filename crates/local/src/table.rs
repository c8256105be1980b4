//! The table's file: created, recognised, replaced after a reboot.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::ErrorKind;

use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::*;
use crate::mapping::{Mapping, allocate};
use crate::members::{Member, Roster};
use crate::tokens::{BLOCK, Tokens};

/// A table in use by this process.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) map: Mapping,
    pub(crate) roster: Roster,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) dir: PathBuf,
    /// The most records this table may ever have.
    pub(crate) limit: u32,
    /// When somebody last made sure that the table is the one others find, on the boot clock.
    looked: AtomicU64,
    #[cfg(test)]
    pub(crate) kill: crate::killed::Kill,
}

/// How old the knowledge may be that the table is the one others find: 10 ms.
const LOOK_EVERY: u64 = 10_000_000;

/// What a test may choose, and nobody else.
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
    pub(crate) fn open(dir: &Path, setup: Setup) -> Result<Self> {
        files::prepare(dir)?;
        let boot = match setup.boot_id {
            Some(id) => id,
            None => boot_id()?,
        };
        let opening = files::hold_init(dir)?;
        let path = dir.join("table");
        let members = files::open_or_create(&dir.join("members"))?;
        let inode = members.metadata().map(|meta| meta.ino());
        let inode = inode.map_err(|error| Fault::io("looking at", dir, error))?;
        let block = setup.token_block.unwrap_or(BLOCK).max(2);
        let (map, limit) = match open_existing(&path, boot, inode)? {
            Some(open) => open,
            None => {
                let tokens = Tokens::open(dir, 0, block)?;
                let turn = tokens.turn()?;
                let reserved = tokens.write(0)?;
                tokens.sync()?;
                drop(turn);
                let limit = setup.max_records.unwrap_or(MAX_RECORDS);
                create(dir, boot, inode, limit, reserved)?;
                open_existing(&path, boot, inode)?
                    .ok_or_else(|| Fault::damaged("it vanished while it was made"))?
            }
        };
        // Somebody may have deleted the tokens and left the table.
        let known = map.word(STATE + 3).map_or(0, load);
        let tokens = Tokens::open(dir, known, block)?;
        tokens.ceiling()?;
        let roster = Roster::join(members, dir, &map)?;
        drop(opening);
        Ok(Self {
            map,
            roster,
            tokens: Arc::new(tokens),
            dir: dir.to_owned(),
            limit,
            looked: AtomicU64::new(0),
            #[cfg(test)]
            kill: crate::killed::Kill::default(),
        })
    }

    pub(crate) const fn me(&self) -> Member {
        self.roster.me
    }

    pub(crate) fn lives(&self, member: Member) -> Result<bool> {
        self.roster.lives(&self.map, member)
    }

    /// Fails, with this kind, if the table was deleted, moved or replaced: those who come later
    /// share another one.
    pub(crate) fn still_shared(&self, kind: ErrorKind) -> Result<()> {
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

    /// The same for those who hold nothing yet, looking at most every [`LOOK_EVERY`]: a look costs
    /// more than a free lock.
    pub(crate) fn glance(&self, now: u64) -> Result<()> {
        let looked = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) < LOOK_EVERY {
            return Ok(());
        }
        self.still_shared(ErrorKind::Damaged)?;
        self.looked.store(now, Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) fn load(word: &std::sync::atomic::AtomicU64) -> u64 {
    word.load(std::sync::atomic::Ordering::Acquire)
}

fn boot_id() -> Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|e| Fault::io("reading", path, e))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| Fault::new(ErrorKind::Unsupported, "the kernel gives no boot id"))
}

/// `None`: there is no table, or only one of an earlier boot.
fn open_existing(path: &Path, boot: [u8; 16], members: u64) -> Result<Option<(Mapping, u32)>> {
    let file = match files::private().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::io("opening", path, error)),
    };
    let fixed = read_fixed(&file).map_err(|error| Fault::io("reading", path, error))?;
    let Some(fixed) = fixed else {
        return Err(Fault::damaged("the file is too short to be one"));
    };
    verify(&fixed)?;
    if [fixed[AT_BOOT], fixed[AT_BOOT + 1]] != boot_words(boot) {
        return Ok(None);
    }
    if fixed[AT_MEMBERS] != members {
        return Err(Fault::damaged("the file `members` beside it was replaced"));
    }
    let limit = fixed[AT_LIMIT] as u32;
    let map =
        Mapping::new(file, words_for(limit)).map_err(|error| Fault::io("mapping", path, error))?;
    if map.backed() < words_for(1) {
        return Err(Fault::damaged("the file is shorter than it says"));
    }
    Ok(Some((map, limit)))
}

fn read_fixed(file: &File) -> io::Result<Option<[u64; FIXED_WORDS]>> {
    let mut bytes = [0; FIXED_WORDS * 8];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut words = [0; FIXED_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(Some(words))
}

fn verify(fixed: &[u64; FIXED_WORDS]) -> Result<()> {
    if fixed[AT_MAGIC] == MAGIC.swap_bytes() {
        let why = "the lock table was written by a machine of the other byte order: use another \
                   directory";
        return Err(Fault::new(ErrorKind::Unsupported, why));
    }
    if fixed[AT_MAGIC] != MAGIC {
        return Err(Fault::damaged("the file is not one of tenure's"));
    }
    if fixed[AT_CHECK] != check(fixed) {
        return Err(Fault::damaged("its header does not add up"));
    }
    if fixed[AT_VERSION] != VERSION || fixed[AT_SHAPE] != SHAPE {
        let why = format!(
            "the lock table has format {}, this program knows format {VERSION}: use programs \
             of the same version, or another directory",
            fixed[AT_VERSION]
        );
        return Err(Fault::new(ErrorKind::Unsupported, why));
    }
    if !(2..=u64::from(MAX_RECORDS)).contains(&fixed[AT_LIMIT]) {
        return Err(Fault::damaged("its limit makes no sense"));
    }
    Ok(())
}

/// Builds a table beside the path and puts it in place: nobody ever sees half of one.
fn create(dir: &Path, boot: [u8; 16], members: u64, limit: u32, tokens: Range<u64>) -> Result<()> {
    let limit = limit.clamp(2, MAX_RECORDS);
    let draft = dir.join("table.new");
    let failed = |error| Fault::io("writing", &draft, error);
    let mut options = files::private();
    let options = options.create(true).truncate(true);
    let file = options.open(&draft).map_err(failed)?;
    let capacity = CHUNK.min(limit);
    allocate(&file, words_for(capacity) as u64 * 8).map_err(failed)?;

    let mut words = [0; STATE + STATE_WORDS];
    words[AT_MAGIC] = MAGIC;
    words[AT_VERSION] = VERSION;
    words[AT_SHAPE] = SHAPE;
    words[AT_BOOT..AT_BOOT + 2].copy_from_slice(&boot_words(boot));
    words[AT_LIMIT] = u64::from(limit);
    words[AT_MEMBERS] = members;
    let mut fixed = [0; FIXED_WORDS];
    fixed.copy_from_slice(&words[..FIXED_WORDS]);
    words[AT_CHECK] = check(&fixed);
    // Record 0 is never used.
    let state = [pair(0, 1), u64::from(capacity), tokens.start, tokens.end];
    words[STATE..].copy_from_slice(&state);
    words[STATE_CHECK] = state_check(&state);

    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, 0).map_err(failed)?;
    // Only what the file is must survive a power cut: by its boot id it is then replaced. Zeros
    // would be taken for somebody else's file.
    file.sync_all().map_err(failed)?;
    std::fs::rename(&draft, dir.join("table")).map_err(failed)?;
    files::sync_dir(dir)
}

pub(crate) fn state_check(state: &[u64; STATE_WORDS]) -> u64 {
    let mixed = state.iter().enumerate();
    mixed.fold(0, |sum, (word, value)| sum ^ mix(0, word, *value))
}

fn check(fixed: &[u64; FIXED_WORDS]) -> u64 {
    let mixed = fixed[..AT_CHECK].iter().enumerate();
    mixed.fold(1, |sum, (word, value)| sum ^ mix(0, word, *value))
}

fn boot_words(boot: [u8; 16]) -> [u64; 2] {
    let id = u128::from_be_bytes(boot);
    [(id >> 64) as u64, id as u64]
}
