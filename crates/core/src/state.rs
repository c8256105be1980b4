//! What a store knows about one lock, for those who ask why.

use std::time::Duration;

use crate::{LockName, Mode, Token};

/// A snapshot of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The lock.
    pub name: LockName,
    /// Who holds it now.
    pub holders: Vec<Holder>,
    /// Who waits, first in line first.
    pub waiters: Vec<Waiter>,
}

impl LockState {
    /// The state of a lock nobody holds or waits for.
    pub const fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new() }
    }

    /// Whether nobody holds it and nobody waits.
    pub const fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// One who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner, in the store's own spelling (32 hexadecimal digits for tenure's claims).
    pub owner: String,
    /// How it is held.
    pub mode: Mode,
    /// The fencing token, where the store gives one.
    pub token: Option<Token>,
    /// The holder's machine, where known.
    pub host: Option<String>,
    /// The holder's process id, where known.
    pub pid: Option<u32>,
    /// What it is held for. May be empty.
    pub label: String,
    /// How long it has been held, where known (a foreign lock does not say).
    pub age: Option<Duration>,
    /// When the grant ends unless it is renewed. `None`: never (a foreign lock without a TTL).
    pub expires_in: Option<Duration>,
}

/// One who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The owner, in the store's own spelling.
    pub owner: String,
    /// How it is to be held.
    pub mode: Mode,
    /// The waiter's machine, where known.
    pub host: Option<String>,
    /// The waiter's process id, where known.
    pub pid: Option<u32>,
    /// What it is wanted for. May be empty.
    pub label: String,
    /// How long it has waited.
    pub age: Duration,
}
