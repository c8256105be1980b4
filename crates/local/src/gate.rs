//! The gate: a mutex in the table that outlives its holder.
//!
//! It is a futex word that names the process inside. It is not a robust `pthread_mutex_t` for three reasons:
//! it costs one atomic instruction each way; damage to it has bounded effects (a damaged pthread mutex makes
//! libc follow wild pointers); and programs built with different C libraries can share it. A robust mutex
//! learns of its holder's death from the kernel; here the next process asks whether the one inside lives.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::fault::Result;

/// Another process may sleep on the word: leaving must wake one.
const CONTENDED: u32 = 1 << 31;
/// Spins before sleeping: about as long as one operation takes.
const SPINS: u32 = 200;
/// How long to sleep before checking whether the process inside has died. The kill tests enter after tens
/// of thousands of deaths.
const CHECK_INTERVAL: Duration = Duration::from_micros(if cfg!(test) { 10 } else { 1_000 });
/// How long to wait for a live process that does not leave: it is stopped or starved.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// How the gate was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It was free, or became free.
    Free,
    /// The process inside was dead: its unfinished change must be rolled back.
    AfterDeath,
    /// It was not entered: this process has been inside for too long.
    Blocked(u32),
}

/// Enters as `me`, which must not be zero. `is_dead` says whether another process is dead.
pub(crate) fn enter(
    word: &AtomicU32,
    me: u32,
    is_dead: impl Fn(u32) -> Result<bool>,
) -> Result<Entered> {
    if take(word, 0, me) || spin(word, me) {
        return Ok(Entered::Free);
    }
    let mut started = Instant::now();
    let mut slept = false;
    loop {
        let seen = word.load(Ordering::Relaxed);
        // Others may still sleep, so the mark stays. A process that has just woken spins for a while:
        // otherwise one that enters and leaves all the time would always be faster.
        if seen == 0 || slept {
            if spin(word, me | CONTENDED) {
                return Ok(Entered::Free);
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
                return Ok(Entered::AfterDeath);
            }
        } else if started.elapsed() > TIMEOUT {
            return Ok(Entered::Blocked(inside));
        }
    }
}

/// Leaves, and wakes one sleeping process.
pub(crate) fn leave(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        // That no process sleeps is no error, and there is no other error on mapped memory.
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
    let limit =
        futex::Timespec { tv_sec: 0, tv_nsec: i64::from(CHECK_INTERVAL.subsec_nanos()) as _ };
    // Woken, timed out, interrupted, or changed meanwhile: the caller reads the word again.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn none_is_dead(_: u32) -> Result<bool> {
        Ok(false)
    }

    #[test]
    fn one_thread_is_inside_at_a_time() {
        let word = AtomicU32::new(0);
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for me in 1..=4 {
                let (word, inside) = (&word, &inside);
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        assert_eq!(enter(word, me, none_is_dead).unwrap(), Entered::Free);
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
    fn a_process_that_died_inside_is_replaced() {
        let word = AtomicU32::new(7);
        let asked = Cell::new(0);
        let is_dead = |inside| {
            asked.set(inside);
            Ok(true)
        };
        assert_eq!(enter(&word, 9, is_dead).unwrap(), Entered::AfterDeath);
        assert_eq!(asked.get(), 7);
        leave(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_live_process_that_stays_inside_is_named() {
        let word = AtomicU32::new(7);
        assert_eq!(enter(&word, 9, none_is_dead).unwrap(), Entered::Blocked(7));
    }
}
