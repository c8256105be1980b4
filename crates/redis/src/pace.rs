//! How often something is tried that may fail again and again: dialling, looking up a topology.

use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_proto::Backoff;
use tokio::time::Instant;

/// Spaces attempts out. The first one after a quiet time is due at once; each of those that follow
/// closely waits twice as long as the one before, with jitter, up to a limit. Whether an attempt
/// succeeded does not matter: a server that takes a connection and drops it is not dialled at
/// the rate of the calls either.
pub(crate) struct Pace(Mutex<State>);

struct State {
    backoff: Backoff,
    /// The longest pause.
    most: Duration,
    /// When the next attempt is due.
    next: Option<Instant>,
}

const FIRST: Duration = Duration::from_millis(10);

impl Pace {
    /// For dialling one server: one that comes back is found within a quarter of a second.
    pub(crate) const fn of_dials() -> Self {
        Self::new(Duration::from_millis(250))
    }

    /// For asking who serves what.
    pub(crate) const fn of_lookups() -> Self {
        Self::new(Duration::from_millis(500))
    }

    const fn new(most: Duration) -> Self {
        Self(Mutex::new(State { backoff: Backoff::new(FIRST, most), most, next: None }))
    }

    /// Takes the next turn: when the attempt may begin.
    pub(crate) fn turn(&self) -> Instant {
        self.0.lock().turn(Instant::now(), chance())
    }

    /// Whether an attempt could begin now.
    pub(crate) fn is_due(&self) -> bool {
        self.0.lock().next.is_none_or(|next| next <= Instant::now())
    }
}

impl State {
    fn turn(&mut self, now: Instant, random: u64) -> Instant {
        if self.next.is_none_or(|next| now >= next + 2 * self.most) {
            self.backoff.reset();
        }
        let at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(at + self.backoff.next(random));
        at
    }
}

/// A random number.
pub(crate) fn chance() -> u64 {
    let bytes = *OwnerId::random().as_bytes();
    u64::from_ne_bytes(std::array::from_fn(|place| bytes[place]))
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
        assert_eq!(state.turn(start, 0), start);
        // An attempt that fails at once, for ten seconds.
        let (mut now, mut attempts) = (start, 1);
        while now < start + Duration::from_secs(10) {
            now = state.turn(now, u64::MAX);
            attempts += 1;
        }
        assert!((40..60).contains(&attempts), "{attempts}");
        // A connection that lasted.
        now += Duration::from_secs(5);
        assert_eq!(state.turn(now, 0), now);
        let again = state.turn(now, 0);
        assert!(again <= now + FIRST, "{:?}", again - now);
    }

    #[test]
    fn turns_taken_at_the_same_moment_do_not_coincide() {
        let (mut state, now) = (state(Duration::from_millis(250)), Instant::now());
        let mut turns: Vec<Instant> = (0..10).map(|_| state.turn(now, 0)).collect();
        turns.dedup();
        assert_eq!(turns.len(), 10);
    }
}
