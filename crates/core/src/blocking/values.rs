//! Small values beside locks, for threads.

use std::fmt;
use std::time::Duration;

use super::{Validity, block_on};
use crate::{
    Background, CellValue, Decision, Error, LockName, OnceOutcome, Options, Result, Token, Updated,
    Wait,
};

/// A value in the store that many processes read and change, as [`crate::Cell`].
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::MemoryStore;
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let stock = client.cell::<u64>("stock/teapot")?;
/// stock.set(&10)?;
/// let sold = stock.update(|stock| stock.unwrap_or(0).saturating_sub(3))?;
/// assert_eq!((sold.value, sold.conflicts), (7, 0));
/// # Ok(())
/// # }
/// ```
pub struct Cell<T> {
    cell: crate::Cell<T>,
    background: Background,
}

impl<T: CellValue> Cell<T> {
    pub(super) const fn new(cell: crate::Cell<T>, background: Background) -> Self {
        Self { cell, background }
    }

    /// The same cell, which expires, as [`crate::Cell::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { cell: self.cell.ttl(ttl), ..self }
    }

    /// The same cell with a limit on conflicts, as [`crate::Cell::max_conflicts`].
    #[must_use]
    pub fn max_conflicts(self, limit: u32) -> Self {
        Self { cell: self.cell.max_conflicts(limit), ..self }
    }

    /// The cell's name.
    pub fn name(&self) -> &LockName {
        self.cell.name()
    }

    /// The value, as [`crate::Cell::get`].
    ///
    /// # Errors
    /// As [`crate::Cell::get`].
    pub fn get(&self) -> Result<Option<T>> {
        block_on(&self.background, self.cell.get())
    }

    /// Replaces the value, whatever it was.
    ///
    /// # Errors
    /// As [`crate::Cell::set`].
    pub fn set(&self, value: &T) -> Result<()> {
        block_on(&self.background, self.cell.set(value))
    }

    /// Removes the value.
    ///
    /// # Errors
    /// As [`crate::Cell::remove`].
    pub fn remove(&self) -> Result<()> {
        block_on(&self.background, self.cell.remove())
    }

    /// Changes the value, as [`crate::Cell::update`]. `change` may be called several times.
    ///
    /// # Errors
    /// As [`crate::Cell::update`].
    pub fn update(&self, change: impl FnMut(Option<T>) -> T) -> Result<Updated<T>> {
        block_on(&self.background, self.cell.update(change))
    }

    /// Changes the value, unless `change` refuses, as [`crate::Cell::try_update`].
    ///
    /// # Errors
    /// As [`crate::Cell::try_update`].
    pub fn try_update<E: From<Error>>(
        &self,
        change: impl FnMut(Option<T>) -> Result<T, E>,
    ) -> Result<Updated<T>, E> {
        block_on(&self.background, self.cell.try_update(change))
    }

    /// Waits until the value fulfils a condition, and returns it.
    ///
    /// # Errors
    /// As [`crate::Cell::wait_until`].
    pub fn wait_until(&self, condition: impl FnMut(Option<&T>) -> bool) -> Result<Option<T>> {
        block_on(&self.background, self.cell.wait_until(condition))
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        Self { cell: self.cell.clone(), background: self.background.clone() }
    }
}

impl<T> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

/// A number in the store that many processes add to and subtract from, as [`crate::Counter`].
#[derive(Clone)]
pub struct Counter {
    counter: crate::Counter,
    background: Background,
}

impl Counter {
    pub(super) const fn new(counter: crate::Counter, background: Background) -> Self {
        Self { counter, background }
    }

    /// The same counter, which expires, as [`crate::Counter::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { counter: self.counter.ttl(ttl), ..self }
    }

    /// The counter's name.
    pub fn name(&self) -> &LockName {
        self.counter.name()
    }

    /// The value.
    ///
    /// # Errors
    /// As [`crate::Counter::get`].
    pub fn get(&self) -> Result<i64> {
        block_on(&self.background, self.counter.get())
    }

    /// Adds to the counter, and returns its new value.
    ///
    /// # Errors
    /// As [`crate::Counter::add`].
    pub fn add(&self, amount: i64) -> Result<i64> {
        block_on(&self.background, self.counter.add(amount))
    }

    /// Subtracts from the counter, unless the result would be below `floor`; returns its new value.
    ///
    /// # Errors
    /// As [`crate::Counter::subtract`].
    pub fn subtract(&self, amount: i64, floor: i64) -> Result<i64> {
        block_on(&self.background, self.counter.subtract(amount, floor))
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counter.fmt(f)
    }
}

/// A limit on how often something is done, as [`crate::RateLimiter`].
#[derive(Clone)]
pub struct RateLimiter {
    limiter: crate::RateLimiter,
    background: Background,
}

impl RateLimiter {
    pub(super) const fn new(limiter: crate::RateLimiter, background: Background) -> Self {
        Self { limiter, background }
    }

    /// The limiter's name.
    pub fn name(&self) -> &LockName {
        self.limiter.name()
    }

    /// Asks for a request of this cost to be let through.
    ///
    /// # Errors
    /// As [`crate::RateLimiter::take`].
    pub fn take(&self, cost: u64) -> Result<Decision> {
        block_on(&self.background, self.limiter.take(cost))
    }

    /// Whether a request of this cost would be let through now. It takes nothing.
    ///
    /// # Errors
    /// As [`crate::RateLimiter::peek`].
    pub fn peek(&self, cost: u64) -> Result<Decision> {
        block_on(&self.background, self.limiter.peek(cost))
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limiter.fmt(f)
    }
}

/// Work that is done once for a key, as [`crate::Once`].
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Error, MemoryStore, OnceOutcome};
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let payment = client.once::<String>("payment/4711")?;
/// let first = payment.run(|held| {
///     // … pay, with held.token() sent along …
///     # assert!(held.token().is_some());
///     Ok::<_, Error>("receipt 1".to_owned())
/// })?;
/// assert_eq!(first, OnceOutcome::Ran("receipt 1".to_owned()));
/// assert_eq!(payment.get()?.as_deref(), Some("receipt 1"));
/// # Ok(())
/// # }
/// ```
pub struct Once<T> {
    once: crate::Once<T>,
    background: Background,
}

impl<T: CellValue> Once<T> {
    pub(super) const fn new(once: crate::Once<T>, background: Background) -> Self {
        Self { once, background }
    }

    /// The same; the result is kept for this time, as [`crate::Once::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { once: self.once.ttl(ttl), ..self }
    }

    /// The same; the lock under which the work runs has these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { once: self.once.with(options), ..self }
    }

    /// The key.
    pub fn key(&self) -> &LockName {
        self.once.key()
    }

    /// The result, if the work was done.
    ///
    /// # Errors
    /// As [`crate::Once::get`].
    pub fn get(&self) -> Result<Option<T>> {
        block_on(&self.background, self.once.get())
    }

    /// Does the work, unless it was done; waits for another caller that does it now.
    ///
    /// # Errors
    /// As [`crate::Once::run`]. Unlike there, work that has begun runs to its end; the result of work whose
    /// lock was lost meanwhile is refused.
    pub fn run<E: From<Error>>(
        &self,
        work: impl FnOnce(&Validity) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_with(Wait::Forever, work)
    }

    /// As [`run`](Self::run), but does not wait for another caller that does the work now.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn try_run<E: From<Error>>(
        &self,
        work: impl FnOnce(&Validity) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_with(Wait::NoWait, work)
    }

    /// As [`run`](Self::run), and waits so long for another caller that does the work now.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with<E: From<Error>>(
        &self,
        wait: Wait,
        work: impl FnOnce(&Validity) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        let validity =
            |guard: &crate::Guard| Validity::new(guard.validity(), self.background.clone());
        let work = async |guard: &crate::Guard| work(&validity(guard));
        block_on(&self.background, self.once.run_with(wait, work))
    }

    /// Starts the work under a lock that the caller holds by itself, as [`crate::Once::start`].
    ///
    /// # Errors
    /// As [`crate::Once::start`].
    pub fn start(&self, token: Option<Token>) -> Result<OnceStart<T>> {
        let background = self.background.clone();
        Ok(match block_on(&self.background, self.once.start(token))? {
            crate::OnceStart::Started(run) => OnceStart::Started(OnceRun { run, background }),
            crate::OnceStart::Replayed(value) => OnceStart::Replayed(value),
        })
    }
}

/// What came of [starting](Once::start) work that is done once.
#[derive(Debug)]
pub enum OnceStart<T> {
    /// The caller does the work now.
    Started(OnceRun<T>),
    /// The work was done before, with this result.
    Replayed(T),
}

/// Work that was [started](Once::start) and is not finished, as [`crate::OnceRun`].
#[must_use = "without a result, the next caller does the work again"]
pub struct OnceRun<T> {
    run: Box<crate::OnceRun<T>>,
    background: Background,
}

impl<T: CellValue> OnceRun<T> {
    /// The same; its result is kept for this time.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { run: self.run.ttl(ttl), ..self }
    }

    /// Keeps the result of the work, as [`crate::OnceRun::finish`].
    ///
    /// # Errors
    /// As [`crate::OnceRun::finish`].
    pub fn finish(self, value: &T) -> Result<()> {
        block_on(&self.background, self.run.finish(value))
    }
}

impl<T> fmt::Debug for OnceRun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        Self { once: self.once.clone(), background: self.background.clone() }
    }
}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.once.fmt(f)
    }
}
