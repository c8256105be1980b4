//! The slots of the processes that use the table: each open store has one.
//!
//! A process keeps its slot's byte of the file `members` locked. The lock ends with the process, so it
//! proves that the process lives; a process id proves nothing, because ids are reused. The slot's first
//! word in the table has the process id and a generation, which rises each time the slot is taken.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tenure_core::ErrorKind;

use crate::byte_locks;
use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::{SLOT_WORDS, SLOTS, SLOTS_AT, mix};
use crate::mapping::Mapping;

const SLOT_BITS: u32 = 12;
const GENERATION_BITS: u32 = 19;
const PID_BITS: u32 = 22;
const _: () = assert!(1 << SLOT_BITS == SLOTS && SLOT_BITS + GENERATION_BITS < 32);

/// Wake-ups were lost because the process's FIFO was full: it must check all its waiters.
pub(crate) const OVERFLOW: u64 = 1;
/// The process may have claims in the table.
pub(crate) const IN_USE: u64 = 2;

/// One process (strictly, one open store), as the table names it: a slot, and which use of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessSlot {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ProcessSlot {
    /// The value of the gate's word while this process is inside. Never zero: generations start at one.
    pub(crate) const fn gate_word(self) -> u32 {
        self.slot | self.generation << SLOT_BITS
    }

    pub(crate) const fn from_gate_word(word: u32) -> Self {
        Self {
            slot: word & ((1 << SLOT_BITS) - 1),
            generation: word >> SLOT_BITS & ((1 << GENERATION_BITS) - 1),
        }
    }

    pub(crate) const fn identity_at(self) -> usize {
        SLOTS_AT + (self.slot as usize % SLOTS) * SLOT_WORDS
    }

    pub(crate) const fn flags_at(self) -> usize {
        self.identity_at() + 1
    }
}

/// The file `members`, and this process's slot in it.
#[derive(Debug)]
pub(crate) struct ProcessSlots {
    file: File,
    path: PathBuf,
    pub(crate) me: ProcessSlot,
}

impl ProcessSlots {
    /// Takes a free slot, until this value is dropped.
    pub(crate) fn take(file: File, dir: &Path, map: &Mapping) -> Result<Self> {
        let path = dir.join("members");
        for slot in 0..SLOTS as u32 {
            let locked = byte_locks::try_lock(&file, slot);
            if locked.map_err(|error| Fault::io("locking", &path, error))? {
                let generation = begin_use(map, slot)?;
                let me = ProcessSlot { slot, generation };
                return Ok(Self { file, path, me });
            }
        }
        let why = format!("all {SLOTS} process slots are taken: close some stores");
        Err(Fault::new(ErrorKind::Full, why))
    }

    /// Whether a process lives. Costs a system call, except for this process.
    pub(crate) fn is_alive(&self, map: &Mapping, process: ProcessSlot) -> Result<bool> {
        if process == self.me {
            return Ok(true);
        }
        if process.slot as usize >= SLOTS {
            return Err(Fault::damaged("a claim has an impossible process slot"));
        }
        let identity = identity(map, process)?;
        // On a lost page, all processes look dead.
        map.check()?;
        if identity.map(|(generation, _)| generation) != Some(process.generation) {
            return Ok(false);
        }
        // A process does not see its own byte lock. Another generation of its own slot is dead.
        if process.slot == self.me.slot {
            return Ok(false);
        }
        byte_locks::is_locked(&self.file, process.slot)
            .map_err(|error| Fault::io("asking for a lock on", &self.path, error))
    }

    /// Whether the path still names this file.
    pub(crate) fn is_linked(&self) -> Result<bool> {
        files::is_linked(&self.file, &self.path)
    }

    /// The process ids of all live processes, including this one. Costs a system call for every slot.
    pub(crate) fn live_pids(&self, map: &Mapping) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for slot in 0..SLOTS as u32 {
            let Some((generation, pid)) = identity(map, ProcessSlot { slot, generation: 0 })?
            else {
                continue;
            };
            if self.is_alive(map, ProcessSlot { slot, generation })? {
                pids.push(pid);
            }
        }
        Ok(pids)
    }
}

/// Whether another open file has a byte of `members` locked, and the process id that the table has for
/// that slot, if any.
pub(crate) fn other_user(members: &File, table: &File) -> std::io::Result<Option<Option<u32>>> {
    let Some(slot) = byte_locks::any_locked(members)? else {
        return Ok(None);
    };
    let process = ProcessSlot { slot, generation: 0 };
    let mut word = [0; 8];
    let read = table.read_exact_at(&mut word, process.identity_at() as u64 * 8);
    let identity = read.map(|()| unpack(slot, u64::from_ne_bytes(word)));
    Ok(Some(identity.ok().and_then(Result::ok).flatten().map(|(_, pid)| pid)))
}

/// The process id of a slot, if its generation is still the same.
pub(crate) fn pid(map: &Mapping, process: ProcessSlot) -> Result<Option<u32>> {
    let identity = identity(map, process)?;
    Ok(identity.filter(|(generation, _)| *generation == process.generation).map(|(_, pid)| pid))
}

fn identity(map: &Mapping, process: ProcessSlot) -> Result<Option<(u32, u32)>> {
    let word = map.word(process.identity_at()).ok_or_else(short)?;
    unpack(process.slot, word.load(Ordering::Acquire))
}

/// Writes this process into its slot. The byte lock makes it the only writer, so the gate is not needed;
/// and the gate could not be entered before, because its word contains the generation.
fn begin_use(map: &Mapping, slot: u32) -> Result<u32> {
    let process = ProcessSlot { slot, generation: 0 };
    let word = map.word(process.identity_at()).ok_or_else(short)?;
    let last = unpack(slot, word.load(Ordering::Acquire))?.map_or(0, |(generation, _)| generation);
    let next = (last + 1) & ((1 << GENERATION_BITS) - 1);
    let next = next.max(1);
    word.store(pack(slot, next, std::process::id()), Ordering::Release);
    Ok(next)
}

fn pack(slot: u32, generation: u32, pid: u32) -> u64 {
    let pid = u64::from(pid) & ((1 << PID_BITS) - 1);
    let body = u64::from(generation) | pid << GENERATION_BITS;
    let check = mix(u64::from(slot), 0, body) << (GENERATION_BITS + PID_BITS);
    body | check
}

fn unpack(slot: u32, word: u64) -> Result<Option<(u32, u32)>> {
    if word == 0 {
        return Ok(None);
    }
    let generation = (word & ((1 << GENERATION_BITS) - 1)) as u32;
    let pid = (word >> GENERATION_BITS & ((1 << PID_BITS) - 1)) as u32;
    if word != pack(slot, generation, pid) {
        return Err(Fault::damaged("the word of a process has a wrong checksum"));
    }
    Ok(Some((generation, pid)))
}

fn short() -> Fault {
    Fault::damaged("the file is shorter than its header says")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_survives_the_encoding_in_the_gates_word() {
        for (slot, generation) in [(0, 1), (4095, (1 << GENERATION_BITS) - 1), (17, 1000)] {
            let process = ProcessSlot { slot, generation };
            assert_ne!(process.gate_word(), 0);
            assert_eq!(process.gate_word() >> 31, 0, "the last bit marks contention");
            assert_eq!(ProcessSlot::from_gate_word(process.gate_word()), process);
        }
    }

    #[test]
    fn a_flipped_bit_in_a_slots_word_is_detected() {
        let word = pack(9, 1234, 4_000_000);
        assert_eq!(unpack(9, word).unwrap(), Some((1234, 4_000_000)));
        for bit in 0..64 {
            assert!(unpack(9, word ^ 1 << bit).is_err(), "bit {bit}");
        }
        assert!(unpack(10, word).is_err(), "the checksum covers the slot number");
    }
}
