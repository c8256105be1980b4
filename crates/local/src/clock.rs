//! The clock of the times in a table, and its origin.

use std::fs;
use std::io;
use std::path::Path;

use tenure_core::ErrorKind;
use tenure_core::store::Clock;

use crate::fault::{Fault, Result};

/// It stands still while the machine sleeps, as do all processes that share a table: so no term ends during a
/// suspend.
pub(crate) const CLOCK: Clock = Clock::Monotonic;

/// The origin of the clock. It is the same for processes on the same boot of one kernel whose time
/// namespaces have the same offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) boot: [u64; 2],
    /// What the process's time namespace adds to the monotonic clock and to the boot clock, in
    /// nanoseconds.
    pub(crate) offsets: [i64; 2],
}

impl Epoch {
    /// That of this process. Tests can replace the boot id.
    pub(crate) fn here(boot: Option<[u8; 16]>) -> Result<Self> {
        let boot = match boot {
            Some(id) => u128::from_be_bytes(id),
            None => boot_id()?,
        };
        Ok(Self { boot: [(boot >> 64) as u64, boot as u64], offsets: offsets()? })
    }

    /// The boot id as the kernel writes it, without dashes.
    pub(crate) fn boot_id(self) -> String {
        format!("{:016x}{:016x}", self.boot[0], self.boot[1])
    }
}

fn boot_id() -> Result<u128> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| Fault::io("reading", path, error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|_| Fault::new(ErrorKind::Unsupported, "the kernel gives no boot id"))
}

fn offsets() -> Result<[i64; 2]> {
    /// The first time namespace, whose offsets are zero.
    const INITIAL: &str = "time:[4026531834]";
    let link = |name| fs::read_link(Path::new("/proc/self/ns").join(name));
    let (Ok(ours), Ok(childrens)) = (link("time"), link("time_for_children")) else {
        // A kernel without time namespaces.
        return Ok([0, 0]);
    };
    if ours.as_os_str() == INITIAL {
        return Ok([0, 0]);
    }
    if ours != childrens {
        let why = "this process has made a new time namespace for its children, so the offset of \
                   its own clock cannot be read: open the store before that";
        return Err(Fault::new(ErrorKind::Unsupported, why));
    }
    let path = Path::new("/proc/self/timens_offsets");
    let text = fs::read_to_string(path).map_err(|error| Fault::io("reading", path, error))?;
    parse(&text).ok_or_else(|| {
        let malformed = io::Error::from(io::ErrorKind::InvalidData);
        Fault::io("reading", path, malformed)
    })
}

/// Lines such as `monotonic  -1  500000000`: a clock, seconds and nanoseconds.
fn parse(text: &str) -> Option<[i64; 2]> {
    let of = |clock: &str| {
        let mut lines = text.lines().map(str::split_whitespace);
        let mut words = lines.find_map(|mut words| (words.next()? == clock).then_some(words))?;
        let (seconds, nanos): (i64, i64) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
    };
    Some([of("monotonic")?, of("boottime")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic          -1         5\nboottime        86400         0\n";
        assert_eq!(parse(text), Some([-999_999_995, 86_400_000_000_000]));
        assert_eq!(parse("monotonic 1 0\n"), None);
        assert_eq!(parse("monotonic 1\nboottime 0 0\n"), None);
    }

    #[test]
    fn an_epoch_stays_the_same_within_a_process() {
        assert_eq!(Epoch::here(None).unwrap(), Epoch::here(None).unwrap());
        assert_ne!(Epoch::here(None).unwrap(), Epoch::here(Some([1; 16])).unwrap());
    }
}
