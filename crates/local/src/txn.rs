//! Changes to the table that are atomic, even if the process is killed.
//!
//! Before a word is changed, its number and old value go into a journal in the table, and the journal's
//! length is raised. These stores are releases, so neither compiler nor processor reorders them. A process
//! that enters the gate and finds the journal not empty restores the old values in reverse order. A commit
//! sets the length to zero.
//!
//! A word that had no meaning at the last commit, to which a roll-back returns, is not journaled. The
//! contents of a record have no meaning while it is free, and its link in the free list has none while it is
//! in use. That holds only if the record has not changed its kind since the last commit: once a change has
//! freed a record, the next record that it takes may be the same one, and the other way round.
//!
//! A process that loses a page of the table (module `sigbus`) counts as killed from then on: it
//! begins no change, commits none, and leaves the journal for the next process to undo.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::ErrorKind;
use tenure_proto::{Reserve, Token};

use crate::fault::{Fault, Result};
use crate::gate::{self, Entered};
use crate::layout::*;
use crate::process_slots::{self, ProcessSlot};
use crate::table::{Table, load, state_check};

/// A change of the table, made inside the gate. Dropping it undoes what was not
/// [committed](Txn::commit).
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

const FREE_AND_HIGH_WATER: usize = 0;
const CAPACITY: usize = 1;
const NEXT_TOKEN: usize = 2;
const CEILING: usize = 3;

impl<'t> Txn<'t> {
    /// Enters the gate, and rolls back the unfinished change of a process that died inside.
    pub(crate) fn begin(table: &'t Table) -> Result<Self> {
        table.map.check()?;
        let gate = table.map.half(GATE).ok_or_else(short)?;
        let is_dead =
            |inside| table.is_alive(ProcessSlot::from_gate_word(inside)).map(|is_alive| !is_alive);
        if let Entered::Blocked(inside) = gate::enter(gate, table.me().gate_word(), is_dead)? {
            return Err(blocked(table, ProcessSlot::from_gate_word(inside)));
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

    /// Whether something was committed.
    pub(crate) const fn has_committed(&self) -> bool {
        self.commits > 0
    }

    #[inline]
    pub(crate) fn get(&self, word: usize) -> Result<u64> {
        #[cfg(test)]
        self.reads.update(|reads| reads + 1);
        self.words.get(word).map(load).ok_or_else(short)
    }

    /// Changes a word, with an entry in the journal.
    #[inline]
    pub(crate) fn set(&mut self, word: usize, value: u64) -> Result<()> {
        let old = self.get(word)?;
        if old == value {
            return Ok(());
        }
        if self.entries == JOURNAL_ENTRIES {
            return Err(Fault::new(ErrorKind::Internal, "a change is too large for the journal"));
        }
        let at = JOURNAL + self.entries * 2;
        self.put(at, word as u64)?;
        self.put(at + 1, old)?;
        // If the page of the journal is lost, the old value is lost, too: then nothing is changed.
        self.table.map.check()?;
        self.put(JOURNAL_LENGTH, length_word(self.entries + 1))?;
        self.entries += 1;
        self.table.map.check()?;
        self.put(word, value)
    }

    /// Whether the contents of a record that this change takes must be journaled.
    #[inline]
    pub(crate) const fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// Writes a word of a record that this change took. `JOURNALED` is [`has_freed`](Self::has_freed).
    #[inline]
    pub(crate) fn fill<const JOURNALED: bool>(&mut self, word: usize, value: u64) -> Result<()> {
        if JOURNALED { self.set(word, value) } else { self.put(word, value) }
    }

    /// Writes the free-list link of a record that this change frees.
    #[inline]
    pub(crate) fn link_free(&mut self, word: usize, value: u64) -> Result<()> {
        if self.has_taken { self.set(word, value) } else { self.put(word, value) }
    }

    /// Commits the changes so far. The process stays inside the gate.
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

    /// The first record of the free list; zero if the list is empty.
    pub(crate) const fn first_free(&self) -> u32 {
        low(self.state[FREE_AND_HIGH_WATER])
    }

    /// The first record that was never used. All later ones were not, either.
    pub(crate) const fn high_water(&self) -> u32 {
        high(self.state[FREE_AND_HIGH_WATER])
    }

    /// The number of records that the file has room for now.
    pub(crate) const fn capacity(&self) -> u32 {
        low(self.state[CAPACITY])
    }

    /// Removes the first record from the free list; `next` becomes the first.
    #[inline]
    pub(crate) const fn take_free(&mut self, next: u32) {
        self.has_taken = true;
        self.state[FREE_AND_HIGH_WATER] = pair(next, self.high_water());
    }

    /// Puts a record at the front of the free list.
    #[inline]
    pub(crate) const fn add_free(&mut self, record: u32) {
        self.has_freed = true;
        self.state[FREE_AND_HIGH_WATER] = pair(record, self.high_water());
    }

    /// Takes the first record that was never used. Grows the file if necessary.
    pub(crate) fn extend(&mut self) -> Result<u32> {
        let record = self.high_water();
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
        self.state[FREE_AND_HIGH_WATER] = pair(self.first_free(), record + 1);
        Ok(record)
    }

    /// Whether the file should grow ahead of need.
    #[inline]
    pub(crate) fn is_low_on_room(&self) -> bool {
        let left = self.capacity().saturating_sub(self.high_water());
        left < CHUNK / 4 && self.first_free() == 0 && self.capacity() < self.table.limit
    }

    /// The capacity after the next growth.
    pub(crate) fn next_capacity(&self) -> u32 {
        self.capacity().saturating_add(CHUNK).min(self.table.limit)
    }

    /// Raises the capacity after the file has grown.
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

    /// Takes the next fencing token. `None` if all reserved ones are used up. More are not reserved here,
    /// because every process would wait for the disk.
    #[inline]
    pub(crate) fn next_token(&mut self) -> Option<Token> {
        let mut reserve = Reserve::resume(self.state[NEXT_TOKEN], self.state[CEILING]);
        let token = reserve.take();
        self.state[NEXT_TOKEN] = reserve.next();
        self.lacks_token |= token.is_none();
        token
    }

    /// Whether [`next_token`](Self::next_token) has failed in this change.
    pub(crate) const fn lacks_token(&self) -> bool {
        self.lacks_token
    }

    /// All tokens below the ceiling are reserved.
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

    /// Adds a block of durably reserved tokens. The rest of the last block is used first, unless there is a
    /// gap before the new one: then another table may have used the tokens up to it.
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
            return Err(Fault::damaged("its state has a wrong checksum"));
        }
        let capacity = self.state[CAPACITY];
        if capacity > u64::from(self.table.limit) || u64::from(self.high_water()) > capacity {
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

    /// Restores the old values in reverse order. It can be repeated.
    #[cold]
    fn roll_back(&mut self) -> Result<()> {
        let length = self.get(JOURNAL_LENGTH)?;
        let entries = low(length) as usize;
        if length != length_word(entries) || entries > JOURNAL_ENTRIES {
            return Err(Fault::damaged("its journal makes no sense"));
        }
        // The process that was killed may have grown the file.
        let path = self.table.dir.join("table");
        let looked = self.table.map.refresh();
        looked.map_err(|error| Fault::io("looking at", &path, error))?;
        self.words = self.table.map.words();
        for entry in (0..entries).rev() {
            let word = self.get(JOURNAL + entry * 2)? as usize;
            let old = self.get(JOURNAL + entry * 2 + 1)?;
            if word < SLOTS_AT && !(STATE_CHECK..STATE + STATE_WORDS).contains(&word) {
                return Err(Fault::damaged("its journal points outside"));
            }
            self.put(word, old)?;
        }
        self.clear_journal()
    }

    fn clear_journal(&mut self) -> Result<()> {
        // What was read from a lost page is zeros, and what was written to it is lost.
        self.table.map.check()?;
        self.put(JOURNAL_LENGTH, 0)?;
        self.table.map.check()?;
        self.entries = 0;
        Ok(())
    }

    /// Fails if a test kills the process before its next store.
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
            // The journal stays: the next process rolls the change back, or reports the damage.
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

/// The length with its complement, so that a flipped bit is detected.
const fn length_word(entries: usize) -> u64 {
    pair(entries as u32, !(entries as u32))
}

fn short() -> Fault {
    Fault::damaged("the file is shorter than its header says")
}

fn blocked(table: &Table, inside: ProcessSlot) -> Fault {
    let process = match process_slots::pid(&table.map, inside) {
        Ok(Some(pid)) => format!("process {pid}"),
        _ => "another process".into(),
    };
    let why = format!(
        "{process} has been using the lock table for more than {:?}: it may be stopped; let it go \
         on or kill it",
        gate::TIMEOUT
    );
    Fault::new(ErrorKind::Unreachable, why)
}
