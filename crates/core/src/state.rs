//! What a store shows of one lock.

use std::time::Duration;

use crate::{LockName, Mode, Token};

/// A snapshot of one lock: its holders and its queue of waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockState {
    /// The lock.
    pub name: LockName,
    /// The claims that hold it now.
    pub holders: Vec<Holder>,
    /// The claims that wait for it, in the order of the queue.
    pub waiters: Vec<Waiter>,
}

impl LockState {
    /// A lock with these holders and waiters.
    pub const fn new(name: LockName, holders: Vec<Holder>, waiters: Vec<Waiter>) -> Self {
        Self { name, holders, waiters }
    }

    /// A lock without holders and waiters.
    pub const fn free(name: LockName) -> Self {
        Self::new(name, Vec::new(), Vec::new())
    }

    /// Whether the lock has neither holders nor waiters.
    pub const fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// A claim that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holder {
    /// The owner id, as the store spells it: 32 hexadecimal digits for a claim of tenure.
    pub owner: String,
    /// How the lock is held.
    pub mode: Mode,
    /// The fencing token, if the store gives one.
    pub token: Option<Token>,
    /// The holder's machine, if known.
    pub host: Option<String>,
    /// The holder's process id, if known.
    pub pid: Option<u32>,
    /// What the lock is held for. May be empty.
    pub label: String,
    /// How long the lock has been held, if known. Other projects' clients do not record it.
    pub age: Option<Duration>,
    /// How long the grant lasts without a renewal. `None`: it does not end (a lock of another client
    /// without a TTL).
    pub expires_in: Option<Duration>,
    /// How often it has entered a re-entrant lock of another client, if the store counts that. A holder of
    /// tenure counts its own entries.
    pub entered: Option<u64>,
}

impl Holder {
    /// A holder of which only the owner and the mode are known. Set the other fields as far as the store
    /// knows them.
    pub fn new(owner: impl Into<String>, mode: Mode) -> Self {
        Self {
            owner: owner.into(),
            mode,
            token: None,
            host: None,
            pid: None,
            label: String::new(),
            age: None,
            expires_in: None,
            entered: None,
        }
    }
}

/// A claim that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Waiter {
    /// The owner id, as the store spells it.
    pub owner: String,
    /// How the lock is to be held.
    pub mode: Mode,
    /// The waiter's machine, if known.
    pub host: Option<String>,
    /// The waiter's process id, if known.
    pub pid: Option<u32>,
    /// What the lock is wanted for. May be empty.
    pub label: String,
    /// How long the claim has waited. Zero if unknown.
    pub age: Duration,
}

impl Waiter {
    /// A waiter of which only the owner and the mode are known. Set the other fields as far as the store
    /// knows them.
    pub fn new(owner: impl Into<String>, mode: Mode) -> Self {
        let (owner, label) = (owner.into(), String::new());
        Self { owner, mode, host: None, pid: None, label, age: Duration::ZERO }
    }
}
