//! Owner ids: the identities of claims.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, ErrorKind, Moment};

/// 128 random bits that name one claim, drawn before its first request is sent.
///
/// A program that knows the id can release the claim, so it is shown in full only where a user asked for
/// it ([`Display`](fmt::Display)); [`Debug`](fmt::Debug) and logs show its first four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId([u8; 16]);

impl OwnerId {
    /// A fresh id from the operating system's randomness.
    pub fn random() -> Self {
        POOL.with_borrow_mut(Pool::draw)
    }

    /// The id with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A number that differs from claim to claim and from moment to moment, to spread what would
    /// otherwise happen all at once.
    pub(crate) fn chance(&self, now: Moment) -> u64 {
        let low: [u8; 8] = std::array::from_fn(|index| self.0[index]);
        (u64::from_be_bytes(low) ^ now.as_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl OwnerId {
    /// The hexadecimal digits that [`Display`](fmt::Display) shows.
    pub fn to_hex(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        hex
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_hex().iter().try_for_each(|digit| f.write_char(char::from(*digit)))
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…")
    }
}

impl FromStr for OwnerId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let why = "an owner id is 32 hexadecimal digits, as `tenure status` prints it";
            Error::new(ErrorKind::Invalid, "read an owner id", why)
        };
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        u128::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| invalid())
    }
}

/// One system call serves 64 ids.
const POOL_BYTES: usize = 1024;

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES, process: 0 }) };
}

/// The process that pools belong to, as of the last client that was made. A process forked since
/// must not hand out its parent's ids; it cannot use its parent's clients either, so looking when
/// a client is made is enough, and spares a system call for every id.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Makes sure that ids drawn from now on are of this process alone.
pub(crate) fn settle_in() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
    process: u32,
}

impl Pool {
    fn draw(&mut self) -> OwnerId {
        let process = PROCESS.load(Ordering::Relaxed);
        if self.used == POOL_BYTES || self.process != process {
            getrandom::fill(&mut self.bytes).expect("the operating system gives randomness");
            (self.used, self.process) = (0, process);
        }
        let mut id = [0; 16];
        let drawn = &mut self.bytes[self.used..self.used + 16];
        id.copy_from_slice(drawn);
        drawn.fill(0);
        self.used += 16;
        OwnerId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_all_different() {
        let ids: HashSet<_> = (0..10_000).map(|_| OwnerId::random()).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn a_pool_that_was_filled_in_another_process_is_thrown_away() {
        let mut pool = Pool { bytes: [7; POOL_BYTES], used: 0, process: 1 };
        PROCESS.store(2, Ordering::Relaxed);
        assert_ne!(pool.draw(), OwnerId::from_bytes([7; 16]));
    }

    #[test]
    fn an_id_is_shown_in_full_only_by_display() {
        let id = OwnerId::from_bytes([0xab; 16]);
        assert_eq!(id.to_string().parse::<OwnerId>().unwrap(), id);
        assert_eq!(format!("{id:?}"), "abababab…");
        for bad in ["", "ab", &"g".repeat(32), &format!("+{}", "a".repeat(31))] {
            assert!(bad.parse::<OwnerId>().is_err(), "{bad}");
        }
    }
}
