//! One attempt's identity.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::{LockName, Mode, OwnerId};

/// One attempt to hold a lock: minted before the first byte leaves, and sent unchanged with every
/// call about it, so that each call can be repeated without harm.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// Whose claim it is. Fresh for every attempt.
    pub owner: OwnerId,
    /// How the lock is to be held.
    pub mode: Mode,
    /// How long a grant is good without a renewal.
    pub ttl: Duration,
    /// Where the claim comes from, for whoever inspects the lock.
    pub origin: Arc<Origin>,
    /// What the claim is for, for whoever inspects the lock. May be empty.
    pub label: Arc<str>,
}

#[cfg(test)]
impl Claim {
    /// A claim on the lock `a` with a TTL of 30 s, for tests.
    pub(crate) fn sample() -> Self {
        Self {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::random(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            origin: Origin::here(),
            label: "".into(),
        }
    }
}

/// The process a claim comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The machine's host name.
    pub host: String,
    /// The process id there.
    pub pid: u32,
}

impl Origin {
    /// This process.
    pub fn here() -> Arc<Self> {
        static HOST: LazyLock<String> = LazyLock::new(host_name);
        Arc::new(Self { host: HOST.clone(), pid: std::process::id() })
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
