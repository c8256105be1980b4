//! The gate to the table: one process at a time, and none for ever.
//!
//! A futex word that names who is inside. It is ours and not a robust `pthread_mutex_t` for three
//! reasons: it costs one atomic instruction each way; what damage may do to it is bounded (a
//! damaged pthread mutex makes libc follow wild pointers); and programs built with different C
//! libraries can share it. What a robust mutex does through the kernel's exit list, this does by
//! asking whether the member inside is still alive.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::fault::Result;

/// Somebody waits: whoever leaves must wake one.
const CONTENDED: u32 = 1 << 31;
/// Pauses before sleeping: about as long as one operation takes.
const SPINS: u32 = 200;
/// How long to sleep before looking whether the member inside has died. The tests of kills pass
/// over tens of thousands of dead.
const LOOK_AFTER: Duration = Duration::from_micros(if cfg!(test) { 10 } else { 1_000 });
/// How long to wait for a member that lives but does not come out: it is stopped, or starved.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How the gate was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// It was open, or somebody came out.
    Open,
    /// Whoever was inside died there: what it left half done must be undone.
    OverTheDead,
    /// Not at all: this member has been inside for too long.
    Blocked(u32),
}

/// Goes in as `me`, which must not be zero. `is_dead` tells whether another member has died.
pub(crate) fn enter(
    word: &AtomicU32,
    me: u32,
    is_dead: impl Fn(u32) -> Result<bool>,
) -> Result<Passed> {
    if take(word, 0, me) || spin(word, me) {
        return Ok(Passed::Open);
    }
    let mut started = Instant::now();
    let mut slept = false;
    loop {
        let seen = word.load(Ordering::Relaxed);
        // Others may still sleep, so the mark stays. And somebody who comes and goes all the time
        // must not always be faster than one who is just waking up: so it tries for a while.
        if seen == 0 || slept {
            if spin(word, me | CONTENDED) {
                return Ok(Passed::Open);
            }
            slept = false;
            continue;
        }
        let marked = seen | CONTENDED;
        if seen != marked && !take(word, seen, marked) {
            continue;
        }
        sleep(word, marked);
        slept = true;
        let inside = marked & !CONTENDED;
        if word.load(Ordering::Relaxed) != marked {
            started = Instant::now();
            continue;
        }
        if inside == 0 || is_dead(inside)? {
            if take(word, marked, me | CONTENDED) {
                return Ok(Passed::OverTheDead);
            }
        } else if started.elapsed() > PATIENCE {
            return Ok(Passed::Blocked(inside));
        }
    }
}

/// Comes out, and wakes one who waits.
pub(crate) fn leave(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        // Nobody to wake is no fault; nothing else can go wrong on mapped memory.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

fn take(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

fn spin(word: &AtomicU32, me: u32) -> bool {
    (0..SPINS).any(|_| {
        std::hint::spin_loop();
        word.load(Ordering::Relaxed) == 0 && take(word, 0, me)
    })
}

fn sleep(word: &AtomicU32, expected: u32) {
    let limit = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_AFTER.subsec_nanos()) as _ };
    // Woken, timed out, interrupted or changed meanwhile: the caller looks again in every case.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn nobody_dies(_: u32) -> Result<bool> {
        Ok(false)
    }

    #[test]
    fn threads_take_turns() {
        let word = AtomicU32::new(0);
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for me in 1..=4 {
                let (word, inside) = (&word, &inside);
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        assert_eq!(enter(word, me, nobody_dies).unwrap(), Passed::Open);
                        assert_eq!(inside.swap(me, Ordering::Relaxed), 0);
                        assert_eq!(inside.swap(0, Ordering::Relaxed), me);
                        leave(word);
                    }
                });
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_died_inside_is_found_out_and_replaced() {
        let word = AtomicU32::new(7);
        let asked = Cell::new(0);
        let is_dead = |who| {
            asked.set(who);
            Ok(true)
        };
        assert_eq!(enter(&word, 9, is_dead).unwrap(), Passed::OverTheDead);
        assert_eq!(asked.get(), 7);
        leave(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_lives_and_stays_inside_is_named() {
        let word = AtomicU32::new(7);
        assert_eq!(enter(&word, 9, nobody_dies).unwrap(), Passed::Blocked(7));
    }
}
