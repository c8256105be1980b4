//! Work that is done once, and whose result others get.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::contract::{CellSpace, Expiry};
use super::slot::{Outcome, Seen, Slot};
use super::value::CellValue;
use crate::{Client, Error, ErrorKind, Guard, LockName, Mutex, Options, Result, Token, Wait};

/// Work that is done once for a key, in whichever process asks first; the others get its result.
///
/// The work runs under a lock with a lease, which is kept alive while it runs. If its process dies, another
/// caller does the work anew after the lease has ended. A result that comes after that is refused.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure::{Client, Error, MemoryStore, OnceOutcome};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let payment = client.once::<String>("payment/4711")?.ttl(Duration::from_secs(24 * 3600));
/// let first = payment.run(async |guard| {
///     // … pay, with guard.token() sent along …
///     Ok::<_, Error>("receipt 1".to_owned())
/// });
/// assert_eq!(first.await?, OnceOutcome::Ran("receipt 1".to_owned()));
///
/// let second = payment.run(async |_| Ok::<_, Error>("receipt 2".to_owned()));
/// assert_eq!(second.await?, OnceOutcome::Replayed("receipt 1".to_owned()));
/// # Ok(())
/// # }
/// ```
///
/// "Once" is about results: work that had an effect before its process died is done again. Make its
/// effects repeatable, or send the token along and have them [fenced](crate::Fence).
pub struct Once<T> {
    slot: Slot,
    mutex: Mutex,
    ttl: Duration,
    value: PhantomData<fn() -> T>,
}

/// What came of asking for work to be done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceOutcome<T> {
    /// This call did the work, and this is its result.
    Ran(T),
    /// The work was done before, with this result.
    Replayed(T),
    /// Another caller does the work now, and this call was told not to wait for it.
    InProgress,
}

impl<T> OnceOutcome<T> {
    /// The result, if there is one.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Ran(value) | Self::Replayed(value) => Some(value),
            Self::InProgress => None,
        }
    }
}

/// How long a result is kept, unless [`Once::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a run may take, at the least, before its record expires and its result is refused.
const RUN_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How often the start record is written again because an earlier holder wrote in between.
const MAX_CONFLICTS: u32 = 100;

const RUN: &str = "run once";

impl<T: CellValue> Once<T> {
    pub(crate) fn new(client: &Client, key: &str) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Once, key)?;
        let mutex = client.mutex(&format!("once:{key}"))?;
        Ok(Self { slot, mutex, ttl: TTL, value: PhantomData })
    }

    /// The same; the result is kept for this time, instead of a day. After it, the work is done anew.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The same; the lock under which the work runs has these options. Its TTL is how long others wait
    /// after the process that does the work has died.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.mutex = self.mutex.with(options.without_keeping("work that is done once"));
        self
    }

    /// The key.
    pub fn key(&self) -> &LockName {
        &self.slot.key.name
    }

    /// The result, if the work was done.
    ///
    /// # Errors
    /// Faults of the store that last for five call timeouts; [`Damaged`](ErrorKind::Damaged) for a result
    /// of another type.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn get(&self) -> Result<Option<T>> {
        self.result(&self.slot.read().await?)
    }

    /// Does the work, unless it was done; waits for another caller that does it now.
    ///
    /// An error of `work` is handed back, and nothing is kept: the next caller does the work.
    ///
    /// # Errors
    /// Those of `work`. [`Lost`](ErrorKind::Lost) if the lock was lost before the result was kept: another
    /// caller may do the work again. [`Invalid`](ErrorKind::Invalid) for a result over the store's limit:
    /// the work is done, and its result is not kept. Otherwise as [`Mutex::acquire`], and faults of the
    /// store.
    ///
    /// # Cancel safety
    /// Dropping it drops `work` and releases the lock: the next caller does the work.
    pub async fn run<E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_with(Wait::Forever, work).await
    }

    /// As [`run`](Self::run), but does not wait for another caller that does the work now.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn try_run<E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_with(Wait::NoWait, work).await
    }

    /// As [`run`](Self::run), and waits so long for another caller that does the work now.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_with<E: From<Error>>(
        &self,
        wait: Wait,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        if let Some(value) = self.get().await? {
            return Ok(OnceOutcome::Replayed(value));
        }
        let guard = match self.mutex.acquire_with(wait).await {
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {
                return Ok(OnceOutcome::InProgress);
            }
            guard => guard?,
        };
        let run = match self.start(guard.token()).await? {
            OnceStart::Replayed(value) => return Ok(OnceOutcome::Replayed(value)),
            OnceStart::Started(run) => run,
        };
        let value = guard.run(work(&guard)).await??;
        run.finish(&value).await?;
        // The result is kept: whether the lock is still held no longer matters.
        let _ = guard.release().await;
        Ok(OnceOutcome::Ran(value))
    }

    /// Starts the work under a lock that the caller holds by itself, with this fencing token. Use it where
    /// the work is not a future that [`run`](Self::run) could drop, such as a child process. All that start
    /// the work must hold the same lock.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if a later holder of the lock has started the work; otherwise as
    /// [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Dropped halfway, the work may count as started, which the next caller is free to do again.
    pub async fn start(&self, token: Option<Token>) -> Result<OnceStart<T>> {
        let mut seen = self.slot.read().await?;
        for _ in 0..MAX_CONFLICTS {
            if let Some(value) = self.result(&seen)? {
                return Ok(OnceStart::Replayed(value));
            }
            // A holder of an older token was paused between its grant and this check.
            if started(&seen).is_some_and(|newest| token.is_some_and(|token| token < newest)) {
                return Err(self.refused());
            }
            match self.begin(&seen, token).await? {
                Outcome::Done(begun) => {
                    return Ok(OnceStart::Started(Box::new(OnceRun { once: self.clone(), begun })));
                }
                // Without tokens, it is unknown which of the two holds the lock now.
                Outcome::Conflict(current) if token.is_none() && started(&current).is_some() => {
                    return Err(self.refused());
                }
                // An earlier holder has just finished or started.
                Outcome::Conflict(current) => seen = current,
            }
        }
        let why =
            format!("other callers wrote it first, {MAX_CONFLICTS} times in a row: try later");
        Err(Error::new(ErrorKind::Busy, RUN, why).about(self.key()))
    }

    /// Records that the holder with this token starts the work. From then on the result of an earlier run
    /// is refused, because its swap expects an older version.
    async fn begin(&self, seen: &Seen, token: Option<Token>) -> Result<Outcome> {
        let number = token.map_or(0, Token::get).to_string();
        let bytes = [&[RUNNING], number.as_bytes()].concat();
        let expiry = Expiry::After(self.ttl.max(RUN_FOR));
        self.slot.swap(seen, Some(bytes), expiry).await
    }

    fn result(&self, seen: &Seen) -> Result<Option<T>> {
        match seen.value() {
            None | Some([RUNNING, ..]) => Ok(None),
            Some([DONE, bytes @ ..]) => {
                T::from_bytes(bytes).map(Some).map_err(|error| error.about(self.key()))
            }
            Some(_) => Err(self.slot.damaged("the stored value")),
        }
    }

    fn refused(&self) -> Error {
        let why =
            "the lock was lost, and another caller has begun the work meanwhile: its result counts";
        Error::new(ErrorKind::Lost, RUN, why).about(self.key())
    }
}

/// What came of [starting](Once::start) work that is done once.
#[derive(Debug)]
pub enum OnceStart<T> {
    /// The caller does the work now.
    Started(Box<OnceRun<T>>),
    /// The work was done before, with this result.
    Replayed(T),
}

/// Work that was [started](Once::start) and is not finished. If it is dropped, the next caller does the
/// work.
#[must_use = "without a result, the next caller does the work again"]
pub struct OnceRun<T> {
    once: Once<T>,
    begun: Seen,
}

impl<T: CellValue> OnceRun<T> {
    /// The same; its result is kept for this time.
    pub fn ttl(mut self: Box<Self>, ttl: Duration) -> Box<Self> {
        self.once.ttl = ttl;
        self
    }

    /// Keeps the result of the work.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if another caller has started the work meanwhile: its result counts.
    /// [`Invalid`](ErrorKind::Invalid) for a result over the store's limit; faults of the store.
    ///
    /// # Cancel safety
    /// Dropped halfway, the result may or may not be kept.
    pub async fn finish(self: Box<Self>, value: &T) -> Result<()> {
        let Self { once, begun } = *self;
        let mut bytes = vec![DONE];
        bytes.extend(value.to_bytes().map_err(|error| error.about(once.key()))?);
        match once.slot.swap(&begun, Some(bytes), Expiry::After(once.ttl)).await? {
            Outcome::Done(_) => Ok(()),
            Outcome::Conflict(_) => Err(once.refused()),
        }
    }
}

impl<T> fmt::Debug for OnceRun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceRun").field("once", &self.once).finish_non_exhaustive()
    }
}

const RUNNING: u8 = b'R';
const DONE: u8 = b'D';

/// The token of the holder that started last.
fn started(seen: &Seen) -> Option<Token> {
    let [RUNNING, digits @ ..] = seen.value()? else { return None };
    std::str::from_utf8(digits).ok()?.parse().ok().map(Token::new)
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        let Self { slot, mutex, ttl, value } = self;
        Self { slot: slot.clone(), mutex: mutex.clone(), ttl: *ttl, value: *value }
    }
}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("key", &self.slot.key.name).field("ttl", &self.ttl).finish()
    }
}
