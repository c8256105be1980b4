//! The store: what is kept open, and the tasks that listen.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Eviction, Fencing, QueueTicket, Released, Renewal,
    Store, WaitPolicy,
};
use tenure_core::{Finding, LockName, LockState, Result};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use crate::access::Access;
use crate::clock::CLOCK;
use crate::death::Watches;
use crate::diagnose;
use crate::fault::{self, Fault};
use crate::line::Wake;
use crate::members::{IN_USE, OVERFLOW};
use crate::options::LocalOptions;
use crate::readiness;
use crate::reserve::Reserver;
use crate::seats::Seats;
use crate::table::{Setup, Table};
use crate::txn::Txn;
use crate::wait::Look;
use crate::wake::{self, Bells};

/// Locks shared by the processes of one Linux machine, in a directory.
///
/// Cloning is cheap, and clones share one place among the table's members. When the last clone is
/// dropped, what it still held is given up.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_local::LocalStore;
///
/// let store = LocalStore::open("/var/lib/app/locks")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LocalStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) seats: Arc<Seats>,
    pub(crate) watches: Watches,
    pub(crate) reserver: Arc<Reserver>,
    /// Itself, for a thread that may outlive it.
    pub(crate) this: Weak<Self>,
    bells: Bells,
    /// The tasks that hear what other processes tell, one on each runtime with a waiter: a runtime
    /// that lives but is not polled hears nothing.
    listeners: Mutex<Vec<(runtime::Id, AbortHandle)>>,
}

impl LocalStore {
    /// Opens a directory that is private to this user and on a local disk, and creates it if it is
    /// missing. [`LocalOptions`] opens others.
    ///
    /// # Errors
    /// Those of [`LocalOptions::open`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        LocalOptions::new().open(dir)
    }

    /// For tests: opens with a boot id and a limit of their choice.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_with(dir: impl AsRef<Path>, setup: Setup) -> Result<Self> {
        LocalOptions::new().for_test(setup).open(dir)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.table.dir
    }

    pub(crate) fn start(dir: &Path, access: Access, setup: Setup) -> fault::Result<Self> {
        let bells = Bells::new(dir, access.clone());
        let table = Table::open(dir, access, setup)?;
        // Listening starts with the first wait; that it can is found out now.
        drop(bells.own(table.me())?);
        let inner = Arc::new_cyclic(|this| Inner {
            table,
            seats: Arc::default(),
            watches: Watches::default(),
            reserver: Arc::default(),
            this: this.clone(),
            bells,
            listeners: Mutex::default(),
        });
        inner.move_in()?;
        Ok(Self { inner })
    }

    fn run<T>(
        &self,
        operation: &'static str,
        lock: &LockName,
        work: impl FnOnce(&Inner) -> Result<T, (Fault, bool)>,
    ) -> Result<T> {
        work(&self.inner).map_err(|(fault, unknown)| {
            let error = fault.during(operation, self.dir()).about(lock);
            if unknown { error.with_unknown_effect() } else { error }
        })
    }
}

impl Inner {
    /// Changes the table, and then tells those who have news. An error after part of the work was
    /// committed comes with `true`.
    pub(crate) fn change<T>(
        &self,
        work: impl FnOnce(&mut Txn<'_>, &mut Vec<Wake>) -> fault::Result<T>,
    ) -> Result<T, (Fault, bool)> {
        let mut wakes = Vec::new();
        // A table that is broken does not add up; then this is why.
        let broken = |fault| (self.table.map.check().err().unwrap_or(fault), false);
        let mut txn = Txn::begin(&self.table).map_err(broken)?;
        let done = work(&mut txn, &mut wakes).and_then(|value| txn.commit().map(|()| value));
        let committed = txn.has_committed();
        let is_low = txn.is_low_on_tokens() || txn.is_low_on_room();
        drop(txn);
        // A page that is gone may have been read as zeros.
        self.table.map.check().map_err(|fault| (fault, true))?;
        if is_low {
            self.reserve_ahead();
        }
        for wake in wakes {
            self.tell(wake);
        }
        done.map_err(|fault| (fault, committed))
    }

    fn tell(&self, wake: Wake) {
        if wake.member == self.table.me() {
            return self.seats.notify(wake.index);
        }
        if !self.bells.ring(wake)
            && let Some(flags) = self.table.map.word(wake.member.flags_at())
        {
            flags.fetch_or(OVERFLOW, Ordering::AcqRel);
            // The reader may have emptied the FIFO before the flag was up; then this is heard.
            self.bells.ring(wake);
        }
    }

    /// Clears up after the slot's last member, if it left anything.
    fn move_in(&self) -> fault::Result<()> {
        let me = self.table.me();
        let Some(flags) = self.table.map.word(me.flags_at()) else {
            return Err(Fault::damaged("the file is shorter than it says"));
        };
        if flags.load(Ordering::Acquire) & IN_USE != 0 {
            self.reap_slot(me.slot, |member| member != me)?;
        }
        flags.store(IN_USE, Ordering::Release);
        self.table.map.check()
    }

    /// Starts a task on this runtime that hears what other processes tell, if there is none. Each
    /// wake-up is read by one such task, and reaches the waiters of all runtimes.
    fn listen_here(self: &Arc<Self>) {
        let here = Handle::current().id();
        let mut listeners = self.listeners.lock();
        // Those of runtimes that have ended, of which this one may have got the id.
        listeners.retain(|(_, listener)| !listener.is_finished());
        if listeners.iter().any(|(runtime, _)| *runtime == here) {
            return;
        }
        let fifo = self.bells.own(self.table.me()).and_then(|fifo| {
            let readable = readiness::readable(fifo);
            readable.map_err(|error| Fault::io("listening in", &self.table.dir, error))
        });
        match fifo {
            Ok(fifo) => {
                let listening = tokio::spawn(listen(fifo, Arc::downgrade(self)));
                listeners.push((here, listening.abort_handle()));
            }
            Err(fault) => tracing::warn!(?fault, "wake-ups are not heard; waiters poll instead"),
        }
    }

    fn heard(&self, bytes: &[u8]) {
        match wake::parse(bytes) {
            Some(records) => records.for_each(|index| self.seats.notify(index)),
            None => self.seats.notify_all(),
        }
        let flags = self.table.map.word(self.table.me().flags_at());
        if let Some(flags) = flags
            && flags.load(Ordering::Acquire) & OVERFLOW != 0
        {
            flags.fetch_and(!OVERFLOW, Ordering::AcqRel);
            self.seats.notify_all();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (_, listener) in self.listeners.get_mut() {
            listener.abort();
        }
        let me = self.table.me();
        // Best effort: other processes clear up what stays behind, also where the table is broken
        // for this one.
        if self.reap_slot(me.slot, |member| member == me).is_ok()
            && let Some(flags) = self.table.map.word(me.flags_at())
        {
            flags.store(0, Ordering::Release);
        }
    }
}

async fn listen(fifo: AsyncFd<std::os::fd::OwnedFd>, inner: Weak<Inner>) {
    let mut bytes = [0; 4096];
    loop {
        let Ok(mut ready) = fifo.readable().await else {
            return;
        };
        let read = ready.try_io(|fifo| Ok(rustix::io::read(fifo, &mut bytes)?));
        match read {
            Ok(Ok(read)) => {
                if read < bytes.len() {
                    // Nothing is left, so the next readiness is a new one: spares a read.
                    ready.clear_ready();
                }
                match inner.upgrade() {
                    Some(inner) => inner.heard(&bytes[..read]),
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

#[async_trait]
impl Store for LocalStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(Fencing::Until {
            fault: "the directory, or its file `tokens`, is deleted or restored from a copy while \
                    the wall clock is behind the last token (tokens then start from the clock, at \
                    1,048,576 per second), or the disk loses what it has confirmed as written",
        });
        capabilities.tells_losses = false;
        capabilities.clock = CLOCK;

        capabilities
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.run("claim", &claim.name, |inner| inner.claim(claim, policy))
    }

    async fn wait(&self, claim: &Claim, place: &QueueTicket) -> Result<ClaimOutcome> {
        self.inner.listen_here();
        let subscription = self.inner.seats.subscribe(place.mark as u32);
        let mut _watching = Vec::new();
        loop {
            let look = self.run("wait for", &claim.name, |inner| inner.look(claim, place))?;
            match look {
                Look::ClaimOutcome(answer) => return Ok(answer),
                Look::Watch(members) => {
                    let watch = |member| Inner::watch(&self.inner, member);
                    _watching = members.into_iter().filter_map(watch).collect();
                }
            }
            subscription.news().await;
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.run("renew", &claim.name, |inner| inner.renew(claim))
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.run("release", &claim.name, |inner| inner.release(claim))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.run("inspect", name, |inner| inner.inspect(name))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let listed = self.inner.list(prefix);
        listed.map_err(|(fault, _)| fault.during("list locks", self.dir()))
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.run("evict from", &eviction.name, |inner| inner.evict(eviction))
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        diagnose::diagnose(&self.inner)
            .map_err(|fault| fault.during("diagnose the local store", self.dir()))
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStore")
            .field("dir", &self.dir())
            .field("member", &self.inner.table.me())
            .finish_non_exhaustive()
    }
}
