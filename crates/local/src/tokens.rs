//! The durable ceiling of the fencing tokens.
//!
//! Two checksummed records in a file of their own, written in turns and synced: a power cut in
//! the middle of a write spoils at most the one being written. Tokens are reserved in blocks, so
//! one sync pays for 65,536 grants.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_core::ErrorKind;
use tenure_proto::{Reserve, Token};

use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::mix;

/// Tokens reserved by one durable write.
const BLOCK: u64 = 65_536;
/// Where the two records are: far enough apart never to share a sector.
const PLACES: [u64; 2] = [0, 4096];
const MARK: u64 = u64::from_le_bytes(*b"tenuretk");

#[derive(Debug)]
pub(crate) struct Tokens {
    file: File,
    path: PathBuf,
}

impl Tokens {
    /// Opens the file, or creates it with a ceiling of at least `floor` and of the clock: so that
    /// tokens do not go back when somebody deletes the directory, as long as the clock does not.
    pub(crate) fn open(dir: &Path, floor: u64) -> Result<Self> {
        let path = dir.join("tokens");
        match files::private().open(&path) {
            Ok(file) => return Ok(Self { file, path }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Fault::io("opening", &path, error)),
        }
        let draft = dir.join("tokens.new");
        let failed = |error| Fault::io("writing", &draft, error);
        let file = files::draft(dir, "tokens.new")?;
        let first = record(floor.max(Token::after(None, clock_ms()).get()));
        file.write_all_at(&first, PLACES[0]).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&draft, &path).map_err(failed)?;
        files::sync_dir(dir)?;
        Ok(Self { file, path })
    }

    /// The durable ceiling: above every token handed out.
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

    /// Whether others who open the file by its name get this one.
    pub(crate) fn is_linked(&self) -> Result<bool> {
        files::is_linked(&self.file, &self.path)
    }

    /// Makes a block more durable. Called by one process at a time.
    pub(crate) fn reserve(&self, reserve: &mut Reserve) -> Result<()> {
        // The file may be ahead of the table, never behind: whoever died between writing and
        // using it left a gap.
        reserve.raise(self.ceiling()?);
        let ceiling = reserve.raised(BLOCK).ok_or_else(|| {
            Fault::new(ErrorKind::Full, "all fencing tokens are used up: use a new directory")
        })?;
        let [a, b] = self.read()?;
        let place = usize::from(a > b);
        let failed = |error| Fault::io("writing", &self.path, error);
        self.file
            .write_all_at(&record(ceiling), PLACES[place])
            .and_then(|()| self.file.sync_data())
            .map_err(failed)?;
        reserve.raise(ceiling);
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
    fn one_spoiled_record_costs_nothing_but_the_last_block() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), 0).unwrap();
        let first = tokens.ceiling().unwrap();
        let mut reserve = Reserve::from_ceiling(first);
        tokens.reserve(&mut reserve).unwrap();
        tokens.reserve(&mut reserve).unwrap();
        assert_eq!(tokens.ceiling().unwrap(), first + 2 * BLOCK);
        tokens.file.write_all_at(b"x", PLACES[0] + 9).unwrap();
        assert_eq!(tokens.ceiling().unwrap(), first + BLOCK);
        tokens.file.write_all_at(b"x", PLACES[1] + 9).unwrap();
        assert_eq!(tokens.ceiling().unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(tokens.reserve(&mut reserve).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_table_that_is_behind_the_file_never_lowers_it() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), 0).unwrap();
        let durable = tokens.ceiling().unwrap();
        let mut behind = Reserve::from_ceiling(5);
        tokens.reserve(&mut behind).unwrap();
        assert_eq!(tokens.ceiling().unwrap(), durable + BLOCK);
        assert_eq!(behind.ceiling(), durable + BLOCK);
    }

    #[test]
    fn a_new_file_starts_at_the_clock_or_above_the_floor() {
        let dir = tempfile::tempdir().unwrap();
        let ceiling = Tokens::open(dir.path(), 0).unwrap().ceiling().unwrap();
        assert!(ceiling > 1_700_000_000_000 * 1024);
        let dir = tempfile::tempdir().unwrap();
        let floor = 1 << 60;
        assert_eq!(Tokens::open(dir.path(), floor).unwrap().ceiling().unwrap(), floor);
        assert_eq!(Tokens::open(dir.path(), 0).unwrap().ceiling().unwrap(), floor);
    }
}
