//! The store: each call of the contract is one job for the worker.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Eviction, Fencing, QueueTicket, Released, Renewal, Store,
    WaitPolicy, self_test,
};
use tenure_core::{Finding, LockName, LockState, Result};

use crate::queue;
use crate::worker::Worker;

/// Locks in an SQLite file. Clones share its thread and its connection.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    worker: Worker,
    look_every: Duration,
    timeout: Duration,
}

impl SqliteStore {
    /// Opens the file, and creates it if it is missing. `timeout` is how long a call waits for other
    /// processes that write to the file.
    ///
    /// # Errors
    /// If the file cannot be opened, is no database, or another process keeps it locked.
    pub async fn open(path: impl AsRef<Path>, timeout: Duration) -> Result<Self> {
        let worker = Worker::start(path.as_ref(), timeout).await?;
        Ok(Self { worker, look_every: Duration::from_millis(20), timeout })
    }

    /// The same store, whose waiters check at this interval whether they hold the lock.
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look_every = interval;
        self
    }
}

#[async_trait]
impl Store for SqliteStore {
    /// Promised: the order of arrival, shared holders and permits, tokens, the age of a hold.
    ///
    /// Not promised: `push` (SQLite does not notify a process of another's changes, so waiters look), `detects_death`
    /// (a dead process's rows stay until their terms end), `tells_losses` (a holder that was evicted finds
    /// out when it renews). Terms run on the clock that goes on while the machine sleeps, so a hold does
    /// not survive a suspend.
    fn capabilities(&self) -> Capabilities {
        let fault = "the file is deleted or replaced by an older copy, or the disk loses what it has \
                     confirmed as written";
        Capabilities::none()
            .fencing(Fencing::Until { fault })
            .fifo()
            .waiters()
            .shared()
            .permits()
            .mixed_modes()
            .cross_process()
            .ages()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let claim = claim.clone();
        self.worker.transact("claim", move |tables| queue::claim(tables, &claim, policy)).await
    }

    async fn wait(&self, claim: &Claim, _: &QueueTicket) -> Result<ClaimOutcome> {
        loop {
            let (name, owner) = (claim.name.clone(), claim.owner);
            let look = move |tables: &_| queue::has_news(tables, &name, owner);
            if self.worker.read("wait for", look).await? {
                // To ask again is also what starts the term anew.
                return Ok(ClaimOutcome::Queued(QueueTicket::default()));
            }
            tokio::time::sleep(self.look_every).await;
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        let claim = claim.clone();
        self.worker.transact("renew", move |tables| queue::renew(tables, &claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let (name, owner) = (claim.name.clone(), claim.owner);
        self.worker.transact("release", move |tables| queue::release(tables, &name, owner)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let name = name.clone();
        self.worker.read("inspect", move |tables| queue::inspect(tables, &name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let prefix = prefix.to_owned();
        let names = self.worker.read("list locks", move |tables| queue::list(tables, &prefix));
        names.await?.iter().map(|name| LockName::new(name)).collect()
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let eviction = eviction.clone();
        self.worker.transact("evict", move |tables| queue::evict(tables, &eviction)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let state = self.worker.read("check the file", queue::check).await?;
        let file = match state.as_str() {
            "ok" => Finding::fine("SQLite finds the file in order"),
            damage => Finding::danger(
                format!("SQLite finds the file damaged: {damage}"),
                "move it away while no lock is held: a new one is created, whose tokens begin anew",
            ),
        };
        let tried = self_test(self, self.timeout, "look at the load of the disk").await;
        Ok(vec![file, tried])
    }
}
