//! Polls for a reply before the caller goes to sleep, as long as that pays.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// To go to sleep and be woken on another core takes longer than a server on the same machine takes to
/// answer. So a caller that has just sent a command polls for the reply for a moment, and gives way to
/// other threads between two attempts: on a single core, that is when the server runs.
///
/// Where replies take longer, because the server is remote or the machine is busy, almost no call
/// polls.
#[derive(Debug, Default)]
pub(crate) struct BusyPoller {
    /// How often in a row no reply came in time.
    misses: AtomicU32,
}

/// How long a call polls.
const LIMIT: Duration = Duration::from_micros(50);

/// After so many misses in a row, only one call in `PROBE` polls.
const MISSES: u32 = 4;
const PROBE: u32 = 256;

/// The same for a poll that does not wait, which costs one system call.
const CHEAP_MISSES: u32 = 16;

impl BusyPoller {
    /// Calls `poll` once, without waiting, if that helped lately.
    pub(crate) fn poll_once(&self, poll: impl FnOnce() -> bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let met = (misses < CHEAP_MISSES || misses.is_multiple_of(CHEAP_MISSES)) && poll();
        self.misses.store(if met { 0 } else { misses.wrapping_add(1) }, Ordering::Relaxed);
    }

    /// Calls `poll` until it finds the reply or the time is over, if that helped lately.
    pub(crate) fn poll(&self, mut poll: impl FnMut() -> bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let mut met = false;
        if misses < MISSES || misses.is_multiple_of(PROBE) {
            let start = Instant::now();
            loop {
                met = poll();
                // A reply that comes later counts as missed: a busy machine may take milliseconds to
                // run this thread again after it gave way.
                let late = start.elapsed() > LIMIT;
                met &= !late;
                if met || late {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.misses.store(if met { 0 } else { misses.wrapping_add(1) }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_come_in_time_are_polled_for_and_others_hardly_ever() {
        let (poller, mut polls) = (BusyPoller::default(), 0);
        let mut answered = |answered: bool| {
            let before = polls;
            poller.poll(|| {
                polls += 1;
                answered
            });
            polls > before
        };
        for _ in 0..100 {
            assert!(answered(true));
        }
        let polled = (0..PROBE).filter(|_| answered(false)).count();
        assert_eq!(polled, MISSES as usize);
        // The next one finds out whether it pays again.
        assert!(answered(true));
        assert!(answered(true));
    }
}
