//! Where everything is in the table, in words of eight bytes.
//!
//! | words | what |
//! |---|---|
//! | 0..16 | the header: magic, version, layout, boot id, limit, inode of `members`, offsets of the clocks, checksum |
//! | 16 | the gate: who may change the table now |
//! | 24..29 | the state: checksum, free list and carved mark, capacity, next token, token ceiling |
//! | 32 | the length of the journal |
//! | 40..552 | the journal: pairs of word number and old value |
//! | 1024.. | members: two words each |
//! | 9216.. | hash buckets: one word each |
//! | 25600.. | records: 40 words each; record 0 is never used, so that 0 can mean "none" |

/// `tenure\0T`, as a number: reads differently on a machine of the other byte order.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"tenure\0T");
pub(crate) const VERSION: u64 = 2;
/// What must agree for two builds to share a table.
pub(crate) const SHAPE: u64 =
    (RECORD_WORDS as u64) << 48 | (BUCKETS as u64) << 24 | (MEMBERS as u64) << 8 | 1;

pub(crate) const FIXED_WORDS: usize = 16;
pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_VERSION: usize = 1;
pub(crate) const AT_SHAPE: usize = 2;
pub(crate) const AT_BOOT: usize = 3;
pub(crate) const AT_LIMIT: usize = 5;
/// The inode of the file `members`: with another one, the living would look dead.
pub(crate) const AT_MEMBERS: usize = 6;
/// What the time namespace adds to the clocks: two words.
pub(crate) const AT_OFFSETS: usize = 7;
pub(crate) const AT_CHECK: usize = 15;

pub(crate) const GATE: usize = 16;

pub(crate) const STATE_CHECK: usize = 24;
pub(crate) const STATE: usize = 25;
pub(crate) const STATE_WORDS: usize = 4;

pub(crate) const JOURNAL_LENGTH: usize = 32;
pub(crate) const JOURNAL: usize = 40;
pub(crate) const JOURNAL_ENTRIES: usize = 256;

pub(crate) const MEMBERS_AT: usize = 1024;
pub(crate) const MEMBERS: usize = 4096;
pub(crate) const MEMBER_WORDS: usize = 2;

pub(crate) const BUCKETS_AT: usize = MEMBERS_AT + MEMBERS * MEMBER_WORDS;
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

/// Mixes one word into a checksum, so that it counts at this place only: checksums are the
/// exclusive or of these, and an update of one word needs only its old and new value.
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
