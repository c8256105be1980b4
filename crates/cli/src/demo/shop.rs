//! The shop: a stock in the store, and five ways to sell from it.

use std::time::Duration;

use tenure::store::{CellKey, CellSpace, Expiry, Swap};
use tenure::{Cell, Client, Counter, Error, ErrorKind, LockName, Mutex, StoreUrl};

use crate::connection::Connection;
use crate::exit::Failure;

/// What is left behind if the demo is killed goes after this time.
const EXPIRY: Duration = Duration::from_secs(600);

const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How a buyer takes something out of the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Reads, and writes what is left.
    Unlocked,
    /// The same while it holds a mutex.
    Mutex,
    /// `WATCH`, `MULTI` and `EXEC`.
    Watch,
    /// Compare and swap.
    Swap,
    /// Subtracts, not below zero.
    Counter,
}

impl Way {
    pub(super) const ALL: [Self; 5] =
        [Self::Unlocked, Self::Mutex, Self::Watch, Self::Swap, Self::Counter];

    /// Its name in JSON and between processes.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unlocked => "unlocked",
            Self::Mutex => "mutex",
            Self::Watch => "watch",
            Self::Swap => "swap",
            Self::Counter => "counter",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// What people read.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Unlocked => "without a lock",
            Self::Mutex => "mutex",
            Self::Watch => "WATCH / MULTI / EXEC",
            Self::Swap => "compare and swap",
            Self::Counter => "counter with a floor",
        }
    }

    /// Why the store does not have it, if so.
    pub(super) fn missing_on(self, store: &StoreUrl) -> Option<&'static str> {
        match (self, store.scheme().name()) {
            (Self::Watch, "redis" | "redis+unix" | "redis+sentinel") => None,
            (Self::Watch, "redis+cluster") => Some("not on a Cluster"),
            (Self::Watch, _) => Some("only Redis has WATCH"),
            _ => None,
        }
    }

    /// The URL of the store, for this way to sell.
    pub(super) fn url(self, store: &str) -> String {
        match self {
            Self::Watch if !store.contains("cells=watch") => {
                let separator = if store.contains('?') { '&' } else { '?' };
                format!("{store}{separator}cells=watch")
            }
            _ => store.to_owned(),
        }
    }
}

/// One sale: a stock, in the store that all buyers share.
pub(super) struct Shop {
    pub(super) way: Way,
    client: Client,
    name: String,
}

/// What came of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) sold: u64,
    /// How often another order came first.
    pub(super) conflicts: u64,
    /// Whether it waited for a lock.
    pub(super) waits: u64,
}

/// An order that is not carried out.
#[derive(Debug)]
pub(super) enum Refused {
    SoldOut,
    Store(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Shop {
    /// The sale with this name. All processes of it name the same.
    pub(super) fn new(way: Way, client: Client, name: &str) -> Self {
        Self { way, client, name: format!("demo/oversell/{name}/{}", way.name()) }
    }

    /// Fills the shelf.
    pub(super) async fn open(&self, stock: u64) -> Result<(), Error> {
        match self.way {
            Way::Counter => self.counter()?.add(stock.cast_signed()).await.map(drop),
            _ => self.cell()?.set(&stock).await,
        }
    }

    /// The stock, as one process sees it.
    pub(super) fn cell(&self) -> Result<Cell<u64>, Error> {
        Ok(self.client.cell(&self.name)?.ttl(EXPIRY).max_conflicts(100_000))
    }

    pub(super) fn counter(&self) -> Result<Counter, Error> {
        Ok(self.client.counter(&self.name)?.ttl(EXPIRY))
    }

    pub(super) fn mutex(&self) -> Result<Mutex, Error> {
        self.client.mutex(&self.name)
    }

    /// Orders `count`. An unlocked order awaits `pause` between its read and its write.
    pub(super) async fn order(
        &self,
        count: u64,
        pause: impl Future<Output = ()>,
    ) -> Result<Order, Error> {
        match self.way {
            Way::Unlocked => self.read_and_write(count, pause).await,
            Way::Mutex => self.under_the_lock(count).await,
            Way::Watch | Way::Swap => self.compare_and_swap(count).await,
            Way::Counter => self.subtract(count).await,
        }
    }

    /// Wrong: between the read and the write, another order may do the same.
    async fn read_and_write(
        &self,
        count: u64,
        pause: impl Future<Output = ()>,
    ) -> Result<Order, Error> {
        let cell = self.cell()?;
        let stock = cell.get().await?.unwrap_or(0);
        pause.await;
        match stock.checked_sub(count) {
            None => Ok(Order::default()),
            Some(left) => {
                overwrite(cell, left).await?;
                Ok(Order { sold: count, ..Order::default() })
            }
        }
    }

    async fn under_the_lock(&self, count: u64) -> Result<Order, Error> {
        let mutex = self.mutex()?;
        let (guard, waits) = match mutex.try_acquire().await {
            Err(error) if error.kind() == ErrorKind::Busy => (mutex.acquire().await?, 1),
            guard => (guard?, 0),
        };
        let order = guard.run(self.read_and_write(count, async {})).await??;
        guard.release().await?;
        Ok(Order { waits, ..order })
    }

    async fn compare_and_swap(&self, count: u64) -> Result<Order, Error> {
        let (cell, mut tries) = (self.cell()?, 0);
        let sold = cell.try_update(|stock| {
            tries += 1;
            stock.unwrap_or(0).checked_sub(count).ok_or(Refused::SoldOut)
        });
        let sold = match sold.await {
            Ok(_) => count,
            Err(Refused::SoldOut) => 0,
            Err(Refused::Store(error)) => return Err(error),
        };
        Ok(Order { sold, conflicts: tries - 1, waits: 0 })
    }

    async fn subtract(&self, count: u64) -> Result<Order, Error> {
        match self.counter()?.subtract(count.cast_signed(), 0).await {
            Ok(_) => Ok(Order { sold: count, ..Order::default() }),
            Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(Order::default()),
            Err(error) => Err(error),
        }
    }

    /// Clears the shelf: the value expires at once, or as soon as the store can.
    pub(super) async fn close(&self) -> Result<(), Error> {
        const TRIES: usize = 10;
        let cells = self.client.store().cells()?;
        for space in [CellSpace::Cell, CellSpace::Counter] {
            let key = CellKey::new(space, LockName::new(&self.name)?);
            for _ in 0..TRIES {
                let Some(stored) = cells.read(&key).await? else { break };
                let soon = Expiry::After(Duration::from_millis(1));
                let swap = Swap::new(Some(stored.version), stored.value, soon);
                if matches!(cells.swap(&key, &swap).await?, tenure::store::Swapped::Done(_)) {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Writes without a look at what is there. Of two such writes at the same time one is hidden by the other:
/// that one is not made again.
async fn overwrite(cell: Cell<u64>, value: u64) -> Result<(), Error> {
    match cell.max_conflicts(1).set(&value).await {
        Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
        written => written,
    }
}

/// A connection to the store, as this way to sell needs it. A crowd on few cores is slow: a call may take
/// longer than by default.
pub(super) async fn connect(way: Way, store: &str) -> Result<Client, Failure> {
    let client = Connection::open(&way.url(store)).await?.client;
    Ok(client.with_call_timeout(CALL_TIMEOUT)?)
}
