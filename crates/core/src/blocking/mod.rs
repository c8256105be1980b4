//! The same locks and values for threads: every call blocks until it is done.
//!
//! Use it in programs without an async runtime, and in code that a thread runs from its beginning to its
//! end. The names, the defaults and the errors are those of the async API, which does the work: a call here
//! polls the same future on the calling thread, and a thread of the client serves its connections and timers.
//! While a call waits, its thread sleeps.
//!
//! ```
//! use std::sync::Arc;
//! use tenure::MemoryStore;
//! use tenure::blocking::Client;
//!
//! # fn main() -> tenure::Result<()> {
//! let client = Client::new(Arc::new(MemoryStore::new()))?;
//! let paid = client.mutex("payouts")?.run(|guard| {
//!     // … the work, with guard.token() sent along with every write …
//!     # assert!(guard.token().is_some());
//!     3
//! })?;
//! assert_eq!(paid, 3);
//! client.close();
//! # Ok(())
//! # }
//! ```
//!
//! # On a thread of a runtime
//! Calls work on any thread: outside a runtime, in
//! [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html), and on a worker of a
//! runtime, also if it is the only one. They block that worker, as a [`std::sync::Mutex`] does: other tasks
//! of it wait meanwhile. So a task must not block for a lock that another task of the same single thread
//! holds, and should rather use the async API.
//!
//! # Panics
//! A guard that is dropped while its thread panics releases the lock, as every dropped guard does: other
//! holders find no "poisoned" lock. If they must not see work that was done by half, do it in a way that
//! can be repeated.

mod client;
mod coordination;
mod guard;
mod locks;
mod reentrant;
mod values;

pub use client::{Client, Watch};
pub use coordination::{Barrier, Election, Latch, LatchParty, Leaders, Leadership, Revoke};
pub use guard::{FencedGuard, Guard, MultiGuard, ReadGuard, Validity, WriteGuard};
pub use locks::{FencedMutex, MultiLock, Mutex, RwLock, Semaphore};
pub use reentrant::{ReentrantGuard, ReentrantMutex, ThreadGuard, ThreadMutex};
pub use values::{Cell, Counter, Once, OnceRun, OnceStart, RateLimiter};

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::Background;

/// Polls a future on this thread until it is done. Its timers, connections and tasks are those of
/// `background`, so it makes progress whatever runs, or is blocked, on this thread.
///
/// Not `Handle::block_on`, which panics on a thread of another runtime.
pub(crate) fn block_on<F: Future>(background: &Background, work: F) -> F::Output {
    let _runtime = background.runtime().enter();
    let woken = Arc::new(Woken { thread: thread::current(), is: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    // Inside a task of another runtime, that task's budget would count, and nothing renews it here.
    let mut work = pin!(tokio::task::unconstrained(work));
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
            return output;
        }
        woken.wait();
    }
}

/// Whether the future must be polled again. The token of `std::thread::park` cannot tell: a nested call,
/// or code of the program, may take it.
struct Woken {
    thread: Thread,
    is: AtomicBool,
}

impl Woken {
    fn wait(&self) {
        while !self.is.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::time::Duration;

    fn on_a_thread<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, ended) = mpsc::channel();
        thread::spawn(move || done.send(test()));
        ended.recv_timeout(Duration::from_secs(20)).expect("the test hangs or panics")
    }

    #[test]
    fn a_wait_polls_only_when_it_is_woken() {
        let polls = on_a_thread(|| {
            let background = Background::start("tenure-test").unwrap();
            let polls = Cell::new(0);
            let sleep = async {
                let mut sleep = pin!(tokio::time::sleep(Duration::from_millis(50)));
                poll_fn(|context| {
                    polls.set(polls.get() + 1);
                    sleep.as_mut().poll(context)
                })
                .await;
            };
            // What is left of an earlier `unpark` does not count.
            thread::current().unpark();
            block_on(&background, sleep);
            polls.get()
        });
        assert!((2..=3).contains(&polls), "{polls}");
    }

    #[test]
    fn a_nested_call_does_not_take_the_wake_up_of_the_outer_one() {
        on_a_thread(|| {
            let background = Background::start("tenure-test").unwrap();
            let done = Arc::new(AtomicBool::new(false));
            let (mut polled, mut started) = (false, false);
            let outer = poll_fn(|context| {
                if std::mem::replace(&mut polled, true) {
                    return Poll::Ready(());
                }
                // This wake-up comes before the inner call sleeps, which takes the thread's token.
                context.waker().wake_by_ref();
                let inner = poll_fn(|context| {
                    if done.load(Ordering::Acquire) {
                        return Poll::Ready(());
                    }
                    if !std::mem::replace(&mut started, true) {
                        let (waker, done) = (context.waker().clone(), Arc::clone(&done));
                        thread::spawn(move || {
                            thread::sleep(Duration::from_millis(20));
                            done.store(true, Ordering::Release);
                            waker.wake();
                        });
                    }
                    Poll::Pending
                });
                block_on(&background, inner);
                Poll::Pending
            });
            block_on(&background, outer);
        });
    }
}
