//! Polls for a reply before the caller goes to sleep, as long as that pays.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// To go to sleep and be woken on another core takes longer than a server on the same machine takes to
/// answer. So a caller that has just sent a command polls for the reply for a moment, and gives way to
/// other threads between two attempts: on a single core, that is when the server runs.
///
/// Where replies take longer, because the server is remote or the machine is busy, almost no call polls;
/// nor do the first calls on a connection, so that a short-lived process never pays for it. Tasks that share
/// a thread do not poll either ([`is_threads_only_caller`](Self::is_threads_only_caller)).
#[derive(Debug)]
pub(crate) struct BusyPoller {
    /// How often in a row no reply came in time.
    misses: AtomicU32,
}

/// How long a call polls.
const LIMIT: Duration = Duration::from_micros(50);

/// After so many misses in a row, only one call in `PROBE` polls.
const MISSES: u32 = 4;
const PROBE: u32 = 256;

/// How many calls on a new connection do not poll.
const WARM_UP: u32 = 16;

/// As `MISSES` and `PROBE`, for a poll that does not wait, which costs one system call.
const CHEAP_MISSES: u32 = 16;

impl Default for BusyPoller {
    fn default() -> Self {
        Self { misses: AtomicU32::new(PROBE - WARM_UP) }
    }
}

/// How many calls in a row a task must make on its thread before it polls.
const ALONE: u32 = 16;

thread_local! {
    /// The task that called last on this thread, by the data of its waker, and how often in a row.
    static LAST_CALLER: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

impl BusyPoller {
    /// Whether the latest calls on this thread came from the same task. If not, several tasks may be waiting
    /// for the thread: one that polled would keep the others from sending, and all would take turns.
    pub(crate) async fn is_threads_only_caller() -> bool {
        poll_fn(|context| {
            let caller = context.waker().data().addr();
            let (last, calls) = LAST_CALLER.get();
            let calls = if caller == last { calls.saturating_add(1) } else { 0 };
            LAST_CALLER.set((caller, calls));
            Poll::Ready(calls >= ALONE)
        })
        .await
    }

    /// Calls `poll` once, without waiting, if that helped lately.
    pub(crate) fn poll_once(&self, poll: impl FnOnce() -> bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let met = (misses < CHEAP_MISSES || misses.is_multiple_of(CHEAP_MISSES)) && poll();
        self.misses.store(if met { 0 } else { misses.wrapping_add(1) }, Ordering::Relaxed);
    }

    /// Calls `poll` until it finds the reply or the time is over, if that helped lately.
    pub(crate) fn poll(&self, mut poll: impl FnMut() -> bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        if misses >= MISSES && !misses.is_multiple_of(PROBE) {
            self.misses.store(misses.wrapping_add(1), Ordering::Relaxed);
            return;
        }
        let (start, mut gave_way) = (Instant::now(), Duration::ZERO);
        loop {
            let met = poll();
            let passed = start.elapsed();
            let misses = match (met, passed > LIMIT) {
                (true, false) => 0,
                (false, false) => {
                    std::thread::yield_now();
                    gave_way = start.elapsed() - passed;
                    continue;
                }
                // Other threads took the core for longer than a whole poll: the machine is busy.
                (_, true) if gave_way > LIMIT => MISSES,
                (_, true) => misses.wrapping_add(1),
            };
            self.misses.store(misses, Ordering::Relaxed);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a call polled.
    fn polls(poller: &BusyPoller, answered: bool) -> bool {
        let mut polled = false;
        poller.poll(|| {
            polled = true;
            answered
        });
        polled
    }

    #[test]
    fn tasks_that_share_a_thread_are_told_apart() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let call = || async { BusyPoller::is_threads_only_caller().await };
        runtime.block_on(async {
            for _ in 0..ALONE {
                assert!(!call().await);
            }
            assert!(call().await && call().await, "one task alone");
            let other = tokio::spawn(call());
            assert!(!other.await.unwrap(), "another task");
            assert!(!call().await, "this task again, which may not be alone");
        });
    }

    #[test]
    fn the_first_calls_on_a_connection_do_not_poll() {
        let poller = BusyPoller::default();
        assert_eq!((0..WARM_UP).filter(|_| polls(&poller, true)).count(), 0);
        assert!(polls(&poller, true));
    }

    #[test]
    fn calls_stop_polling_while_replies_do_not_come_in_time() {
        let poller = BusyPoller { misses: AtomicU32::new(0) };
        let polled = (0..PROBE).filter(|_| polls(&poller, false)).count();
        // Fewer on a busy machine, where one attempt is enough to stop.
        assert!((1..=MISSES as usize).contains(&polled), "{polled}");
        // After a while, a call finds out whether it pays again.
        assert!((0..=PROBE).any(|_| polls(&poller, true)));
    }
}
