//! A count that many processes count down, and wait for.

use std::fmt;
use std::time::Duration;

use super::contract::{Added, CellSpace};
use super::counter::Counter;
use super::slot::POLL;
use crate::{Client, Error, ErrorKind, LockName, Result};

/// A count that processes count down, and wait for to be zero: for work that may begin when so many others
/// have finished.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure_core::{Client, Error, ErrorKind, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let imported = client.latch("import/2026-11-18", 2)?;
/// assert_eq!(imported.count_down().await?, 1); // in one process, when its part is done
/// assert_eq!(imported.count_down().await?, 0); // in another
/// imported.wait().await?; // in all that need both parts
///
/// let refused = imported.count_down().await.unwrap_err(); // a third one
/// assert_eq!(refused.kind(), ErrorKind::Invalid);
/// # Ok(())
/// # }
/// ```
///
/// A latch is for one use, and expires: a day after the first [`count_down`](Self::count_down) or
/// [`wait`](Self::wait), unless [`ttl`](Self::ttl) says otherwise. So a party that died before it counted
/// down does not hang the others for ever, and nothing is left in the store. All users of a latch should
/// name the same count; where they differ, each goes by its own.
///
/// A call whose reply is lost is sent again, and still counts once. Waiting is told of changes on etcd,
/// ZooKeeper and memory; on Redis and local it asks, five times a second after the first second.
#[derive(Clone)]
pub struct Latch {
    /// How often it was counted down.
    counter: Counter,
    count: u32,
}

/// How long a latch stays, unless [`Latch::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

impl Latch {
    pub(crate) fn new(client: &Client, name: &str, count: u32) -> Result<Self> {
        let counter = Counter::in_space(client, CellSpace::Latch, name)?.ttl(TTL);
        if count == 0 {
            let why = "it would be open from the beginning: choose a count of one or more";
            return Err(counter.error(ErrorKind::Invalid, why.into()));
        }
        Ok(Self { counter, count })
    }

    /// The same latch; if this handle is the first to use it, it expires after this time. A latch does not
    /// expire early, and goes a little later.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.counter = self.counter.ttl(ttl);
        self
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        self.counter.name()
    }

    /// How often it must still be counted down.
    ///
    /// # Errors
    /// Faults of the store that last for five call timeouts ([`Client::with_call_timeout`]).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn count(&self) -> Result<u32> {
        Ok(self.left(self.counter.get().await?))
    }

    /// Counts down by one, and returns what is left.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the count is zero already: nothing was changed. Faults of the
    /// store that last for five call timeouts; the count is as it was, unless the error has
    /// [`Effect::Unknown`](crate::Effect).
    ///
    /// # Cancel safety
    /// Dropped halfway, it may have been counted down, or may yet be.
    pub async fn count_down(&self) -> Result<u32> {
        match self.counter.add_within(1, (0, i64::from(self.count))).await? {
            Added::Done(counted) => Ok(self.left(counted)),
            Added::OutOfRange(counted) => {
                let why = format!(
                    "it was counted down {counted} times, and its count is {}: more parties count \
                     than were named, or one counts twice",
                    self.count
                );
                Err(self.counter.error(ErrorKind::Invalid, why))
            }
        }
    }

    /// Waits until the count is zero.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut) if the latch expired before that; otherwise as
    /// [`count`](Self::count).
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn wait(&self) -> Result<()> {
        let slot = &self.counter.slot;
        let mut seen = slot.read().await?;
        if seen.version.is_none() {
            // From now on it expires: an absent latch is one that has.
            self.counter.add_within(0, (0, Counter::MAX)).await?;
            seen = slot.read().await?;
        }
        loop {
            if seen.version.is_none() {
                let why = "it expired before it was counted down: a party died, or needs longer than \
                           the latch is kept (`Latch::ttl`)";
                let error = Error::new(ErrorKind::TimedOut, "wait for the latch", why);
                return Err(error.about(self.name()));
            }
            if self.left(self.counter.count(&seen)?) == 0 {
                return Ok(());
            }
            slot.changed(&seen, POLL).await;
            seen = slot.read().await?;
        }
    }

    fn left(&self, counted: i64) -> u32 {
        self.count.saturating_sub(u32::try_from(counted.max(0)).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("name", self.name()).field("count", &self.count).finish()
    }
}
