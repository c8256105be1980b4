//! Wake-ups for waiters: directly in this process, and through the FIFO of its slot in another one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::{Errno, retry_on_intr};
use tenure_core::ErrorKind;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use crate::access::{Access, share};
use crate::async_fd;
use crate::claim_index::ClaimIndex;
use crate::fault::{Fault, Result};
use crate::layout::{low, pair};
use crate::process_slots::{OVERFLOW, ProcessSlot};
use crate::queue::Wake;
use crate::table::Table;

/// Sends wake-ups to waiters of all processes, and receives those for this process.
#[derive(Debug)]
pub(crate) struct Wakes {
    table: Arc<Table>,
    claim_index: Arc<ClaimIndex>,
    fifos: WakeFifos,
    /// The tasks that read this process's FIFO, one on each runtime with a waiter: a runtime that is
    /// not polled would read nothing.
    listeners: Mutex<Vec<(runtime::Id, AbortHandle)>>,
}

impl Wakes {
    pub(crate) fn new(table: Arc<Table>, claim_index: Arc<ClaimIndex>, fifos: WakeFifos) -> Self {
        Self { table, claim_index, fifos, listeners: Mutex::default() }
    }

    /// Wakes a waiter.
    pub(crate) fn send(&self, wake: Wake) {
        if wake.process == self.table.me() {
            return self.claim_index.notify(wake.index);
        }
        if !self.fifos.send(wake)
            && let Some(flags) = self.table.map.word(wake.process.flags_at())
        {
            flags.fetch_or(OVERFLOW, Ordering::AcqRel);
            // The reader may have emptied the FIFO before it could see the flag. Then this message gets
            // through, and the reader checks the flag again.
            self.fifos.send(wake);
        }
    }

    /// Starts a task on the current runtime that reads this process's FIFO, unless there is one. Each
    /// message is read by one such task, which wakes waiters on all runtimes.
    pub(crate) fn ensure_listener(self: &Arc<Self>) {
        let here = Handle::current().id();
        let mut listeners = self.listeners.lock();
        // A runtime that ended has ended its tasks, and its id may be reused.
        listeners.retain(|(_, listener)| !listener.is_finished());
        if listeners.iter().any(|(runtime, _)| *runtime == here) {
            return;
        }
        let fifo = self.fifos.open_own(self.table.me()).and_then(|fifo| {
            let readable = async_fd::readable(fifo);
            readable.map_err(|error| Fault::io("listening in", &self.table.dir, error))
        });
        match fifo {
            Ok(fifo) => {
                let listening = tokio::spawn(listen(fifo, Arc::downgrade(self)));
                listeners.push((here, listening.abort_handle()));
            }
            Err(fault) => {
                tracing::warn!(?fault, "wake-ups cannot be received; waiters poll instead");
            }
        }
    }

    fn receive(&self, bytes: &[u8]) {
        match parse(bytes) {
            Some(records) => records.for_each(|index| self.claim_index.notify(index)),
            None => self.claim_index.notify_all(),
        }
        let flags = self.table.map.word(self.table.me().flags_at());
        if let Some(flags) = flags
            && flags.load(Ordering::Acquire) & OVERFLOW != 0
        {
            flags.fetch_and(!OVERFLOW, Ordering::AcqRel);
            self.claim_index.notify_all();
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        for (_, listener) in self.listeners.get_mut() {
            listener.abort();
        }
    }
}

async fn listen(fifo: AsyncFd<OwnedFd>, wakes: Weak<Wakes>) {
    let mut bytes = [0; 4096];
    loop {
        let Ok(mut ready) = fifo.readable().await else {
            return;
        };
        let read = ready.try_io(|fifo| Ok(rustix::io::read(fifo, &mut bytes)?));
        match read {
            Ok(Ok(read)) => {
                if read < bytes.len() {
                    // The FIFO is empty. Clearing the readiness now spares a read that would fail.
                    ready.clear_ready();
                }
                match wakes.upgrade() {
                    Some(wakes) => wakes.receive(&bytes[..read]),
                    None => return,
                }
            }
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => {
                tracing::warn!(%error, "wake-ups can no longer be read; waiters poll instead");
                return;
            }
            // Not ready after all, or interrupted.
            _ => {}
        }
    }
}

/// The FIFOs of all slots.
///
/// Only the few that were used last stay open: descriptors belong to the host program, and there may be
/// thousands of processes. Each is opened for reading as well as writing, so that it has a reader even if
/// its process has died: a write without a reader would raise SIGPIPE, which ends programs that do not
/// ignore it. The next process in the slot finds such a message and wakes a waiter for nothing.
#[derive(Debug)]
pub(crate) struct WakeFifos {
    dir: PathBuf,
    access: Access,
    /// Slots and their FIFOs, the most recently used last.
    open: Mutex<Vec<(u32, Arc<File>)>>,
}

/// How many stay open. It saves two processes that alternate three quarters of a wake-up's cost.
const KEPT_OPEN: usize = 8;

impl WakeFifos {
    pub(crate) fn new(dir: &Path, access: Access) -> Self {
        Self { dir: dir.join("wake"), access, open: Mutex::default() }
    }

    /// Opens this process's own FIFO and creates it if it is missing. It is open for writing too, so that
    /// it never reports an end of file. It is not emptied: its messages may be for a waiter of another
    /// runtime.
    pub(crate) fn open_own(&self, me: ProcessSlot) -> Result<OwnedFd> {
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

    /// Sends a message. False if the FIFO is full: then the reader must check all its waiters.
    pub(crate) fn send(&self, wake: Wake) -> bool {
        let Ok(fifo) = self.writer(wake.process.slot) else {
            // The FIFO was deleted, or belongs to another user: the process's waiters poll.
            return true;
        };
        let message = pair(wake.index, wake.generation).to_ne_bytes();
        retry_on_intr(|| rustix::io::write(&fifo, &message)) != Err(Errno::AGAIN)
    }

    fn writer(&self, slot: u32) -> Result<Arc<File>> {
        let mut kept = self.open.lock();
        let position = kept.iter().position(|(open, _)| *open == slot);
        let fifo = match position {
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

    /// Opens a FIFO. Refuses files of other types and of other users.
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

/// The record indices in the bytes from a FIFO. `None` if the bytes are not whole messages.
pub(crate) fn parse(bytes: &[u8]) -> Option<impl Iterator<Item = u32>> {
    let (messages, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| messages.iter().map(|bytes| low(u64::from_ne_bytes(*bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_and_a_full_fifo_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("wake")).unwrap();
        let wake_fifos = WakeFifos::new(dir.path(), Access::default());
        let process = ProcessSlot { slot: 5, generation: 1 };
        let wake = Wake { process, index: 42, generation: 7 };
        assert!(wake_fifos.send(wake), "without a FIFO there is nothing to do");
        drop(wake_fifos.open_own(process).unwrap());
        assert!(wake_fifos.send(wake), "without a reader the message is kept");
        let fifo = wake_fifos.open_own(process).unwrap();
        assert!(wake_fifos.send(wake));
        let mut bytes = [0; 64];
        let read = rustix::io::read(&fifo, &mut bytes).unwrap();
        let records: Vec<u32> = parse(&bytes[..read]).unwrap().collect();
        assert_eq!(records, [42, 42]);
        let mut sent = 0;
        while wake_fifos.send(wake) {
            sent += 1;
            assert!(sent < 1_000_000);
        }
        assert!(parse(&[1, 2, 3]).is_none());
    }
}
