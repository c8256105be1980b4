//! Attempts that may fail again and again, such as dials and look-ups of a topology: one at a time for all
//! callers ([`SingleFlight`]), and not at the rate of the calls ([`RetryPacer`]).

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tenure_core::{Error, ErrorKind, OwnerId, Result};
use tenure_proto::Backoff;
use tokio::time::Instant;

/// Spaces attempts out. The first attempt after a quiet period is due at once; each that follows closely
/// waits twice as long as the one before, with jitter, up to a limit. Success does not matter: a server
/// that accepts a connection and drops it is not dialled at the rate of the calls either.
pub(crate) struct RetryPacer(Mutex<State>);

struct State {
    backoff: Backoff,
    /// The longest pause.
    most: Duration,
    /// When the next attempt is due.
    next: Option<Instant>,
}

const FIRST: Duration = Duration::from_millis(10);

impl RetryPacer {
    /// For dials to one server: a server that comes back is found within a quarter of a second.
    pub(crate) const fn for_dials() -> Self {
        Self::new(Duration::from_millis(250))
    }

    /// For look-ups of a topology.
    pub(crate) const fn for_lookups() -> Self {
        Self::new(Duration::from_millis(500))
    }

    const fn new(most: Duration) -> Self {
        Self(Mutex::new(State { backoff: Backoff::new(FIRST, most), most, next: None }))
    }

    /// Reserves the next attempt, and returns when it may begin.
    pub(crate) fn next_attempt(&self) -> Instant {
        self.0.lock().next_attempt(Instant::now(), random())
    }

    /// Whether an attempt could begin now.
    pub(crate) fn is_due(&self) -> bool {
        self.0.lock().next.is_none_or(|next| next <= Instant::now())
    }
}

impl State {
    fn next_attempt(&mut self, now: Instant, random: u64) -> Instant {
        if self.next.is_none_or(|next| now >= next + 2 * self.most) {
            self.backoff.reset();
        }
        let at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(at + self.backoff.next(random));
        at
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    let bytes = *OwnerId::random().as_bytes();
    u64::from_ne_bytes(std::array::from_fn(|place| bytes[place]))
}

/// Work that one task does for all concurrent callers, on the runtime on which it was started.
pub(crate) struct SingleFlight<T> {
    begun: Instant,
    outcome: SharedOutcome<T>,
}

pub(crate) type SharedOutcome<T> = Shared<BoxFuture<'static, Result<T>>>;

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Starts the work. `operation` completes "could not …".
    pub(crate) fn start(
        operation: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        let gone = move || {
            Error::new(
                ErrorKind::Unreachable,
                operation,
                "the runtime that served the attempt has ended: try again",
            )
        };
        let done = tokio::spawn(work).map(move |done| done.unwrap_or_else(|_| Err(gone())));
        Self { begun: Instant::now(), outcome: done.boxed().shared() }
    }

    /// Whether the work is still running, if it waits for a server for at most `limit`. Otherwise its
    /// runtime has ended or is blocked, and another task has to do the work.
    pub(crate) fn is_running(&self, limit: Duration) -> bool {
        // Before the work, the task may wait for the pacer.
        const TURN: Duration = Duration::from_secs(1);
        self.outcome.peek().is_none() && self.begun.elapsed() < 2 * limit + TURN
    }

    pub(crate) fn outcome(&self) -> SharedOutcome<T> {
        self.outcome.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(most: Duration) -> State {
        State { backoff: Backoff::new(FIRST, most), most, next: None }
    }

    #[test]
    fn attempts_in_a_row_are_spaced_out_and_a_quiet_time_makes_the_next_one_immediate() {
        let (most, start) = (Duration::from_millis(250), Instant::now());
        let mut state = state(most);
        assert_eq!(state.next_attempt(start, 0), start);
        // An attempt that fails at once, for ten seconds.
        let (mut now, mut attempts) = (start, 1);
        while now < start + Duration::from_secs(10) {
            now = state.next_attempt(now, u64::MAX);
            attempts += 1;
        }
        assert!((40..60).contains(&attempts), "{attempts}");
        // A connection that lasted.
        now += Duration::from_secs(5);
        assert_eq!(state.next_attempt(now, 0), now);
        let again = state.next_attempt(now, 0);
        assert!(again <= now + FIRST, "{:?}", again - now);
    }

    #[test]
    fn turns_taken_at_the_same_moment_do_not_coincide() {
        let (mut state, now) = (state(Duration::from_millis(250)), Instant::now());
        let mut turns: Vec<Instant> = (0..10).map(|_| state.next_attempt(now, 0)).collect();
        turns.dedup();
        assert_eq!(turns.len(), 10);
    }
}
