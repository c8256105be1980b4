//! Reserving fencing tokens and room for records ahead of need, outside the gate.
//!
//! A process that finds fewer tokens left than half a block makes another block durable on a thread
//! of its own, and then adds it to the table. Nobody waits for that disk unless no token is left at
//! all. One process at a time does so, by a lock on the file; the others find it done. The same
//! thread makes the table's file grow when it is nearly full.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tenure_core::ErrorKind;

use crate::fault::{Fault, Result};
use crate::layout::words_for;
use crate::mapping::allocate_ahead;
use crate::ops::{Outcome, now};
use crate::store::Inner;
use crate::tokens::Tokens;
use crate::txn::Txn;

/// How long a claim that needs a token waits for the disk: an error is better than a hang, and the
/// claim can be repeated.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to wait for tokens: others may use them up before us.
const ATTEMPTS: u32 = 16;
/// How long to leave the disk alone after a failure, while tokens are left: in nanoseconds.
const RETRY_AFTER: u64 = 1_000_000_000;

/// This process's reservation.
#[derive(Debug, Default)]
pub(crate) struct Reserver {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// Reservations that came to an end, well or not.
    finished: u64,
    fault: Option<Fault>,
    retry_at: u64,
}

impl Reserver {
    /// Waits until no reservation is running.
    #[cfg(test)]
    pub(crate) fn finish(&self) {
        self.finished.wait_while(&mut self.state.lock(), |state| state.is_running);
    }
}

impl Inner {
    /// Starts a reservation, unless one is running or has just failed.
    #[cold]
    pub(crate) fn reserve_ahead(&self) {
        #[cfg(test)]
        if self.table.kill.is_alone() {
            return;
        }
        let mut state = self.reserver.state.lock();
        if now() >= state.retry_at
            && let Err(fault) = self.start(&mut state)
        {
            tracing::warn!(?fault, "tokens or room for locks could not be reserved ahead of need");
        }
    }

    /// Does `work`, and does it again when tokens have been reserved, if none was left for it.
    pub(crate) fn with_tokens<T>(&self, work: impl Fn() -> Outcome<T>) -> Outcome<T> {
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

    fn await_tokens(&self) -> Result<()> {
        let mut state = self.reserver.state.lock();
        self.start(&mut state)?;
        let before = state.finished;
        let is_pending = |state: &mut State| state.finished == before;
        let waited = self.reserver.finished.wait_while_for(&mut state, is_pending, PATIENCE);
        if waited.timed_out() {
            let why = format!(
                "all reserved fencing tokens are used up, and {} was not synced to the disk within \
                 {PATIENCE:?}: the disk is slow, or a process that reserves tokens was stopped; \
                 try again",
                self.table.tokens.path().display()
            );
            return Err(Fault::new(ErrorKind::Unreachable, why));
        }
        state.fault.as_ref().map_or(Ok(()), |fault| Err(fault.again()))
    }

    fn start(&self, state: &mut State) -> Result<()> {
        if state.is_running {
            return Ok(());
        }
        let (tokens, inner) = (Arc::clone(&self.table.tokens), self.this.clone());
        let reserver = Arc::clone(&self.reserver);
        let run = move || {
            let (reserved, grown) = (reserve(&tokens, &inner), grow(&inner));
            for fault in reserved.as_ref().err().into_iter().chain(grown.as_ref().err()) {
                tracing::warn!(?fault, "tokens or room for locks could not be reserved");
            }
            let mut state = reserver.state.lock();
            state.is_running = false;
            state.finished += 1;
            let failed = reserved.is_err() || !matches!(grown, Ok(true));
            state.retry_at = if failed { now().saturating_add(RETRY_AFTER) } else { 0 };
            state.fault = reserved.err();
            reserver.finished.notify_all();
        };
        let started = thread::Builder::new().name("tenure-tokens".into()).spawn(run);
        started
            .map_err(|error| Fault::io("starting a thread for", self.table.tokens.path(), error))?;
        state.is_running = true;
        Ok(())
    }
}

/// Makes a block of tokens durable and adds it to the table, unless another process did. While the
/// disk works, the store is not kept open: it may be closed meanwhile.
pub(crate) fn reserve(tokens: &Tokens, inner: &Weak<Inner>) -> Result<()> {
    let _turn = tokens.turn()?;
    let Some(ceiling) = low_ceiling(inner)? else {
        return Ok(());
    };
    let block = tokens.write(ceiling)?;
    #[cfg(test)]
    before_store(inner)?;
    tokens.sync()?;
    let Some(inner) = inner.upgrade() else {
        return Ok(());
    };
    let mut txn = Txn::begin(&inner.table)?;
    txn.add_tokens(block);
    txn.commit()
}

/// Makes the table's file grow if it is nearly full, unless another process did. False where the
/// file system cannot: then a claim does so when it must.
pub(crate) fn grow(inner: &Weak<Inner>) -> Result<bool> {
    let Some((file, path, capacity)) = next_capacity(inner)? else {
        return Ok(true);
    };
    let bytes = words_for(capacity) as u64 * 8;
    let grown = allocate_ahead(&file, bytes).map_err(|error| Fault::io("growing", &path, error))?;
    if grown && let Some(inner) = inner.upgrade() {
        let mut txn = Txn::begin(&inner.table)?;
        txn.add_room(capacity)?;
        txn.commit()?;
    }
    Ok(grown)
}

/// The table's file, and the records it should have room for, if it is nearly full.
fn next_capacity(inner: &Weak<Inner>) -> Result<Option<(File, PathBuf, u32)>> {
    let Some(inner) = inner.upgrade() else {
        return Ok(None);
    };
    let txn = Txn::begin(&inner.table)?;
    if !txn.is_low_on_room() {
        return Ok(None);
    }
    let path = inner.table.dir.join("table");
    let file = inner.table.map.file().try_clone();
    let file = file.map_err(|error| Fault::io("opening", &path, error))?;
    Ok(Some((file, path, txn.next_capacity())))
}

/// The table's ceiling, if it has few tokens left; `None` too if the store is closed.
fn low_ceiling(inner: &Weak<Inner>) -> Result<Option<u64>> {
    let Some(inner) = inner.upgrade() else {
        return Ok(None);
    };
    let txn = Txn::begin(&inner.table)?;
    Ok(txn.is_low_on_tokens().then(|| txn.token_ceiling()))
}

#[cfg(test)]
fn before_store(inner: &Weak<Inner>) -> Result<()> {
    inner.upgrade().map_or(Ok(()), |inner| inner.table.kill.before_store())
}
