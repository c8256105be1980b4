//! A count that many processes count down, and wait for.

use std::fmt;
use std::time::Duration;

use super::contract::{Added, CellSpace, Expiry};
use super::counter::Counter;
use super::slot::{Outcome, POLL, Slot};
use crate::{
    Client, Error, ErrorKind, Guard, LockName, Moment, Options, OwnerId, Result, Semaphore,
    Validity, now,
};

/// A count that processes count down, and wait for to be zero: for work that may begin when so many others
/// have finished.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, Error, ErrorKind, MemoryStore};
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
/// A party that [joins](Self::join) has a lease until it counts down. If it dies or leaves before that, those
/// that wait get an error ([`Broken`](ErrorKind::Broken)) instead of waiting for it.
///
/// A latch is for one use, and expires: a day after the first [`count_down`](Self::count_down) or
/// [`wait`](Self::wait), unless [`ttl`](Self::ttl) says otherwise. So a party that died without having joined
/// does not hang the others for ever, and nothing is left in the store. All users of a latch should
/// name the same count; where they differ, each goes by its own.
///
/// A call whose reply is lost is sent again, and still counts once. Waiting is told of changes on etcd,
/// ZooKeeper and memory; on Redis and local it asks, five times a second after the first second.
#[derive(Clone)]
pub struct Latch {
    /// How often it was counted down.
    counter: Counter,
    count: u32,
    /// The owner ids of the parties that have joined and not counted down, a line each.
    parties: Slot,
    /// The leases of these parties.
    places: Semaphore,
    ttl: Duration,
}

/// A party of a [`Latch`] that others do not wait for in vain: it has a lease until it counts down, from
/// [`Latch::join`]. Dropping it without counting down breaks the latch.
#[must_use = "the latch is broken as soon as the party is dropped"]
pub struct LatchParty {
    latch: Latch,
    guard: Guard,
}

/// How long a latch stays, unless [`Latch::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How often the list of parties is written anew after others came first.
const MAX_CONFLICTS: u32 = 10_000;

const WAIT: &str = "wait for the latch";

impl Latch {
    pub(crate) fn new(client: &Client, name: &str, count: u32) -> Result<Self> {
        let counter = Counter::in_space(client, CellSpace::Latch, name)?.ttl(TTL);
        if count == 0 {
            let why = "it would be open from the beginning: choose a count of one or more";
            return Err(counter.error(ErrorKind::Invalid, why.into()));
        }
        let parties = Slot::new(client, CellSpace::LatchParties, name)?;
        let places = client.semaphore(&format!("latch:{name}"), count)?;
        Ok(Self { counter, count, parties, places, ttl: TTL })
    }

    /// The same latch; parties that [join](Self::join) have a lease with these options. The TTL bounds how long
    /// the others wait for a party that has died.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.places = self.places.with(options.without_keeping("a latch"));
        self
    }

    /// The same latch; if this handle is the first to use it, it expires after this time. A latch does not
    /// expire early, and goes a little later.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        (self.counter, self.ttl) = (self.counter.ttl(ttl), ttl);
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
            Added::Forgotten => Err(self.counter.forgotten()),
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

    /// Makes this process a party with a lease, which is renewed until it counts down. The lease is that of a
    /// permit of the semaphore `latch:` and the name.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) if as many parties have a lease as the latch counts; otherwise as
    /// [`Semaphore::try_acquire`], and faults of the store that last for five call timeouts.
    ///
    /// # Cancel safety
    /// Dropped halfway, it may count as a party that has left, which breaks the latch.
    pub async fn join(&self) -> Result<LatchParty> {
        let guard = self.places.try_acquire().await?;
        let owner = guard.owner();
        guard.run(self.change_parties(|parties| parties.push(owner))).await??;
        Ok(LatchParty { latch: self.clone(), guard })
    }

    async fn change_parties(&self, change: impl Fn(&mut Vec<OwnerId>)) -> Result<()> {
        let mut seen = self.parties.read().await?;
        for _ in 0..MAX_CONFLICTS {
            let mut parties = self.read_parties(seen.value())?;
            change(&mut parties);
            let lines: Vec<String> = parties.iter().map(OwnerId::to_string).collect();
            let bytes = lines.join("\n").into_bytes();
            match self.parties.swap(&seen, Some(bytes), Expiry::After(self.ttl)).await? {
                Outcome::Done(_) => return Ok(()),
                Outcome::Conflict(current) => seen = current,
            }
        }
        let why = format!("others came first, {MAX_CONFLICTS} times in a row: try later");
        Err(self.counter.error(ErrorKind::Busy, why))
    }

    fn read_parties(&self, stored: Option<&[u8]>) -> Result<Vec<OwnerId>> {
        let damaged = || self.parties.damaged("what is stored there");
        let text = std::str::from_utf8(stored.unwrap_or_default()).map_err(|_| damaged())?;
        text.lines().map(|line| line.parse().map_err(|_| damaged())).collect()
    }

    /// Whether a party that has joined and not counted down has no lease any more.
    async fn is_broken(&self) -> Result<bool> {
        let mut parties = self.parties().await?;
        if parties.is_empty() {
            return Ok(false);
        }
        let lock = self.parties.inspect(self.places.name()).await?;
        parties.retain(|party| {
            let owner = party.to_string();
            lock.holders.iter().all(|holder| holder.owner != owner)
        });
        if parties.is_empty() {
            return Ok(false);
        }
        // One that counts down leaves the list before it gives up its lease.
        let listed = self.parties().await?;
        Ok(parties.iter().any(|party| listed.contains(party)))
    }

    async fn parties(&self) -> Result<Vec<OwnerId>> {
        let seen = self.parties.read().await?;
        self.read_parties(seen.value())
    }

    /// Waits until the count is zero.
    ///
    /// # Errors
    /// [`Broken`](ErrorKind::Broken) if a party that had [joined](Self::join) died or left before it counted
    /// down: the latch will not open. Begin anew, with another name. [`TimedOut`](ErrorKind::TimedOut) if
    /// the latch expired before that; otherwise as [`count`](Self::count).
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn wait(&self) -> Result<()> {
        let slot = &self.counter.slot;
        let (mut seen, mut checked) = (slot.read().await?, None::<Moment>);
        if seen.version.is_none() {
            // From now on it expires: an absent latch is one that has.
            self.counter.add_within(0, (0, Counter::MAX)).await?;
            seen = slot.read().await?;
        }
        loop {
            if seen.version.is_none() {
                let why = "it expired before it was counted down: a party died, or needs longer than \
                           the latch is kept (`Latch::ttl`)";
                let error = Error::new(ErrorKind::TimedOut, WAIT, why);
                return Err(error.about(self.name()));
            }
            if self.left(self.counter.count(&seen)?) == 0 {
                return Ok(());
            }
            if checked.is_none_or(|checked| now().since(checked) >= POLL) {
                // A party counts down before it gives up its lease.
                let broken = self.is_broken().await?;
                checked = Some(now());
                seen = slot.read().await?;
                if broken && self.left(self.counter.count(&seen)?) > 0 {
                    let why = "a party died or left before it counted down, so it will not open: \
                               begin anew, with another name";
                    return Err(Error::new(ErrorKind::Broken, WAIT, why).about(self.name()));
                }
                continue;
            }
            slot.changed(&seen, POLL).await;
            seen = slot.read().await?;
        }
    }

    fn left(&self, counted: i64) -> u32 {
        self.count.saturating_sub(u32::try_from(counted.max(0)).unwrap_or(u32::MAX))
    }
}

impl LatchParty {
    /// Counts down by one, gives up the lease, and returns what is left.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if the lease was lost before: the latch is broken for the others. Otherwise as
    /// [`Latch::count_down`]. After every error the lease is given up, and the latch is broken unless the count
    /// took effect.
    ///
    /// # Cancel safety
    /// Dropped halfway, it may have counted down. If it has not, the latch is broken.
    pub async fn count_down(self) -> Result<u32> {
        let Self { latch, guard } = self;
        let owner = guard.owner();
        let left = guard.run(latch.count_down()).await??;
        latch.change_parties(|parties| parties.retain(|party| *party != owner)).await?;
        // It has counted: what becomes of the lease matters no more.
        let _ = guard.release().await;
        Ok(left)
    }

    /// A handle that tells whether the lease is still there.
    pub fn validity(&self) -> Validity {
        self.guard.validity()
    }

    /// The id of the lease. A program that knows it can release it: keep it out of logs.
    pub fn owner(&self) -> OwnerId {
        self.guard.owner()
    }
}

impl fmt::Debug for LatchParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchParty").field("latch", &self.latch).finish_non_exhaustive()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("name", self.name()).field("count", &self.count).finish()
    }
}
