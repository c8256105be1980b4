//! A number that many processes add to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::contract::{Add, Added, CellSpace, Expiry, SwapId};
use super::slot::{Outage, Seen, Slot};
use crate::{Client, Effect, Error, ErrorKind, LockName, Result, now};

/// A number in the store that many processes add to and subtract from. It is zero until it is first
/// changed.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, ErrorKind, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let stock = client.counter("stock/teapot")?;
/// assert_eq!(stock.add(10).await?, 10);
/// assert_eq!(stock.subtract(8, 0).await?, 2);
/// let refused = stock.subtract(5, 0).await.unwrap_err(); // not below the floor of 0
/// assert_eq!(refused.kind(), ErrorKind::OutOfRange);
/// assert_eq!(stock.get().await?, 2);
/// # Ok(())
/// # }
/// ```
///
/// On Redis a change is one round trip, however many change the counter at once; elsewhere it is an
/// optimistic update, as a [`Cell`](crate::Cell)'s. A call whose reply is lost is sent again, and still
/// counts once. If the counter has been changed too often meanwhile to tell (16 times), nothing more is
/// added, and the error has [`Effect::Unknown`].
#[derive(Clone)]
pub struct Counter {
    slot: Slot,
    ttl: Option<Duration>,
    /// The last change that was made through this handle or a clone.
    last: Arc<Mutex<Option<SwapId>>>,
}

/// How often a change is retried because other changes came first.
const MAX_CONFLICTS: u32 = 10_000;

/// Why a change by swaps did not take place.
enum Stopped {
    /// The counter has this value.
    OutOfRange(i64),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Counter {
    /// The highest value that a counter can have, and, negated, the lowest: 2^53 - 1, which every engine
    /// counts to exactly.
    pub const MAX: i64 = (1 << 53) - 1;

    pub(crate) fn new(client: &Client, name: &str) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Counter, name)?;
        Ok(Self { slot, ttl: None, last: Arc::default() })
    }

    /// The same counter; it expires this long after the change that created it, and is zero again. The
    /// first change and the expiry are one step.
    ///
    /// It does not expire early, and goes a little later: etcd counts whole seconds, two at the least.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The counter's name.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// The value.
    ///
    /// # Errors
    /// Faults of the store that last for five call timeouts ([`Client::with_call_timeout`]).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn get(&self) -> Result<i64> {
        self.count(&self.slot.read().await?)
    }

    /// Adds to the counter, and returns its new value.
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange) if the result would be beyond [`MAX`](Self::MAX);
    /// [`Busy`](ErrorKind::Busy) if other changes came first 10,000 times; faults of the store that last
    /// for five call timeouts. The counter is as it was, unless the error has
    /// [`Effect::Unknown`].
    ///
    /// # Cancel safety
    /// Dropped halfway, the change may have taken place, or may yet.
    pub async fn add(&self, amount: i64) -> Result<i64> {
        self.change(amount, -Self::MAX).await
    }

    /// Subtracts from the counter, unless the result would be below `floor`; returns its new value.
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange) if the result would be below the floor: nothing was
    /// changed. [`Invalid`](ErrorKind::Invalid) for a negative amount: that would be to add. Otherwise as
    /// [`add`](Self::add).
    ///
    /// # Cancel safety
    /// As [`add`](Self::add).
    pub async fn subtract(&self, amount: i64, floor: i64) -> Result<i64> {
        if amount < 0 {
            let why = format!("to subtract {amount} is to add: use `add`");
            return Err(self.error(ErrorKind::Invalid, why));
        }
        self.change(-amount, floor.clamp(-Self::MAX, Self::MAX)).await
    }

    async fn change(&self, delta: i64, floor: i64) -> Result<i64> {
        match self.add_within(delta, (floor, Self::MAX)).await? {
            Added::Done(value) => Ok(value),
            Added::OutOfRange(value) => {
                let why = format!("it is {value}, and {delta:+} would make it less than {floor}");
                let above = format!("it is {value}, and no counter goes beyond {}", Self::MAX);
                let below = value.saturating_add(delta) < floor;
                Err(self.error(ErrorKind::OutOfRange, if below { why } else { above }))
            }
            Added::Forgotten => {
                let why = "no reply came, and it has been changed too often since to tell: read it";
                Err(self.error(ErrorKind::Unreachable, why.into()).with_unknown_effect())
            }
        }
    }

    /// Adds to the counter, unless the result would be out of `range`.
    async fn add_within(&self, delta: i64, range: (i64, i64)) -> Result<Added> {
        let (id, after) = (SwapId::random(), *self.last.lock());
        let mut add = Add { id, delta, range, ttl: self.ttl, repeated: false, after };
        match self.add_at_once(&mut add).await? {
            Some(added) => Ok(added),
            None => self.add_by_swaps(&add).await,
        }
    }

    /// One call to an engine that can add. It is sent again, with the same id, until it is answered.
    async fn add_at_once(&self, add: &mut Add) -> Result<Option<Added>> {
        let mut outage = Outage::new(self.slot.inner.call_timeout);
        loop {
            let sent = now();
            let call = self.slot.cells()?.add(&self.slot.key, add);
            match self.slot.inner.call(self.slot.key.space.write(), call).await {
                Ok(added) => {
                    if let Some(Added::Done(_)) = added {
                        *self.last.lock() = Some(add.id);
                    }
                    return Ok(added);
                }
                Err(error) => {
                    add.repeated |= error.effect() == Effect::Unknown;
                    let error = error.about(self.name());
                    let error = if add.repeated { error.with_unknown_effect() } else { error };
                    outage.pause(error, sent).await?;
                }
            }
        }
    }

    async fn add_by_swaps(&self, add: &Add) -> Result<Added> {
        let Add { delta, range: (lowest, highest), ttl, .. } = *add;
        let mut counted = 0;
        let step = |seen: &Seen| {
            let value = self.count(seen)?;
            counted = value.saturating_add(delta);
            if !(lowest..=highest).contains(&counted) {
                return Err(Stopped::OutOfRange(value));
            }
            let expiry = match (seen.version, ttl) {
                (None, Some(ttl)) => Expiry::After(ttl),
                _ => Expiry::Keep,
            };
            Ok((Some(counted.to_string().into_bytes()), expiry))
        };
        match self.slot.update(None, MAX_CONFLICTS, step).await {
            Ok(_) => Ok(Added::Done(counted)),
            Err(Stopped::OutOfRange(value)) => Ok(Added::OutOfRange(value)),
            Err(Stopped::Failed(error)) => Err(error),
        }
    }

    fn count(&self, seen: &Seen) -> Result<i64> {
        let Some(digits) = seen.value() else { return Ok(0) };
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| self.slot.damaged("the stored number"))
    }

    fn error(&self, kind: ErrorKind, why: String) -> Error {
        Error::new(kind, self.slot.key.space.write(), why).about(self.name())
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("name", self.name()).field("ttl", &self.ttl).finish()
    }
}
