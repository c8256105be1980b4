//! The first words of the table's file, which decide whether this process can use it.
//!
//! The magic number, the version and the boot id have the same place in every version, and in every version
//! a process that uses the table has a byte of the file `members` locked. So a program can tell whether a
//! table of another version is in use, and replace it if not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::clock::Epoch;
use crate::fault::{Fault, Result};
use crate::layout::*;

/// The header of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) epoch: Epoch,
    /// The most records the table may have.
    pub(crate) limit: u32,
    /// The inode of the file `members`.
    pub(crate) slots_inode: u64,
}

/// Why a table cannot be used here although it is not damaged. It is replaced if no process uses it: then no
/// lock in it is held, because a lock ends with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obsolete {
    /// Another boot of the kernel, or a clock with another offset.
    Epoch(Epoch),
    Version(u64),
    ByteOrder,
}

impl Header {
    /// Reads the header of a table, and decides whether this process can use it.
    pub(crate) fn read(file: &File, path: &Path, here: Epoch) -> Result<Result<Self, Obsolete>> {
        let mut bytes = [0; FIXED_WORDS * 8];
        file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::damaged("the file is too short"),
            _ => Fault::io("reading", path, error),
        })?;
        let mut words = [0; FIXED_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Self::parse(&words, here)
    }

    fn parse(words: &[u64; FIXED_WORDS], here: Epoch) -> Result<Result<Self, Obsolete>> {
        if words[AT_MAGIC] == MAGIC.swap_bytes() {
            return Ok(Err(Obsolete::ByteOrder));
        }
        if words[AT_MAGIC] != MAGIC {
            return Err(Fault::damaged("the file is not a tenure table"));
        }
        if words[AT_VERSION] != VERSION {
            return Ok(Err(Obsolete::Version(words[AT_VERSION])));
        }
        if words[AT_CHECK] != check(words) {
            return Err(Fault::damaged("its header has a wrong checksum"));
        }
        if words[AT_SHAPE] != SHAPE {
            return Ok(Err(Obsolete::Version(words[AT_VERSION])));
        }
        let epoch = Epoch {
            boot: [words[AT_BOOT], words[AT_BOOT + 1]],
            offsets: [words[AT_OFFSETS] as i64, words[AT_OFFSETS + 1] as i64],
        };
        if epoch != here {
            return Ok(Err(Obsolete::Epoch(epoch)));
        }
        let limit = u32::try_from(words[AT_LIMIT]).ok();
        let limit = limit.filter(|limit| (2..=MAX_RECORDS).contains(limit));
        let limit = limit.ok_or_else(|| Fault::damaged("its limit is out of range"))?;
        Ok(Ok(Self { epoch, limit, slots_inode: words[AT_SLOTS_INODE] }))
    }

    pub(crate) fn words(&self) -> [u64; FIXED_WORDS] {
        let mut words = [0; FIXED_WORDS];
        words[AT_MAGIC] = MAGIC;
        words[AT_VERSION] = VERSION;
        words[AT_SHAPE] = SHAPE;
        words[AT_BOOT..AT_BOOT + 2].copy_from_slice(&self.epoch.boot);
        words[AT_LIMIT] = u64::from(self.limit);
        words[AT_SLOTS_INODE] = self.slots_inode;
        let offsets = self.epoch.offsets.map(|offset| offset as u64);
        words[AT_OFFSETS..AT_OFFSETS + 2].copy_from_slice(&offsets);
        words[AT_CHECK] = check(&words);
        words
    }
}

fn check(words: &[u64; FIXED_WORDS]) -> u64 {
    let mixed = words[..AT_CHECK].iter().enumerate();
    mixed.fold(1, |sum, (word, value)| sum ^ mix(0, word, *value))
}

impl Obsolete {
    /// The error if a process still uses the table. Its id may be unknown.
    pub(crate) fn in_use(self, table: &Path, process: Option<u32>, here: Epoch) -> Fault {
        let table = table.display();
        let by = process.map_or("another process".into(), |pid| format!("process {pid}"));
        let why = match self {
            Self::Epoch(there) if there.boot != here.boot => format!(
                "{table} is in use by {by}, which sees another boot id ({}, here {}): a container \
                 may have a boot id of its own; let all processes that share locks see the same \
                 one, or use another directory",
                there.boot_id(),
                here.boot_id()
            ),
            Self::Epoch(_) => format!(
                "{table} is in use by {by}, in a time namespace whose clocks have another offset: \
                 run all processes that share locks with the same offsets (see \
                 /proc/self/timens_offsets), or use another directory"
            ),
            Self::Version(version) => format!(
                "{table} is in use by {by} and has format {version}, this program knows format \
                 {VERSION}: use programs of the same version, or another directory"
            ),
            Self::ByteOrder => format!(
                "{table} is in use by {by}, which has another byte order: use another directory"
            ),
        };
        Fault::new(tenure_core::ErrorKind::Unsupported, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Epoch = Epoch { boot: [1, 2], offsets: [0, 0] };
    const HEADER: Header = Header { epoch: HERE, limit: 100, slots_inode: 7 };

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::parse(&HEADER.words(), HERE).unwrap(), Ok(HEADER));
    }

    #[test]
    fn another_boot_clock_version_or_byte_order_makes_a_table_obsolete() {
        for epoch in [
            Epoch { boot: [1, 3], ..HERE },
            Epoch { offsets: [0, 1], ..HERE },
            Epoch { offsets: [-1, 0], ..HERE },
        ] {
            let parsed = Header::parse(&HEADER.words(), epoch).unwrap();
            assert_eq!(parsed, Err(Obsolete::Epoch(HERE)));
        }
        let mut words = HEADER.words();
        words[AT_VERSION] += 1;
        let parsed = Header::parse(&words, HERE).unwrap();
        assert_eq!(parsed, Err(Obsolete::Version(VERSION + 1)));
        let swapped = HEADER.words().map(u64::swap_bytes);
        assert_eq!(Header::parse(&swapped, HERE).unwrap(), Err(Obsolete::ByteOrder));
    }

    #[test]
    fn any_other_change_of_a_header_is_damage() {
        for word in (0..FIXED_WORDS).filter(|word| *word != AT_VERSION) {
            let mut words = HEADER.words();
            words[word] ^= 1 << 17;
            assert!(Header::parse(&words, HERE).is_err(), "word {word}");
        }
    }
}
