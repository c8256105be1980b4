//! Who uses the table: one member per open store, in a slot of its own.
//!
//! A member has its slot's byte of the file `members` locked for as long as it lives: that is the
//! truth about life and death, because process ids are reused and this lock ends with the process.
//! Its word in the table says which life of the slot this is (generation) and the process id.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tenure_core::ErrorKind;

use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::{MEMBER_WORDS, MEMBERS, MEMBERS_AT, mix};
use crate::mapping::Mapping;
use crate::ofd;
use std::sync::atomic::Ordering;

const SLOT_BITS: u32 = 12;
const GENERATION_BITS: u32 = 19;
const PID_BITS: u32 = 22;
const _: () = assert!(1 << SLOT_BITS == MEMBERS && SLOT_BITS + GENERATION_BITS < 32);

/// Messages were lost because the member's FIFO was full: it must look at all its waiters.
pub(crate) const OVERFLOW: u64 = 1;
/// The member may have claims in the table.
pub(crate) const IN_USE: u64 = 2;

/// One life of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Member {
    /// As the gate's word names it; never zero, as generations start at one.
    pub(crate) const fn at_gate(self) -> u32 {
        self.slot | self.generation << SLOT_BITS
    }

    pub(crate) const fn from_gate(word: u32) -> Self {
        Self {
            slot: word & ((1 << SLOT_BITS) - 1),
            generation: word >> SLOT_BITS & ((1 << GENERATION_BITS) - 1),
        }
    }

    pub(crate) const fn identity_at(self) -> usize {
        MEMBERS_AT + (self.slot as usize % MEMBERS) * MEMBER_WORDS
    }

    pub(crate) const fn flags_at(self) -> usize {
        self.identity_at() + 1
    }
}

/// The file of life and death, and our own line in it.
#[derive(Debug)]
pub(crate) struct Roster {
    file: File,
    path: PathBuf,
    pub(crate) me: Member,
}

impl Roster {
    /// Takes a free slot, for as long as the roster lives.
    pub(crate) fn join(file: File, dir: &Path, map: &Mapping) -> Result<Self> {
        let path = dir.join("members");
        for slot in 0..MEMBERS as u32 {
            let locked = ofd::try_lock(&file, slot);
            if locked.map_err(|error| Fault::io("locking", &path, error))? {
                let generation = begin_life(map, slot)?;
                let me = Member { slot, generation };
                return Ok(Self { file, path, me });
            }
        }
        let why = format!("all {MEMBERS} places for processes are taken: close some stores");
        Err(Fault::new(ErrorKind::Full, why))
    }

    /// Whether the member lives. Costs a system call, but for ourselves.
    pub(crate) fn lives(&self, map: &Mapping, member: Member) -> Result<bool> {
        if member == self.me {
            return Ok(true);
        }
        if member.slot as usize >= MEMBERS {
            return Err(Fault::damaged("a claim of a process that cannot be"));
        }
        let identity = identity(map, member)?;
        // Where the page is gone, all its members look dead.
        map.check()?;
        if identity.map(|(generation, _)| generation) != Some(member.generation) {
            return Ok(false);
        }
        // Our own byte never looks locked to us, and ours with another generation is dead.
        if member.slot == self.me.slot {
            return Ok(false);
        }
        ofd::is_locked(&self.file, member.slot)
            .map_err(|error| Fault::io("asking for a lock on", &self.path, error))
    }
}

impl Roster {
    /// Whether others who open the file by its name get this one.
    pub(crate) fn is_linked(&self) -> Result<bool> {
        files::is_linked(&self.file, &self.path)
    }

    /// The process ids of all who live, ourselves included. Costs a system call for every slot.
    pub(crate) fn living(&self, map: &Mapping) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for slot in 0..MEMBERS as u32 {
            let Some((generation, pid)) = identity(map, Member { slot, generation: 0 })? else {
                continue;
            };
            if self.lives(map, Member { slot, generation })? {
                pids.push(pid);
            }
        }
        Ok(pids)
    }
}

/// Whether another open file has joined by this file of members, and by which process, where the
/// table's file tells.
pub(crate) fn other_user(members: &File, table: &File) -> std::io::Result<Option<Option<u32>>> {
    let Some(slot) = ofd::any_locked(members)? else {
        return Ok(None);
    };
    let member = Member { slot, generation: 0 };
    let mut word = [0; 8];
    let read = table.read_exact_at(&mut word, member.identity_at() as u64 * 8);
    let identity = read.map(|()| unpack(slot, u64::from_ne_bytes(word)));
    Ok(Some(identity.ok().and_then(Result::ok).flatten().map(|(_, pid)| pid)))
}

/// The process id of a member, if its slot is still in that life.
pub(crate) fn pid(map: &Mapping, member: Member) -> Result<Option<u32>> {
    let identity = identity(map, member)?;
    Ok(identity.filter(|(generation, _)| *generation == member.generation).map(|(_, pid)| pid))
}

fn identity(map: &Mapping, member: Member) -> Result<Option<(u32, u32)>> {
    let word = map.word(member.identity_at()).ok_or_else(short)?;
    unpack(member.slot, word.load(Ordering::Acquire))
}

/// Whoever has the slot's lock is the only one to write its identity: no gate is needed, and none
/// could be passed before, since the gate's word carries the generation.
fn begin_life(map: &Mapping, slot: u32) -> Result<u32> {
    let member = Member { slot, generation: 0 };
    let word = map.word(member.identity_at()).ok_or_else(short)?;
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
        return Err(Fault::damaged("the word of a process does not add up"));
    }
    Ok(Some((generation, pid)))
}

fn short() -> Fault {
    Fault::damaged("the file is shorter than it says")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_named_at_the_gate_and_found_again() {
        for (slot, generation) in [(0, 1), (4095, (1 << GENERATION_BITS) - 1), (17, 1000)] {
            let member = Member { slot, generation };
            assert_ne!(member.at_gate(), 0);
            assert_eq!(member.at_gate() >> 31, 0, "the last bit is the gate's own");
            assert_eq!(Member::from_gate(member.at_gate()), member);
        }
    }

    #[test]
    fn a_flipped_bit_in_an_identity_is_noticed() {
        let word = pack(9, 1234, 4_000_000);
        assert_eq!(unpack(9, word).unwrap(), Some((1234, 4_000_000)));
        for bit in 0..64 {
            assert!(unpack(9, word ^ 1 << bit).is_err(), "bit {bit}");
        }
        assert!(unpack(10, word).is_err(), "and so is one in another's slot");
    }
}
