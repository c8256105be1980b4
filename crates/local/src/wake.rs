//! Telling another process that one of its waiters has news: eight bytes down its FIFO.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use tenure_core::ErrorKind;

use crate::access::share;
use crate::fault::{Fault, Result};
use crate::layout::{low, pair};
use crate::line::Wake;
use crate::members::Member;

/// More writers than this are not kept open.
const KEPT_OPEN: usize = 256;

/// How a message fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Done,
    /// The reader is behind: it must be told to look at everything.
    Full,
    /// Nobody reads there (any more).
    Gone,
}

/// The writing ends of the others' FIFOs.
#[derive(Debug)]
pub(crate) struct Bells {
    dir: PathBuf,
    open: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

impl Bells {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.join("wake"), open: Mutex::default() }
    }

    /// Our own reading end, empty. Read and write, so that it never reports an end of file.
    pub(crate) fn own(&self, me: Member) -> Result<OwnedFd> {
        let path = self.path(me.slot);
        let made = mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Fault::io("creating", &path, error)),
        }
        let failed = |error| Fault::io("opening", &path, error);
        let file = open(&path, true).map_err(failed)?;
        if made.is_ok() {
            share(&self.dir, &file, &path)?;
        }
        if !file.metadata().map_err(failed)?.file_type().is_fifo() {
            let why = format!("{} is not a FIFO: delete it", path.display());
            return Err(Fault::new(ErrorKind::Invalid, why));
        }
        let fifo = OwnedFd::from(file);
        let mut rest = [0; 4096];
        while matches!(rustix::io::read(&fifo, &mut rest), Ok(read) if read > 0) {}
        Ok(fifo)
    }

    pub(crate) fn ring(&self, wake: Wake) -> Sent {
        let Ok(fifo) = self.writer(wake.member.slot) else {
            return Sent::Gone;
        };
        let message = pair(wake.index, wake.generation).to_ne_bytes();
        loop {
            return match rustix::io::write(&fifo, &message) {
                Ok(_) => Sent::Done,
                Err(Errno::AGAIN) => Sent::Full,
                Err(Errno::INTR) => continue,
                Err(_) => Sent::Gone,
            };
        }
    }

    fn writer(&self, slot: u32) -> io::Result<Arc<OwnedFd>> {
        let mut kept = self.open.lock();
        if let Some(fifo) = kept.get(&slot) {
            return Ok(fifo.clone());
        }
        // Without a reader this fails. A FIFO outlives its readers: it serves the slot's next
        // member too.
        let fifo = Arc::new(OwnedFd::from(open(&self.path(slot), false)?));
        if kept.len() >= KEPT_OPEN {
            kept.clear();
        }
        kept.insert(slot, fifo.clone());
        Ok(fifo)
    }

    fn path(&self, slot: u32) -> PathBuf {
        self.dir.join(slot.to_string())
    }
}

/// The record numbers in what was read from a FIFO. `None`: it makes no sense.
pub(crate) fn parse(bytes: &[u8]) -> Option<impl Iterator<Item = u32>> {
    let (messages, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| messages.iter().map(|bytes| low(u64::from_ne_bytes(*bytes))))
}

fn open(path: &Path, read: bool) -> io::Result<File> {
    File::options()
        .read(read)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_a_full_fifo_says_so_and_a_missing_reader_too() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("wake")).unwrap();
        let bells = Bells::new(dir.path());
        let member = Member { slot: 5, generation: 1 };
        let wake = Wake { member, index: 42, generation: 7 };
        assert_eq!(bells.ring(wake), Sent::Gone);
        let fifo = bells.own(member).unwrap();
        assert_eq!(bells.ring(wake), Sent::Done);
        let mut bytes = [0; 64];
        let read = rustix::io::read(&fifo, &mut bytes).unwrap();
        let records: Vec<u32> = parse(&bytes[..read]).unwrap().collect();
        assert_eq!(records, [42]);
        let mut sent = 0;
        while bells.ring(wake) == Sent::Done {
            sent += 1;
            assert!(sent < 1_000_000);
        }
        assert_eq!(bells.ring(wake), Sent::Full);
        assert!(parse(&[1, 2, 3]).is_none());
    }
}
