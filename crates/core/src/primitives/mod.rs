//! Mutex, read-write lock and semaphore: three modes of one kind of claim.

mod mutex;
mod rw_lock;
mod semaphore;

pub(crate) use mutex::release_after;
pub use mutex::{FencedMutex, Mutex};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;

use crate::attempt::acquire;
use crate::task::CallSite;
use crate::{Client, Guard, LockName, Mode, Options, Result, Wait};

/// What mutex, read-write lock and semaphore have in common: a name on a store, and how to hold it.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(super) client: Client,
    pub(super) name: LockName,
    options: Options,
}

impl Lock {
    pub(crate) fn new(client: Client, name: LockName) -> Self {
        Self { client, name, options: Options::new() }
    }

    pub(super) fn with(self, options: Options) -> Self {
        Self { options, ..self }
    }

    pub(super) fn without_keeping(self, what: &'static str) -> Self {
        let options = self.options.clone().without_keeping(what);
        self.with(options)
    }

    pub(super) async fn acquire(&self, mode: Mode, wait: Wait, site: CallSite) -> Result<Guard> {
        acquire(&self.client.inner, &self.name, mode, &self.options, wait, site).await
    }
}
