//! The records of the table: locks, and claims on them. Each has a checksum, which is verified on every
//! read.

use tenure_core::Mode;
use tenure_proto::{Occupancy, Token};

use crate::fault::{Fault, Result};
use crate::layout::*;
use crate::process_slots::ProcessSlot;
use crate::txn::Txn;

pub(crate) const FREE: u8 = 1;
pub(crate) const LOCK: u8 = 2;
pub(crate) const CLAIM: u8 = 3;

const META: usize = 0;
const CHECK: usize = 1;
const LOCK_NAME: usize = 9;
const NAME_WORDS: usize = 25;
const CLAIM_LABEL: usize = 13;
/// The longest label that is stored, in bytes.
pub(crate) const LABEL_BYTES: usize = (FREE_LINK - CLAIM_LABEL) * 8;
/// The link and checksum of a free record. These words have no meaning while the record is in use, so taking
/// or freeing a record changes only one word that must be journaled.
pub(crate) const FREE_LINK: usize = RECORD_WORDS - 2;
const FREE_CHECK: usize = RECORD_WORDS - 1;

/// A text as it is stored: words of eight bytes, the last one padded with zeros.
#[derive(Clone, Copy, Debug)]
struct Packed<'a> {
    eights: &'a [[u8; 8]],
    rest: &'a [u8],
}

impl<'a> Packed<'a> {
    const fn new(text: &'a str) -> Self {
        let (eights, rest) = text.as_bytes().as_chunks();
        Self { eights, rest }
    }

    fn words(self) -> impl Iterator<Item = u64> {
        let rest = self.rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let last = (!self.rest.is_empty()).then_some(rest);
        self.eights.iter().map(|eight| u64::from_le_bytes(*eight)).chain(last)
    }
}

/// A lock's name with its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    text: Packed<'a>,
    bytes: u8,
    pub(crate) hash: u64,
}

impl<'a> Name<'a> {
    /// `name` is that of a [`LockName`](tenure_core::LockName), so it has at most 200 bytes.
    pub(crate) fn new(name: &'a str) -> Self {
        let text = Packed::new(name);
        let bytes = name.len().min(NAME_WORDS * 8) as u8;
        let hash = text.words().fold(u64::from(bytes), |hash, word| {
            let mixed = (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed ^ mixed >> 29
        });
        Self { text, bytes, hash }
    }
}

/// A copy of a lock's record. [`Txn::save_lock`] writes it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    name_bytes: u8,
    /// The next lock in the same bucket.
    pub(crate) chain: u32,
    pub(crate) hash: u64,
    pub(crate) first_waiter: u32,
    pub(crate) last_waiter: u32,
    pub(crate) first_holder: u32,
    pub(crate) last_holder: u32,
    pub(crate) exclusive: u32,
    pub(crate) shared: u32,
    pub(crate) permits: u64,
    pub(crate) holders: u32,
    pub(crate) waiters: u32,
}

impl Lock {
    /// What the holders occupy, which decides what the lock admits.
    pub(crate) fn room(&self) -> Occupancy {
        let mut room = Occupancy::default();
        if self.exclusive > 0 {
            room.enter(Mode::Exclusive);
        }
        if self.shared > 0 {
            room.enter(Mode::Shared);
        }
        if self.permits > 0 {
            let take = u32::try_from(self.permits).unwrap_or(u32::MAX);
            room.enter(Mode::Permits { take, of: take });
        }
        room
    }

    /// Counts a new holder.
    pub(crate) const fn count_in(&mut self, mode: Mode) {
        self.holders = self.holders.saturating_add(1);
        match mode {
            Mode::Exclusive => self.exclusive = self.exclusive.saturating_add(1),
            Mode::Shared => self.shared = self.shared.saturating_add(1),
            Mode::Permits { take, .. } => self.permits = self.permits.saturating_add(take as u64),
        }
    }

    /// Counts a holder that left.
    pub(crate) const fn count_out(&mut self, mode: Mode) {
        self.holders = self.holders.saturating_sub(1);
        match mode {
            Mode::Exclusive => self.exclusive = self.exclusive.saturating_sub(1),
            Mode::Shared => self.shared = self.shared.saturating_sub(1),
            Mode::Permits { take, .. } => self.permits = self.permits.saturating_sub(take as u64),
        }
    }

    const fn words(&self) -> [u64; 7] {
        [
            self.chain as u64,
            self.hash,
            pair(self.first_waiter, self.last_waiter),
            pair(self.first_holder, self.last_holder),
            pair(self.exclusive, self.shared),
            self.permits,
            pair(self.holders, self.waiters),
        ]
    }
}

/// A copy of a claim's record. [`Txn::save_claim`] writes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) holds: bool,
    label_bytes: u8,
    pub(crate) lock: u32,
    pub(crate) lock_generation: u32,
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) owner: [u64; 2],
    pub(crate) process: ProcessSlot,
    pub(crate) mode: Mode,
    pub(crate) ttl: u64,
    pub(crate) ends: u64,
    pub(crate) granted: u64,
    pub(crate) token: u64,
    pub(crate) arrived: u64,
}

impl Entry {
    /// A new claim, which is not in the table yet.
    pub(crate) fn new(
        owner: [u64; 2],
        process: ProcessSlot,
        mode: Mode,
        ttl: u64,
        now: u64,
    ) -> Self {
        Self {
            index: 0,
            generation: 0,
            holds: false,
            label_bytes: 0,
            lock: 0,
            lock_generation: 0,
            before: 0,
            after: 0,
            owner,
            process,
            mode,
            ttl,
            ends: 0,
            granted: 0,
            token: 0,
            arrived: now,
        }
    }

    /// Makes the claim a holder.
    pub(crate) const fn grant(&mut self, token: Token, now: u64) {
        self.holds = true;
        self.granted = now;
        self.ends = now.saturating_add(self.ttl);
        self.token = token.get();
    }

    const fn meta(&self) -> u64 {
        let (tag, ..) = encode_mode(self.mode);
        CLAIM as u64
            | (self.holds as u64) << 8
            | tag << 16
            | (self.label_bytes as u64) << 24
            | (self.generation as u64) << 32
    }

    const fn words(&self) -> [u64; 11] {
        let (_, take, of) = encode_mode(self.mode);
        [
            pair(self.lock, self.lock_generation),
            pair(self.before, self.after),
            self.owner[0],
            self.owner[1],
            pair(self.process.slot, self.process.generation),
            pair(take, of),
            self.ttl,
            self.ends,
            self.granted,
            self.token,
            self.arrived,
        ]
    }
}

impl Txn<'_> {
    /// The kind and generation of a record. Its checksum is not verified.
    pub(crate) fn kind(&self, index: u32) -> Result<(u8, u32)> {
        let meta = self.get(self.at(index)?)?;
        Ok((meta as u8, high(meta)))
    }

    pub(crate) fn lock(&self, index: u32) -> Result<Lock> {
        let at = self.at(index)?;
        let meta = self.get(at)?;
        if meta as u8 != LOCK {
            return Err(Fault::damaged("a link to a lock leads elsewhere"));
        }
        let name_bytes = (meta >> 24) as u8;
        let used = LOCK_NAME + usize::from(name_bytes).div_ceil(8);
        if used > LOCK_NAME + NAME_WORDS {
            return Err(Fault::damaged("a name is too long"));
        }
        self.verify(index, at, used)?;
        let word = |place| self.get(at + place);
        let (waiters, holders, room, counts) = (word(4)?, word(5)?, word(6)?, word(8)?);
        Ok(Lock {
            index,
            generation: high(meta),
            name_bytes,
            chain: low(word(2)?),
            hash: word(3)?,
            first_waiter: low(waiters),
            last_waiter: high(waiters),
            first_holder: low(holders),
            last_holder: high(holders),
            exclusive: low(room),
            shared: high(room),
            permits: word(7)?,
            holders: low(counts),
            waiters: high(counts),
        })
    }

    pub(crate) fn claim(&self, index: u32) -> Result<Entry> {
        let at = self.at(index)?;
        let meta = self.get(at)?;
        let label_bytes = (meta >> 24) as u8;
        if meta as u8 != CLAIM || usize::from(label_bytes) > LABEL_BYTES {
            return Err(Fault::damaged("a link to a claim leads elsewhere"));
        }
        let used = CLAIM_LABEL + usize::from(label_bytes).div_ceil(8);
        self.verify(index, at, used)?;
        let word = |place| self.get(at + place);
        let (lock, line, process, mode) = (word(2)?, word(3)?, word(6)?, word(7)?);
        Ok(Entry {
            index,
            generation: high(meta),
            holds: (meta >> 8) as u8 != 0,
            label_bytes,
            lock: low(lock),
            lock_generation: high(lock),
            before: low(line),
            after: high(line),
            owner: [word(4)?, word(5)?],
            process: ProcessSlot { slot: low(process), generation: high(process) },
            mode: decode_mode((meta >> 16) as u8, mode)?,
            ttl: word(8)?,
            ends: word(9)?,
            granted: word(10)?,
            token: word(11)?,
            arrived: word(12)?,
        })
    }

    pub(crate) fn is_named(&self, lock: &Lock, name: &Name<'_>) -> Result<bool> {
        if lock.hash != name.hash || lock.name_bytes != name.bytes {
            return Ok(false);
        }
        let at = self.at(lock.index)? + LOCK_NAME;
        for (place, word) in name.text.words().enumerate() {
            if self.get(at + place)? != word {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn name_of(&self, lock: &Lock) -> Result<String> {
        let at = self.at(lock.index)? + LOCK_NAME;
        self.text(at, lock.name_bytes)
    }

    pub(crate) fn label_of(&self, claim: &Entry) -> Result<String> {
        let at = self.at(claim.index)? + CLAIM_LABEL;
        self.text(at, claim.label_bytes)
    }

    pub(crate) fn save_lock(&mut self, lock: &Lock) -> Result<()> {
        self.save(lock.index, None, &lock.words())
    }

    pub(crate) fn save_claim(&mut self, claim: &Entry) -> Result<()> {
        self.save(claim.index, Some(claim.meta()), &claim.words())
    }

    /// Writes a new lock with its first holder. No link leads to it yet.
    pub(crate) fn build_held(
        &mut self,
        name: &Name<'_>,
        chain: u32,
        mut claim: Entry,
        label: &str,
    ) -> Result<(Lock, Entry)> {
        let (index, generation) = self.allocate()?;
        let mut lock = Lock {
            index,
            generation,
            name_bytes: name.bytes,
            chain,
            hash: name.hash,
            ..Lock::default()
        };
        (claim.lock, claim.lock_generation) = (index, generation);
        let claim = self.build_claim(claim, label)?;
        (lock.first_holder, lock.last_holder) = (claim.index, claim.index);
        lock.count_in(claim.mode);
        let meta = u64::from(LOCK) | u64::from(name.bytes) << 24 | u64::from(generation) << 32;
        self.build(index, meta, &lock.words(), name.text)?;
        Ok((lock, claim))
    }

    /// Writes a new claim. No link leads to it yet.
    pub(crate) fn build_claim(&mut self, mut claim: Entry, label: &str) -> Result<Entry> {
        (claim.index, claim.generation) = self.allocate()?;
        let mut end = label.len().min(LABEL_BYTES);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        claim.label_bytes = end as u8;
        let label = Packed::new(&label[..end]);
        self.build(claim.index, claim.meta(), &claim.words(), label)?;
        Ok(claim)
    }

    /// Frees a record.
    pub(crate) fn free(&mut self, index: u32, generation: u32) -> Result<()> {
        let at = self.at(index)?;
        let next = u64::from(self.first_free());
        let meta = free_meta(generation);
        self.set(at + META, meta)?;
        self.link_free(at + FREE_LINK, next)?;
        self.link_free(at + FREE_CHECK, free_check(index, meta, next))?;
        self.add_free(index);
        Ok(())
    }

    /// The record after a free one in the free list, and the free one's generation.
    pub(crate) fn next_free(&self, index: u32) -> Result<(u32, u32)> {
        let at = self.at(index)?;
        let (meta, next) = (self.get(at)?, self.get(at + FREE_LINK)?);
        if meta as u8 != FREE || self.get(at + FREE_CHECK)? != free_check(index, meta, next) {
            return Err(Fault::damaged("the free list leads elsewhere"));
        }
        Ok((low(next), high(meta)))
    }

    fn allocate(&mut self) -> Result<(u32, u32)> {
        let index = self.first_free();
        if index == 0 {
            return Ok((self.extend()?, 1));
        }
        let (next, generation) = self.next_free(index)?;
        self.take_free(next);
        Ok((index, generation.wrapping_add(1)))
    }

    /// Writes a record that this change took from the free list.
    fn build(&mut self, index: u32, meta: u64, words: &[u64], text: Packed<'_>) -> Result<()> {
        match self.has_freed() {
            true => self.build_with::<true>(index, meta, words, text),
            false => self.build_with::<false>(index, meta, words, text),
        }
    }

    fn build_with<const JOURNALED: bool>(
        &mut self,
        index: u32,
        meta: u64,
        words: &[u64],
        text: Packed<'_>,
    ) -> Result<()> {
        let at = self.at(index)?;
        let salt = u64::from(index);
        let mut sum = mix(salt, META, meta);
        for (place, word) in words.iter().copied().chain(text.words()).enumerate() {
            sum ^= mix(salt, place + 2, word);
            self.fill::<JOURNALED>(at + 2 + place, word)?;
        }
        self.fill::<JOURNALED>(at + CHECK, sum)?;
        self.set(at + META, meta)
    }

    fn save(&mut self, index: u32, meta: Option<u64>, words: &[u64]) -> Result<()> {
        let at = self.at(index)?;
        let salt = u64::from(index);
        let mut sum = self.get(at + CHECK)?;
        let before = sum;
        let meta = meta.map(|meta| (META, meta));
        let words = words.iter().enumerate().map(|(n, word)| (n + 2, *word));
        for (place, word) in meta.into_iter().chain(words) {
            let old = self.get(at + place)?;
            if old != word {
                sum ^= mix(salt, place, old) ^ mix(salt, place, word);
                self.set(at + place, word)?;
            }
        }
        if sum != before {
            self.set(at + CHECK, sum)?;
        }
        Ok(())
    }

    #[inline]
    fn verify(&self, index: u32, at: usize, used: usize) -> Result<()> {
        let salt = u64::from(index);
        let mut sum = mix(salt, META, self.get(at)?);
        for place in 2..used {
            sum ^= mix(salt, place, self.get(at + place)?);
        }
        if sum != self.get(at + CHECK)? {
            return Err(Fault::damaged("a record has a wrong checksum"));
        }
        Ok(())
    }

    fn text(&self, at: usize, bytes: u8) -> Result<String> {
        let bytes = usize::from(bytes);
        let mut text = Vec::with_capacity(bytes + 8);
        for place in 0..bytes.div_ceil(8) {
            text.extend_from_slice(&self.get(at + place)?.to_le_bytes());
        }
        text.truncate(bytes);
        String::from_utf8(text).map_err(|_| Fault::damaged("a text is not UTF-8"))
    }

    #[inline]
    fn at(&self, index: u32) -> Result<usize> {
        if index == 0 || index >= self.high_water() {
            return Err(Fault::damaged("a link leads outside"));
        }
        Ok(words_for(index))
    }
}

const fn free_meta(generation: u32) -> u64 {
    pair(FREE as u32, generation)
}

const fn free_check(index: u32, meta: u64, next: u64) -> u64 {
    mix(index as u64, META, meta) ^ mix(index as u64, FREE_LINK, next)
}

const fn encode_mode(mode: Mode) -> (u64, u32, u32) {
    match mode {
        Mode::Exclusive => (0, 0, 0),
        Mode::Shared => (1, 0, 0),
        Mode::Permits { take, of } => (2, take, of),
    }
}

fn decode_mode(tag: u8, permits: u64) -> Result<Mode> {
    let (take, of) = (low(permits), high(permits));
    match tag {
        0 => Ok(Mode::Exclusive),
        1 => Ok(Mode::Shared),
        2 => Ok(Mode::Permits { take, of }),
        _ => Err(Fault::damaged("a claim has no mode")),
    }
}
