//! The one clock that leases are measured by.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Moment;

/// The present moment on the clock that runs through suspend (`CLOCK_BOOTTIME`): a machine that
/// slept wakes up knowing that its leases have ended.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    Moment::default() + seconds + nanos
}
