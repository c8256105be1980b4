//! Reservation of fencing tokens and of room for records ahead of need, outside the gate.
//!
//! A change that finds less than half a block of tokens left starts a thread. The thread makes another block
//! durable and adds it to the table. A claim waits for the disk only if no token is left at all. A lock on
//! the file `tokens` lets one process at a time reserve; the others then find enough tokens. The same thread
//! grows the table's file when it is nearly full.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tenure_core::ErrorKind;

use crate::claims::{Outcome, now};
use crate::fault::{Fault, Result};
use crate::layout::words_for;
use crate::mapping::allocate_ahead;
use crate::table::Table;
use crate::tokens::Tokens;
use crate::txn::Txn;

/// How long a claim that needs a token waits for the disk. Then it fails and can be repeated.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a claim waits for tokens: other processes may use up a new block first.
const ATTEMPTS: u32 = 16;
/// The pause after a failed reservation while tokens are left, in nanoseconds.
const RETRY_AFTER: u64 = 1_000_000_000;

/// Runs the reservations of this process, one at a time.
#[derive(Debug)]
pub(crate) struct Reserver {
    /// Not kept open by a reservation: the store may be closed while the disk works.
    table: Weak<Table>,
    tokens: Arc<Tokens>,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// Reservations that have ended, successfully or not.
    finished: u64,
    /// The error of the last reservation of tokens.
    fault: Option<Fault>,
    retry_at: u64,
}

impl Reserver {
    pub(crate) fn new(table: &Arc<Table>) -> Arc<Self> {
        Arc::new(Self {
            table: Arc::downgrade(table),
            tokens: Arc::clone(&table.tokens),
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// Starts a reservation, unless one is running or has just failed.
    #[cold]
    pub(crate) fn reserve_ahead(self: &Arc<Self>) {
        #[cfg(test)]
        if self.table.upgrade().is_some_and(|table| table.kill.is_alone()) {
            return;
        }
        let mut state = self.state.lock();
        if now() >= state.retry_at
            && let Err(fault) = self.start(&mut state)
        {
            tracing::warn!(?fault, "tokens or room for locks could not be reserved ahead of need");
        }
    }

    /// Does `work`. If no token is left for it, waits for a reservation and repeats it.
    #[inline]
    pub(crate) fn with_tokens<T>(self: &Arc<Self>, work: impl Fn() -> Outcome<T>) -> Outcome<T> {
        for _ in 0..ATTEMPTS {
            match work() {
                Err((fault, committed)) if fault.is_no_token() => {
                    self.await_tokens().map_err(|fault| (fault, committed))?;
                }
                done => return done,
            }
        }
        work()
    }

    fn await_tokens(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        let before = state.finished;
        let is_pending = |state: &mut State| state.finished == before;
        let waited = self.finished.wait_while_for(&mut state, is_pending, TOKEN_TIMEOUT);
        if waited.timed_out() {
            let why = format!(
                "all reserved fencing tokens are used up, and {} was not synced to the disk within \
                 {TOKEN_TIMEOUT:?}: the disk is slow, or a process that reserves tokens was stopped; \
                 try again",
                self.tokens.path().display()
            );
            return Err(Fault::new(ErrorKind::Unreachable, why));
        }
        state.fault.as_ref().map_or(Ok(()), |fault| Err(fault.again()))
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.is_running {
            return Ok(());
        }
        let reserver = Arc::clone(self);
        let run = move || reserver.run();
        let started = thread::Builder::new().name("tenure-tokens".into()).spawn(run);
        started.map_err(|error| Fault::io("starting a thread for", self.tokens.path(), error))?;
        state.is_running = true;
        Ok(())
    }

    fn run(&self) {
        let (reserved, grown) = (reserve(&self.tokens, &self.table), grow(&self.table));
        for fault in reserved.as_ref().err().into_iter().chain(grown.as_ref().err()) {
            tracing::warn!(?fault, "tokens or room for locks could not be reserved");
        }
        let mut state = self.state.lock();
        state.is_running = false;
        state.finished += 1;
        let failed = reserved.is_err() || !matches!(grown, Ok(true));
        state.retry_at = if failed { now().saturating_add(RETRY_AFTER) } else { 0 };
        state.fault = reserved.err();
        self.finished.notify_all();
    }

    /// Waits until no reservation is running.
    #[cfg(test)]
    pub(crate) fn finish(&self) {
        self.finished.wait_while(&mut self.state.lock(), |state| state.is_running);
    }
}

/// Makes a block of tokens durable and adds it to the table, unless the table has enough.
pub(crate) fn reserve(tokens: &Tokens, table: &Weak<Table>) -> Result<()> {
    let _lock = tokens.lock_reservation()?;
    let Some(ceiling) = ceiling_if_low(table)? else {
        return Ok(());
    };
    let block = tokens.write(ceiling)?;
    #[cfg(test)]
    before_store(table)?;
    tokens.sync()?;
    let Some(table) = table.upgrade() else {
        return Ok(());
    };
    let mut txn = Txn::begin(&table)?;
    txn.add_tokens(block);
    txn.commit()
}

/// Grows the table's file if it is nearly full. False if the file system cannot allocate ahead: then a
/// claim grows it when it must.
pub(crate) fn grow(table: &Weak<Table>) -> Result<bool> {
    let Some((file, path, capacity)) = next_capacity(table)? else {
        return Ok(true);
    };
    let bytes = words_for(capacity) as u64 * 8;
    let grown = allocate_ahead(&file, bytes).map_err(|error| Fault::io("growing", &path, error))?;
    if grown && let Some(table) = table.upgrade() {
        let mut txn = Txn::begin(&table)?;
        txn.add_room(capacity)?;
        txn.commit()?;
    }
    Ok(grown)
}

/// The table's file and the capacity it should have, if it is nearly full.
fn next_capacity(table: &Weak<Table>) -> Result<Option<(File, PathBuf, u32)>> {
    let Some(table) = table.upgrade() else {
        return Ok(None);
    };
    let txn = Txn::begin(&table)?;
    if !txn.is_low_on_room() {
        return Ok(None);
    }
    let path = table.dir.join("table");
    let file = table.map.file().try_clone();
    let file = file.map_err(|error| Fault::io("opening", &path, error))?;
    Ok(Some((file, path, txn.next_capacity())))
}

/// The table's ceiling, if it has few tokens left. `None` also if the store is closed.
fn ceiling_if_low(table: &Weak<Table>) -> Result<Option<u64>> {
    let Some(table) = table.upgrade() else {
        return Ok(None);
    };
    let txn = Txn::begin(&table)?;
    Ok(txn.is_low_on_tokens().then(|| txn.token_ceiling()))
}

#[cfg(test)]
fn before_store(table: &Weak<Table>) -> Result<()> {
    table.upgrade().map_or(Ok(()), |table| table.kill.before_store())
}
