//! Changes to the table that happen as a whole or not at all, also if the process is killed.
//!
//! Before a word is changed, its number and old value go into a journal in the table, and the
//! journal's length is raised: three stores that no compiler or processor may reorder (each is a
//! release). Whoever passes the gate and finds the journal not empty puts the old values back, in
//! reverse. To commit is to set the length to zero.
//!
//! One kind of store is spared the journal: of a word that meant nothing at the last commit, to
//! which a roll-back returns. A record's contents mean nothing while it is free, and its link in
//! the free list means nothing while it is in use. So it matters whether a record is still what it
//! was at the last commit: once a change has given a record back, the next one it takes may be that
//! one, and once it has taken one, the next one it gives back may be that one.
//!
//! A process that loses a page of the table (module `sigbus`) counts as killed from then on: it
//! begins no change, commits none, and leaves the journal for the next process to undo.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::ErrorKind;
use tenure_proto::{Reserve, Token};

use crate::fault::{Fault, Result};
use crate::gate::{self, Passed};
use crate::layout::*;
use crate::members::{self, Member};
use crate::table::{Table, load, state_check};

/// The right to change the table, and the way to do it. Dropped without
/// [`commit`](Txn::commit), it leaves the table as it was.
#[derive(Debug)]
pub(crate) struct Txn<'t> {
    pub(crate) table: &'t Table,
    words: &'t [AtomicU64],
    entries: usize,
    commits: u32,
    /// Whether a record was taken from the free list, or put there, since the last commit.
    has_taken: bool,
    has_freed: bool,
    lacks_token: bool,
    /// The state as it will be after the commit; in the table it is still as before.
    state: [u64; STATE_WORDS],
    state_before: [u64; STATE_WORDS],
    #[cfg(test)]
    killed: bool,
    #[cfg(test)]
    reads: std::cell::Cell<usize>,
}

const FREE_AND_CARVED: usize = 0;
const CAPACITY: usize = 1;
const NEXT_TOKEN: usize = 2;
const CEILING: usize = 3;

impl<'t> Txn<'t> {
    /// Passes the gate, and undoes what somebody who died inside left half done.
    pub(crate) fn begin(table: &'t Table) -> Result<Self> {
        table.map.check()?;
        let gate = table.map.half(GATE).ok_or_else(short)?;
        let is_dead = |inside| table.lives(Member::from_gate(inside)).map(|lives| !lives);
        if let Passed::Blocked(inside) = gate::enter(gate, table.me().at_gate(), is_dead)? {
            return Err(blocked(table, Member::from_gate(inside)));
        }
        let mut txn = Self {
            table,
            words: table.map.words(),
            entries: 0,
            commits: 0,
            has_taken: false,
            has_freed: false,
            lacks_token: false,
            state: [0; STATE_WORDS],
            state_before: [0; STATE_WORDS],
            #[cfg(test)]
            killed: false,
            #[cfg(test)]
            reads: std::cell::Cell::default(),
        };
        if txn.get(JOURNAL_LENGTH)? != 0 {
            txn.roll_back()?;
        }
        txn.load_state()?;
        Ok(txn)
    }

    /// Whether part of the work is already done for good.
    pub(crate) const fn has_committed(&self) -> bool {
        self.commits > 0
    }

    #[inline]
    pub(crate) fn get(&self, word: usize) -> Result<u64> {
        #[cfg(test)]
        self.reads.update(|reads| reads + 1);
        self.words.get(word).map(load).ok_or_else(short)
    }

    /// Changes a word, so that it can be undone.
    #[inline]
    pub(crate) fn set(&mut self, word: usize, value: u64) -> Result<()> {
        let old = self.get(word)?;
        if old == value {
            return Ok(());
        }
        if self.entries == JOURNAL_ENTRIES {
            return Err(Fault::new(ErrorKind::Internal, "one change is too large for the journal"));
        }
        let at = JOURNAL + self.entries * 2;
        self.put(at, word as u64)?;
        self.put(at + 1, old)?;
        // No word is changed whose old value is on a lost page of the journal.
        self.table.map.check()?;
        self.put(JOURNAL_LENGTH, length_word(self.entries + 1))?;
        self.entries += 1;
        self.table.map.check()?;
        self.put(word, value)
    }

    /// Whether the contents of a record that this change has taken must be journaled.
    #[inline]
    pub(crate) const fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// Writes a word of the contents of a record that this change has taken. Call it with
    /// [`has_freed`](Self::has_freed), asked once for all words.
    #[inline]
    pub(crate) fn fill<const JOURNALED: bool>(&mut self, word: usize, value: u64) -> Result<()> {
        if JOURNALED { self.set(word, value) } else { self.put(word, value) }
    }

    /// Writes a word of the link of a record that this change gives back.
    #[inline]
    pub(crate) fn link_free(&mut self, word: usize, value: u64) -> Result<()> {
        if self.has_taken { self.set(word, value) } else { self.put(word, value) }
    }

    /// Makes the changes so far final. The gate stays ours.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.state != self.state_before {
            for place in 0..STATE_WORDS {
                self.set(STATE + place, self.state[place])?;
            }
            self.set(STATE_CHECK, state_check(&self.state))?;
            self.state_before = self.state;
        }
        if self.entries > 0 {
            self.clear_journal()?;
            self.commits += 1;
        }
        (self.has_taken, self.has_freed) = (false, false);
        Ok(())
    }

    /// First record of the free list, zero if it is empty.
    pub(crate) const fn first_free(&self) -> u32 {
        low(self.state[FREE_AND_CARVED])
    }

    /// Records from here on were never used.
    pub(crate) const fn carved(&self) -> u32 {
        high(self.state[FREE_AND_CARVED])
    }

    /// Records the file has room for now.
    pub(crate) const fn capacity(&self) -> u32 {
        low(self.state[CAPACITY])
    }

    /// The first free record is in use now, and this one is the first.
    #[inline]
    pub(crate) const fn take_free(&mut self, next: u32) {
        self.has_taken = true;
        self.state[FREE_AND_CARVED] = pair(next, self.carved());
    }

    /// This record is free now, and the first.
    #[inline]
    pub(crate) const fn add_free(&mut self, record: u32) {
        self.has_freed = true;
        self.state[FREE_AND_CARVED] = pair(record, self.carved());
    }

    /// A record that was never used, after making the file grow if need be.
    pub(crate) fn carve(&mut self) -> Result<u32> {
        let record = self.carved();
        let capacity = low(self.state[CAPACITY]);
        if record >= capacity {
            let limit = self.table.limit;
            if capacity >= limit {
                let why = format!(
                    "the lock table is full: {} locks, holders and waiters in all",
                    limit - 1
                );
                return Err(Fault::new(ErrorKind::Full, why));
            }
            let grown = self.next_capacity();
            let path = self.table.dir.join("table");
            let done = self.table.map.grow(words_for(grown));
            done.map_err(|error| Fault::io("growing", &path, error))?;
            self.words = self.table.map.words();
            self.state[CAPACITY] = u64::from(grown);
        }
        self.state[FREE_AND_CARVED] = pair(self.first_free(), record + 1);
        Ok(record)
    }

    /// Whether the file should grow before records are needed.
    #[inline]
    pub(crate) fn is_low_on_room(&self) -> bool {
        let left = self.capacity().saturating_sub(self.carved());
        left < CHUNK / 4 && self.first_free() == 0 && self.capacity() < self.table.limit
    }

    /// Records the file will have room for when it has grown.
    pub(crate) fn next_capacity(&self) -> u32 {
        self.capacity().saturating_add(CHUNK).min(self.table.limit)
    }

    /// Uses what the file has grown by.
    pub(crate) fn add_room(&mut self, capacity: u32) -> Result<()> {
        let path = self.table.dir.join("table");
        let backed = self.table.map.refresh();
        let backed = backed.map_err(|error| Fault::io("looking at", &path, error))?;
        self.words = self.table.map.words();
        if capacity > self.capacity() && words_for(capacity) <= backed {
            self.state[CAPACITY] = u64::from(capacity);
        }
        Ok(())
    }

    /// The next fencing token; `None` if all that are reserved are used up. No more are
    /// reserved here: waiting for the disk here would block every process.
    #[inline]
    pub(crate) fn mint(&mut self) -> Option<Token> {
        let mut reserve = Reserve::resume(self.state[NEXT_TOKEN], self.state[CEILING]);
        let token = reserve.take();
        self.state[NEXT_TOKEN] = reserve.next();
        self.lacks_token |= token.is_none();
        token
    }

    /// Whether a token was asked for in vain.
    pub(crate) const fn lacks_token(&self) -> bool {
        self.lacks_token
    }

    /// All tokens below this are reserved.
    pub(crate) const fn token_ceiling(&self) -> u64 {
        self.state[CEILING]
    }

    /// Whether more tokens should be reserved.
    #[inline]
    pub(crate) fn is_low_on_tokens(&self) -> bool {
        self.tokens_left() < self.table.tokens.low_water()
    }

    #[inline]
    pub(crate) const fn tokens_left(&self) -> u64 {
        self.state[CEILING].saturating_sub(self.state[NEXT_TOKEN])
    }

    /// Adds tokens that are durably reserved. What is left of earlier ones is used first, unless
    /// there is a gap: another table may have used what is in between, and what is before it.
    pub(crate) const fn add_tokens(&mut self, block: Range<u64>) {
        let ceiling = self.state[CEILING];
        if ceiling > block.start {
            return;
        }
        if ceiling < block.start {
            self.state[NEXT_TOKEN] = block.start;
        }
        self.state[CEILING] = block.end;
    }

    #[inline]
    fn put(&mut self, word: usize, value: u64) -> Result<()> {
        #[cfg(test)]
        self.before_store()?;
        let word = self.words.get(word).ok_or_else(short)?;
        word.store(value, Ordering::Release);
        Ok(())
    }

    fn load_state(&mut self) -> Result<()> {
        for place in 0..STATE_WORDS {
            self.state[place] = self.get(STATE + place)?;
        }
        self.state_before = self.state;
        if self.get(STATE_CHECK)? != state_check(&self.state) {
            return Err(Fault::damaged("its state does not add up"));
        }
        let capacity = self.state[CAPACITY];
        if capacity > u64::from(self.table.limit) || u64::from(self.carved()) > capacity {
            return Err(Fault::damaged("its capacity makes no sense"));
        }
        let words = words_for(capacity as u32);
        if words > self.table.map.backed() {
            let path = self.table.dir.join("table");
            let backed = self.table.map.refresh();
            let backed = backed.map_err(|error| Fault::io("looking at", &path, error))?;
            if words > backed {
                return Err(short());
            }
            self.words = self.table.map.words();
        }
        Ok(())
    }

    /// Puts the old values back, the last one first. Repeating it does no harm.
    #[cold]
    fn roll_back(&mut self) -> Result<()> {
        let length = self.get(JOURNAL_LENGTH)?;
        let entries = low(length) as usize;
        if length != length_word(entries) || entries > JOURNAL_ENTRIES {
            return Err(Fault::damaged("its journal makes no sense"));
        }
        // Whoever was killed may have made the file grow.
        let path = self.table.dir.join("table");
        let looked = self.table.map.refresh();
        looked.map_err(|error| Fault::io("looking at", &path, error))?;
        self.words = self.table.map.words();
        for entry in (0..entries).rev() {
            let word = self.get(JOURNAL + entry * 2)? as usize;
            let old = self.get(JOURNAL + entry * 2 + 1)?;
            if word < MEMBERS_AT && !(STATE_CHECK..STATE + STATE_WORDS).contains(&word) {
                return Err(Fault::damaged("its journal points outside"));
            }
            self.put(word, old)?;
        }
        self.clear_journal()
    }

    fn clear_journal(&mut self) -> Result<()> {
        // What was read from a lost page was zeros, and what was stored there was lost.
        self.table.map.check()?;
        self.put(JOURNAL_LENGTH, 0)?;
        self.table.map.check()?;
        self.entries = 0;
        Ok(())
    }

    /// Fails if a test wants the process to be killed before its next store.
    #[cfg(test)]
    fn before_store(&mut self) -> Result<()> {
        let survived = self.table.kill.before_store();
        self.killed |= survived.is_err();
        survived
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        #[cfg(test)]
        self.table.kill.count_reads(self.reads.get());
        #[cfg(test)]
        if self.killed {
            return;
        }
        let is_broken = self.table.map.is_broken();
        if self.entries > 0 && !is_broken && self.roll_back().is_err() {
            // The journal stays, and the next process undoes the change or reports the damage.
            tracing::error!(dir = %self.table.dir.display(), "a change could not be undone");
        }
        #[cfg(test)]
        if self.killed || self.before_store().is_err() {
            return;
        }
        if let Some(gate) = self.table.map.half(GATE) {
            gate::leave(gate);
        }
    }
}

/// The length with its complement, so that a flipped bit is not taken for a journal.
const fn length_word(entries: usize) -> u64 {
    pair(entries as u32, !(entries as u32))
}

fn short() -> Fault {
    Fault::damaged("the file is shorter than it says")
}

fn blocked(table: &Table, inside: Member) -> Fault {
    let who = match members::pid(&table.map, inside) {
        Ok(Some(pid)) => format!("process {pid}"),
        _ => "another process".into(),
    };
    let why = format!(
        "{who} has been inside the lock table for more than {:?}: it may be stopped; let it go \
         on or kill it",
        gate::PATIENCE
    );
    Fault::new(ErrorKind::Unreachable, why)
}
