//! The public store: it opens the parts and passes each call to its operation.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Fencing, QueueTicket, Released,
    Renewal, Store, WaitPolicy,
};
use tenure_core::{AuditRecord, Finding, Holder, LockName, LockState, Result};

use crate::access::Access;
use crate::claim_index::ClaimIndex;
use crate::claims::WaitStep;
use crate::clock::CLOCK;
use crate::diagnose;
use crate::fault::{self, Fault};
use crate::options::LocalOptions;
use crate::process_slots::IN_USE;
use crate::process_watch::Watches;
use crate::queue::Wake;
use crate::reservation::Reserver;
use crate::table::{Setup, Table};
use crate::txn::Txn;
use crate::wakes::{WakeFifos, Wakes};

/// Locks shared by the processes of one Linux machine, in a directory.
///
/// Cloning is cheap, and clones share one process slot in the table. When the last clone is dropped, its
/// locks are released.
///
/// ```no_run
/// # async fn example() -> tenure::Result<()> {
/// use std::sync::Arc;
/// use tenure::{Client, local};
///
/// let client = Client::new(Arc::new(local::Store::open("/var/lib/app/locks")?))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LocalStore {
    pub(crate) inner: Arc<Inner>,
}

/// One open store.
pub(crate) struct Inner {
    pub(crate) table: Arc<Table>,
    pub(crate) claim_index: Arc<ClaimIndex>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) watches: Watches,
    pub(crate) reserver: Arc<Reserver>,
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
        let fifos = WakeFifos::new(dir, access.clone());
        let table = Arc::new(Table::open(dir, access, setup)?);
        // The FIFO is read from the first wait on. If it cannot be opened, that is an error now.
        drop(fifos.open_own(table.me())?);
        let claim_index = Arc::<ClaimIndex>::default();
        let wakes = Wakes::new(Arc::clone(&table), Arc::clone(&claim_index), fifos);
        let reserver = Reserver::new(&table);
        let (wakes, watches) = (Arc::new(wakes), Watches::default());
        let inner = Arc::new(Inner { table, claim_index, wakes, watches, reserver });
        inner.clean_slot()?;
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
    /// Changes the table, and then wakes the waiters that `work` names. An error comes with `true` if
    /// part of the work was committed.
    pub(crate) fn change<T>(
        &self,
        work: impl FnOnce(&mut Txn<'_>, &mut Vec<Wake>) -> fault::Result<T>,
    ) -> Result<T, (Fault, bool)> {
        let mut wakes = Vec::new();
        // On a broken mapping any check can fail; the broken mapping is the cause to report.
        let broken = |fault| (self.table.map.check().err().unwrap_or(fault), false);
        let mut txn = Txn::begin(&self.table).map_err(broken)?;
        let done = work(&mut txn, &mut wakes).and_then(|value| txn.commit().map(|()| value));
        let committed = txn.has_committed();
        let is_low = txn.is_low_on_tokens() || txn.is_low_on_room();
        drop(txn);
        // A lost page may have been read as zeros.
        self.table.map.check().map_err(|fault| (fault, true))?;
        if is_low {
            self.reserver.reserve_ahead();
        }
        for wake in wakes {
            self.wakes.send(wake);
        }
        done.map_err(|fault| (fault, committed))
    }

    /// Removes the claims of the slot's previous process, if it left any.
    fn clean_slot(&self) -> fault::Result<()> {
        let me = self.table.me();
        let Some(flags) = self.table.map.word(me.flags_at()) else {
            return Err(Fault::damaged("the file is shorter than its header says"));
        };
        if flags.load(Ordering::Acquire) & IN_USE != 0 {
            self.remove_claims_of(me.slot, |process| process != me)?;
        }
        flags.store(IN_USE, Ordering::Release);
        self.table.map.check()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let me = self.table.me();
        // If this fails, for example because the table is broken for this process, other processes
        // remove the claims.
        if self.remove_claims_of(me.slot, |process| process == me).is_ok()
            && let Some(flags) = self.table.map.word(me.flags_at())
        {
            flags.store(0, Ordering::Release);
        }
    }
}

#[async_trait]
impl Store for LocalStore {
    fn capabilities(&self) -> Capabilities {
        let fencing = Fencing::Until {
            fault: "the directory, or its file `tokens`, is deleted or restored from a copy while \
                    the wall clock is behind the last token (tokens then start from the clock, at \
                    1,048,576 per second), or the disk loses what it has confirmed as written",
        };
        Capabilities::none()
            .fencing(fencing)
            .fifo()
            .waiters()
            .push()
            .shared()
            .permits()
            .mixed_modes()
            .downgrade()
            .detects_death()
            .audits()
            .cross_process()
            .ages()
            .clock(CLOCK)
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.run("claim", &claim.name, |inner| inner.claim(claim, policy))
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.inner.wakes.ensure_listener();
        let subscription = self.inner.claim_index.subscribe(ticket.mark as u32);
        let mut _watching = Vec::new();
        loop {
            let step = self.run("wait for", &claim.name, |inner| inner.wait_step(claim, ticket))?;
            match step {
                WaitStep::Return(outcome) => return Ok(outcome),
                WaitStep::Watch(processes) => {
                    let watch = |process| Inner::watch(&self.inner, process);
                    _watching = processes.into_iter().filter_map(watch).collect();
                }
            }
            subscription.changed().await;
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.run("renew", &claim.name, |inner| inner.renew(claim))
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        self.run("downgrade", &claim.name, |inner| inner.downgrade(claim))
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.run("release", &claim.name, |inner| inner.release(claim))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.run("inspect", name, |inner| inner.inspect(name, true))
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        Ok(self.run("look at the holders of", name, |inner| inner.inspect(name, false))?.holders)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let listed = self.inner.list(prefix);
        listed.map_err(|(fault, _)| fault.during("list locks", self.dir()))
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.run("evict from", &eviction.name, |inner| inner.evict(eviction))
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        self.run("read the records of", name, |inner| inner.audit(name))
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        self.run("write a record of", name, |inner| inner.add_audit_record(name, record))
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
            .field("slot", &self.inner.table.me())
            .finish_non_exhaustive()
    }
}
