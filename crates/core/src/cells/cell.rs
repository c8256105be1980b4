//! A value that many processes change, one change at a time.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use parking_lot::Mutex;

use super::contract::{CellSpace, Expiry};
use super::slot::{Changes, POLL, REMOVED_FOR, Seen, Slot};
use super::value::CellValue;
use crate::{Client, Error, ErrorKind, LockName, Result};

/// A value in the store that many processes read and change. A change is a compare and swap: it takes
/// place only if the value is still the one that it was made from, and is made anew otherwise.
///
/// Use it for small values that are changed often and quickly. Work that takes long, or changes other
/// things too, belongs under a [`Mutex`](crate::Mutex).
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let stock = client.cell::<u64>("stock/teapot")?;
/// stock.set(&10).await?;
/// let sold = stock.update(|stock| stock.unwrap_or(0).saturating_sub(3)).await?;
/// assert_eq!((sold.value, sold.conflicts), (7, 0));
/// assert_eq!(stock.get().await?, Some(7));
/// # Ok(())
/// # }
/// ```
///
/// A call whose reply is lost is sent again, and still counts once. If the store stays silent for five
/// call timeouts ([`Client::with_call_timeout`]), the error says that the effect is unknown
/// ([`Effect::Unknown`](crate::Effect)).
pub struct Cell<T> {
    slot: Slot,
    expiry: Expiry,
    max_conflicts: u32,
    /// What the last call saw: the next update begins there, and saves a read if nothing has changed.
    last: Mutex<Option<Seen>>,
    value: PhantomData<fn() -> T>,
}

/// What an update wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated<T> {
    /// The value that the cell has now.
    pub value: T,
    /// How often another change came first, so that this one was made anew.
    pub conflicts: u32,
}

/// How often an update is made anew, unless [`Cell::max_conflicts`] says otherwise.
const MAX_CONFLICTS: u32 = 1_000;

impl<T: CellValue> Cell<T> {
    pub(crate) fn new(client: &Client, name: &str) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Cell, name)?;
        let (expiry, last) = (Expiry::Never, Mutex::default());
        Ok(Self { slot, expiry, max_conflicts: MAX_CONFLICTS, last, value: PhantomData })
    }

    /// The same cell; every change through it makes the cell expire after this time, unless another
    /// change follows. Without it, a change lifts the expiry.
    ///
    /// A cell does not expire early, and goes a little later: etcd counts whole seconds, two at the
    /// least.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.expiry = Expiry::After(ttl);
        self
    }

    /// The same cell; an update gives up after so many conflicts, instead of 1,000.
    #[must_use]
    pub fn max_conflicts(mut self, limit: u32) -> Self {
        self.max_conflicts = limit;
        self
    }

    /// The cell's name.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// The value, or `None` if the cell is absent: never set, removed, or expired.
    ///
    /// # Errors
    /// Faults of the store that last for five call timeouts; [`Damaged`](ErrorKind::Damaged) for a value
    /// of another type.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn get(&self) -> Result<Option<T>> {
        let seen = self.slot.read().await?;
        let value = self.decode(&seen);
        *self.last.lock() = Some(seen);
        value
    }

    /// Replaces the value, whatever it was.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a value over the store's limit: nothing was changed. Otherwise
    /// as [`update`](Self::update).
    ///
    /// # Cancel safety
    /// Dropped halfway, the value may have been replaced, or may yet be.
    pub async fn set(&self, value: &T) -> Result<()> {
        let bytes = value.to_bytes().map_err(|error| error.about(self.name()))?;
        self.change(|_| Ok(Some(bytes.clone())), self.expiry).await.map(drop)
    }

    /// Removes the value.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    ///
    /// # Cancel safety
    /// Dropped halfway, the value may have been removed, or may yet be.
    pub async fn remove(&self) -> Result<()> {
        self.change(|_| Ok(None), Expiry::After(REMOVED_FOR)).await.map(drop)
    }

    /// Changes the value: `change` gets the present one (`None` if the cell is absent) and returns the
    /// new one. It takes place exactly once, but `change` may be called several times, and on a value
    /// that has been replaced already: it should have no effect of its own.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) if other changes came first as often as
    /// [`max_conflicts`](Self::max_conflicts) says; [`Invalid`](ErrorKind::Invalid) for a value over the
    /// store's limit; [`Damaged`](ErrorKind::Damaged) for a stored value of another type; faults of the
    /// store that last for five call timeouts. The value is as it was, unless the error has
    /// [`Effect::Unknown`](crate::Effect).
    ///
    /// # Cancel safety
    /// Dropped halfway, the change may have taken place, or may yet.
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<Updated<T>> {
        self.try_update(|value| Ok::<_, Error>(change(value))).await
    }

    /// As [`update`](Self::update), for a change that may be refused: an error of `change` on the present
    /// value is handed back, and nothing is changed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, Error, MemoryStore};
    /// # #[derive(Debug)] enum Order { SoldOut, Store(Error) }
    /// # impl From<Error> for Order { fn from(error: Error) -> Self { Self::Store(error) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Order> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let stock = client.cell::<u64>("stock/teapot")?;
    /// stock.set(&10).await?;
    /// let order = |count| move |stock: Option<u64>| stock.unwrap_or(0).checked_sub(count).ok_or(Order::SoldOut);
    /// assert_eq!(stock.try_update(order(8)).await?.value, 2);
    /// assert!(matches!(stock.try_update(order(5)).await, Err(Order::SoldOut)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `change`; otherwise as [`update`](Self::update).
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn try_update<E: From<Error>>(
        &self,
        mut change: impl FnMut(Option<T>) -> Result<T, E>,
    ) -> Result<Updated<T>, E> {
        let mut new = None;
        let step = |seen: &Seen| {
            let value = change(self.decode(seen)?)?;
            let bytes = value.to_bytes().map_err(|error| error.about(self.name()))?;
            new = Some(value);
            Ok::<_, E>(Some(bytes))
        };
        let conflicts = self.change(step, self.expiry).await?;
        let why = "an update ended without a value: report it";
        let lacks = || Error::new(ErrorKind::Internal, "write the cell", why).with_unknown_effect();
        let value = new.ok_or_else(lacks)?;
        Ok(Updated { value, conflicts })
    }

    /// Waits until the value fulfils a condition, and returns it. It reads the cell when the store
    /// reports a change, and once a second.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn wait_until(
        &self,
        mut condition: impl FnMut(Option<&T>) -> bool,
    ) -> Result<Option<T>> {
        let mut changes = Changes::of(&self.slot);
        loop {
            let seen = self.slot.read().await?;
            let value = self.decode(&seen)?;
            if condition(value.as_ref()) {
                return Ok(value);
            }
            changes.wait(&seen, POLL).await;
        }
    }

    /// Swaps until it succeeds, and says how often it did not. The bytes `None` remove the value.
    async fn change<E: From<Error>>(
        &self,
        mut step: impl FnMut(&Seen) -> Result<Option<Vec<u8>>, E>,
        expiry: Expiry,
    ) -> Result<u32, E> {
        let last = self.last.lock().take();
        let step = |seen: &Seen| Ok::<_, E>((step(seen)?, expiry));
        let (seen, conflicts) = self.slot.update(last, self.max_conflicts, step).await?;
        *self.last.lock() = Some(seen);
        Ok(conflicts)
    }

    fn decode(&self, seen: &Seen) -> Result<Option<T>> {
        let value = seen.value().map(T::from_bytes).transpose();
        value.map_err(|error| error.about(self.name()))
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        let Self { slot, expiry, max_conflicts, last, value } = self;
        Self {
            slot: slot.clone(),
            expiry: *expiry,
            max_conflicts: *max_conflicts,
            last: Mutex::new(last.lock().clone()),
            value: *value,
        }
    }
}

impl<T> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("name", &self.slot.key.name).finish_non_exhaustive()
    }
}
