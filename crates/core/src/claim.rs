//! The identity of one attempt to hold a lock.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::{LockName, Mode, OwnerId};

/// One attempt to hold a lock.
///
/// A claim is made before the first request is sent, and is passed unchanged to every call about it. So
/// each call can be repeated, also after its reply was lost, without a second effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// The id of the claim, different for every attempt.
    pub owner: OwnerId,
    /// How the lock is to be held.
    pub mode: Mode,
    /// How long a grant lasts without a renewal.
    pub ttl: Duration,
    /// The process that made the claim, shown when the lock is inspected.
    pub origin: Arc<Origin>,
    /// What the lock is held for, shown when the lock is inspected. May be empty.
    pub label: Arc<str>,
}

impl Claim {
    /// A claim of this process, with a new owner id and no label.
    pub fn new(name: LockName, mode: Mode, ttl: Duration) -> Self {
        let owner = OwnerId::random();
        Self { name, owner, mode, ttl, origin: Origin::here(), label: "".into() }
    }

    /// The same claim with this owner id: to undo a claim of which only the id is known.
    #[must_use]
    pub fn with_owner(mut self, owner: OwnerId) -> Self {
        self.owner = owner;
        self
    }

    /// The same claim with this label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }
}

#[cfg(test)]
impl Claim {
    /// A claim on the lock `a` with a TTL of 30 s, for tests.
    pub(crate) fn sample() -> Self {
        Self::new(LockName::new("a").unwrap(), Mode::Exclusive, Duration::from_secs(30))
    }
}

/// The process that made a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The machine's host name.
    pub host: String,
    /// The process id there.
    pub pid: u32,
}

impl Origin {
    /// The process `pid` on the machine `host`.
    pub fn new(host: impl Into<String>, pid: u32) -> Self {
        Self { host: host.into(), pid }
    }

    /// This process.
    pub fn here() -> Arc<Self> {
        static HOST: LazyLock<String> = LazyLock::new(host_name);
        Arc::new(Self::new(HOST.clone(), std::process::id()))
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".into())
}
