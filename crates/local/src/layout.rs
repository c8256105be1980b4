//! The layout of the table, in words of eight bytes.
//!
//! | words | content |
//! |---|---|
//! | 0..16 | the header: magic, version, layout, boot id, limit, inode of `members`, offsets of the clocks, checksum |
//! | 16 | the gate: the process that is changing the table |
//! | 24..29 | the state: checksum, free list and high-water mark, capacity, next token, token ceiling |
//! | 32 | the length of the journal |
//! | 40..552 | the journal: pairs of word number and old value |
//! | 1024.. | process slots: two words each |
//! | 9216.. | hash buckets: one word each |
//! | 25600.. | records: 40 words each; record 0 is never used, so that 0 can mean "none" |

/// `tenure\0T` as a number. It differs on a machine of the other byte order.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"tenure\0T");
pub(crate) const VERSION: u64 = 2;
/// Two builds must agree on this to share a table.
pub(crate) const SHAPE: u64 =
    (RECORD_WORDS as u64) << 48 | (BUCKETS as u64) << 24 | (SLOTS as u64) << 8 | 1;

pub(crate) const FIXED_WORDS: usize = 16;
pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_VERSION: usize = 1;
pub(crate) const AT_SHAPE: usize = 2;
pub(crate) const AT_BOOT: usize = 3;
pub(crate) const AT_LIMIT: usize = 5;
/// The inode of the file `members`: in another file, live processes would look dead.
pub(crate) const AT_SLOTS_INODE: usize = 6;
/// The time namespace's offsets of the clocks: two words.
pub(crate) const AT_OFFSETS: usize = 7;
pub(crate) const AT_CHECK: usize = 15;

pub(crate) const GATE: usize = 16;

pub(crate) const STATE_CHECK: usize = 24;
pub(crate) const STATE: usize = 25;
pub(crate) const STATE_WORDS: usize = 4;

pub(crate) const JOURNAL_LENGTH: usize = 32;
pub(crate) const JOURNAL: usize = 40;
pub(crate) const JOURNAL_ENTRIES: usize = 256;

pub(crate) const SLOTS_AT: usize = 1024;
pub(crate) const SLOTS: usize = 4096;
pub(crate) const SLOT_WORDS: usize = 2;

pub(crate) const BUCKETS_AT: usize = SLOTS_AT + SLOTS * SLOT_WORDS;
pub(crate) const BUCKETS: usize = 16_384;

pub(crate) const RECORDS_AT: usize = BUCKETS_AT + BUCKETS;
pub(crate) const RECORD_WORDS: usize = 40;

/// Records by which the file grows: 1.25 MiB.
pub(crate) const CHUNK: u32 = 4096;
/// The most records there can be: 80 MiB.
pub(crate) const MAX_RECORDS: u32 = 262_144;

/// Words in a file with room for this many records.
pub(crate) const fn words_for(records: u32) -> usize {
    RECORDS_AT + records as usize * RECORD_WORDS
}

/// The contribution of one word to a checksum. It depends on the word's place. A checksum is the exclusive
/// or of all contributions, so an update needs only the old and the new value of the changed word.
pub(crate) const fn mix(record: u64, word: usize, value: u64) -> u64 {
    let salt = record.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (word as u64 + 1) << 56;
    let mixed = (value ^ salt).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}

pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

pub(crate) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
