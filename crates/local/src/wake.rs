//! Telling another process that one of its waiters has news: eight bytes down its FIFO.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::{Errno, retry_on_intr};
use tenure_core::ErrorKind;

use crate::access::{Access, share};
use crate::fault::{Fault, Result};
use crate::layout::{low, pair};
use crate::line::Wake;
use crate::members::Member;

/// The FIFOs of all members.
///
/// Only the few that messages were last sent to stay open: descriptors are the host program's, and
/// there may be thousands of members. A writer is opened for reading as well, so that there is a
/// reader even where the member has died: a write without one would raise SIGPIPE, which ends
/// programs that do not ignore it. What the slot's next member finds there wakes some of its
/// waiters for nothing.
#[derive(Debug)]
pub(crate) struct Bells {
    dir: PathBuf,
    access: Access,
    /// Slots and their FIFOs, the last one used at the end.
    open: Mutex<Vec<(u32, Arc<File>)>>,
}

/// Two processes that hand a lock to and fro save three quarters of a wake-up's cost by it.
const KEPT_OPEN: usize = 8;

impl Bells {
    pub(crate) fn new(dir: &Path, access: Access) -> Self {
        Self { dir: dir.join("wake"), access, open: Mutex::default() }
    }

    /// Our own reading end. Read and write, so that it never reports an end of file. Not emptied:
    /// what is in it may be for a waiter of another runtime.
    pub(crate) fn own(&self, me: Member) -> Result<OwnedFd> {
        let path = self.path(me.slot);
        let made = mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Fault::io("creating", &path, error)),
        }
        let file = self.open(&path)?;
        if made.is_ok() {
            share(&self.dir, &file, &path)?;
        }
        Ok(file.into())
    }

    /// Sends a message. False if the reader is behind, and must be told to look at everything.
    pub(crate) fn ring(&self, wake: Wake) -> bool {
        let Ok(fifo) = self.writer(wake.member.slot) else {
            // The FIFO does not exist: the slot was never used, or the file was deleted. Or it
            // belongs to another user. The member's waiters poll.
            return true;
        };
        let message = pair(wake.index, wake.generation).to_ne_bytes();
        retry_on_intr(|| rustix::io::write(&fifo, &message)) != Err(Errno::AGAIN)
    }

    fn writer(&self, slot: u32) -> Result<Arc<File>> {
        let mut kept = self.open.lock();
        let known = kept.iter().position(|(known, _)| *known == slot);
        let fifo = match known {
            Some(at) => kept.remove(at).1,
            None => Arc::new(self.open(&self.path(slot))?),
        };
        if kept.len() == KEPT_OPEN {
            kept.remove(0);
        }
        kept.push((slot, fifo.clone()));
        Ok(fifo)
    }

    fn path(&self, slot: u32) -> PathBuf {
        self.dir.join(slot.to_string())
    }

    /// Opens a FIFO, and refuses what is none or belongs to another user.
    fn open(&self, path: &Path) -> Result<File> {
        let failed = |error| Fault::io("opening", path, error);
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.file_type().is_fifo() {
            let why = format!("{} is not a FIFO: delete it", path.display());
            return Err(Fault::new(ErrorKind::Invalid, why));
        }
        self.access.check_owner(&metadata, path)?;
        Ok(file)
    }
}

/// The record numbers in what was read from a FIFO. `None`: it makes no sense.
pub(crate) fn parse(bytes: &[u8]) -> Option<impl Iterator<Item = u32>> {
    let (messages, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| messages.iter().map(|bytes| low(u64::from_ne_bytes(*bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_and_a_full_fifo_says_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("wake")).unwrap();
        let bells = Bells::new(dir.path(), Access::default());
        let member = Member { slot: 5, generation: 1 };
        let wake = Wake { member, index: 42, generation: 7 };
        assert!(bells.ring(wake), "without a FIFO there is nothing to do");
        drop(bells.own(member).unwrap());
        assert!(bells.ring(wake), "without a reader the message is kept");
        let fifo = bells.own(member).unwrap();
        assert!(bells.ring(wake));
        let mut bytes = [0; 64];
        let read = rustix::io::read(&fifo, &mut bytes).unwrap();
        let records: Vec<u32> = parse(&bytes[..read]).unwrap().collect();
        assert_eq!(records, [42, 42]);
        let mut sent = 0;
        while bells.ring(wake) {
            sent += 1;
            assert!(sent < 1_000_000);
        }
        assert!(parse(&[1, 2, 3]).is_none());
    }
}
