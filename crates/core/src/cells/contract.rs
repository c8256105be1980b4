//! The contract between tenure and an engine that keeps values.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Error, ErrorKind, LockName, OwnerId, Result};

/// Small values with versions: read, compare and swap, wait for a change.
///
/// A [`Store`](crate::store::Store) that keeps values hands this out by
/// [`Store::cells`](crate::store::Store::cells). Implementers promise:
/// - All calls on one cell are linearizable, as long as the engine keeps its data.
/// - No two swaps of one cell yield the same [`Version`], also if the cell has expired in between.
/// - A cell never expires before its time; it may be seen for a little longer. A cell that has expired
///   is absent.
/// - No call but [`changed`](Cells::changed) waits, and none retries. A fault is reported at once, with
///   its effect.
/// - Every future may be dropped at any await: then the effect of a swap is unknown.
#[async_trait]
pub trait Cells: fmt::Debug + Send + Sync {
    /// The longest value that the engine keeps, in bytes. A longer one is refused as
    /// [`Invalid`](ErrorKind::Invalid), and nothing is changed.
    fn max_value_bytes(&self) -> usize;

    /// The clock that [`time`](Cells::time) reads.
    fn clock(&self) -> CellClock;

    /// The present time since the Unix epoch, by [`clock`](Cells::clock).
    ///
    /// # Errors
    /// Faults of the engine.
    async fn time(&self) -> Result<Duration>;

    /// The cell's value and version. `None`: there is no such cell, or it has expired.
    ///
    /// # Errors
    /// Faults of the engine.
    async fn read(&self, key: &CellKey) -> Result<Option<Stored>>;

    /// Replaces the cell's value if its version is still the expected one.
    ///
    /// # Errors
    /// Faults of the engine; [`Invalid`](ErrorKind::Invalid) for a value over the limit
    /// ([`CellKey::check_size`]). Another version is the answer [`Swapped::Conflict`].
    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped>;

    /// Resolves when the cell may have another version than `seen` (`None`: when it may exist).
    ///
    /// It may resolve for no reason: the caller reads the cell to find out. The caller bounds the wait;
    /// a change that happened before the call is not missed. The expiry of a cell need not be noticed.
    ///
    /// # Errors
    /// Faults of the engine.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call compares with the version that it is given.
    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()>;

    /// Whether [`changed`](Cells::changed) waits for a message of the engine. If not, it reads the cell
    /// several times a second, so a caller that waits for long polls by itself, and more rarely.
    fn pushes(&self) -> bool {
        false
    }

    /// Adds to a counter in one call to the engine. `None`: the engine cannot, and the counter is
    /// changed by swaps.
    ///
    /// The cell is the same as that of swaps: an envelope around the decimal digits (`lua/cells/add.lua` of
    /// the Redis engine reads and writes one). A repeated call with an id that the envelope remembers adds
    /// nothing. One that it may have forgotten adds nothing either ([`Added::Forgotten`]).
    ///
    /// # Errors
    /// Faults of the engine.
    async fn add(&self, key: &CellKey, add: &Add) -> Result<Option<Added>> {
        let _ = (key, add);
        Ok(None)
    }

    /// Decides on a request by a rate limit, and counts it, in one call to the engine and by the
    /// engine's clock. `None`: the engine cannot, and the limit is kept by swaps.
    ///
    /// # Errors
    /// Faults of the engine.
    async fn take(&self, key: &CellKey, take: &Take) -> Result<Option<Taken>> {
        let _ = (key, take);
        Ok(None)
    }
}

/// The clock of [`Cells::time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellClock {
    /// All clients read the same clock: the server's, or that of the machine they all run on.
    Shared,
    /// The wall clock of the machine that the client runs on. Clients on several machines disagree by
    /// as much as their clocks do.
    PerClient,
}

/// The name of a cell: what it is for, and a name that a user chose.
///
/// Cells of one name in different spaces are independent of each other, and of a lock of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct CellKey {
    /// What the cell is for.
    pub space: CellSpace,
    /// The user's name for it.
    pub name: LockName,
}

impl CellKey {
    /// The cell with this name in this space.
    pub const fn new(space: CellSpace, name: LockName) -> Self {
        Self { space, name }
    }

    /// Refuses a value that is longer than an engine's limit.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) with both sizes.
    pub fn check_size(&self, bytes: usize, limit: usize) -> Result<()> {
        if bytes <= limit {
            return Ok(());
        }
        let why = format!(
            "the value has {bytes} bytes, and this store keeps at most {limit}: store a reference \
             to it instead"
        );
        Err(Error::new(ErrorKind::Invalid, self.space.write(), why).about(&self.name))
    }
}

/// What a cell is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CellSpace {
    /// A value of the user's.
    Cell,
    /// A number that is added to.
    Counter,
    /// The state of a rate limit.
    Limit,
    /// The result of work that is done once.
    Once,
    /// The leader that an election has, and its value.
    Election,
    /// How often a latch was counted down, and the parties that have yet to.
    Latch,
    /// The parties of a barrier.
    Barrier,
    /// A request to the holders of a lock to let go.
    Revocation,
    /// Waits for locks that were long.
    LongWaits,
}

impl CellSpace {
    /// All spaces.
    pub const ALL: &'static [Self] = &[
        Self::Cell,
        Self::Counter,
        Self::Limit,
        Self::Once,
        Self::Election,
        Self::Latch,
        Self::Barrier,
        Self::Revocation,
        Self::LongWaits,
    ];

    /// The word for it in the names of keys, nodes and files: lower-case letters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Counter => "counter",
            Self::Limit => "limit",
            Self::Once => "once",
            Self::Election => "election",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
            Self::Revocation => "revoke",
            Self::LongWaits => "waits",
        }
    }

    /// Completes "could not …" for a swap.
    pub(crate) const fn write(self) -> &'static str {
        match self {
            Self::Cell => "write the cell",
            Self::Counter => "change the counter",
            Self::Limit => "ask the rate limiter",
            Self::Once => "keep the result of",
            Self::Election => "proclaim the leader of",
            Self::Latch => "count down the latch",
            Self::Barrier => "wait at the barrier",
            Self::Revocation => "ask to let go of",
            Self::LongWaits => "remember the long waits of group",
        }
    }

    /// Completes "could not …" for a read.
    pub(crate) const fn read(self) -> &'static str {
        match self {
            Self::Cell => "read the cell",
            Self::Counter => "read the counter",
            Self::Limit => "ask the rate limiter",
            Self::Once => "read the result of",
            Self::Election => "read the leader of",
            Self::Latch => "read the latch",
            Self::Barrier => "read the barrier",
            Self::Revocation => "listen for a revocation of",
            Self::LongWaits => "read the long waits of group",
        }
    }
}

/// A cell's value, as it is stored, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The value.
    pub value: Vec<u8>,
    /// The version that the swap of this value yielded.
    pub version: Version,
}

impl Stored {
    /// A value with its version.
    pub const fn new(value: Vec<u8>, version: Version) -> Self {
        Self { value, version }
    }
}

/// A number that an engine gives to one state of a cell. Only equality means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// The version with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A request to replace the value of a cell.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Swap {
    /// The random id of this swap. An engine without version numbers of its own makes it the version
    /// of what it writes.
    pub id: SwapId,
    /// The version that the cell must have. `None`: there must be no such cell.
    pub expected: Option<Version>,
    /// The new value.
    pub value: Vec<u8>,
    /// When the cell expires.
    pub expiry: Expiry,
}

impl Swap {
    /// A swap with a new id.
    pub fn new(expected: Option<Version>, value: Vec<u8>, expiry: Expiry) -> Self {
        Self { id: SwapId::random(), expected, value, expiry }
    }
}

/// The random id of one swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwapId(u64);

impl SwapId {
    /// A new id.
    pub fn random() -> Self {
        Self((u128::from_be_bytes(*OwnerId::random().as_bytes()) >> 64) as u64)
    }

    /// The id with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// When a cell expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// Never.
    Never,
    /// When it would have expired without this swap; never, if it was absent.
    Keep,
    /// This long after the swap, at the least.
    After(Duration),
}

/// A request to add to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Add {
    /// The random id of this request.
    pub id: SwapId,
    /// What to add; negative to subtract.
    pub delta: i64,
    /// The lowest and the highest value that the result may have, both at most
    /// [`Counter::MAX`](crate::Counter::MAX) from zero.
    pub range: (i64, i64),
    /// After what time the counter expires, if this creates it.
    pub ttl: Option<Duration>,
    /// The request was sent before, and no reply came.
    pub repeated: bool,
    /// A change of the counter that came before the request, as far as the caller knows one.
    pub after: Option<SwapId>,
}

/// The answer to a request to add to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The counter has this value now.
    Done(i64),
    /// The result would be out of range. The counter still has this value.
    OutOfRange(i64),
    /// The request was sent before, and the envelope remembers neither it nor the change that it came after:
    /// there is no telling whether it was counted. Nothing was changed.
    Forgotten,
}

/// A request that a rate limit lets through or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Take {
    /// The rule to decide by.
    pub rule: Rule,
    /// Whether to decide only, and count nothing.
    pub peek: bool,
}

/// How a rate limit decides on a request. Times are in microseconds since the Unix epoch; all numbers are
/// below 2^53. The state is two numbers, both zero at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The state is the number of a window (time divided by `period`; never less than before), and how
    /// much of its `limit` is used. A request that would exceed the limit is refused.
    FixedWindow {
        /// The length of a window.
        period: u64,
        /// What a window lets through.
        limit: u64,
        /// What the request costs.
        cost: u64,
    },
    /// The state is the theoretical arrival time, and zero. A request moves the later of that and the
    /// present by `increment`, and is refused if that is more than `bucket` from now.
    Gcra {
        /// What the request costs, as a time.
        increment: u64,
        /// The size of the bucket, as a time.
        bucket: u64,
    },
}

/// What a rate limit decided on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// Whether it is let through.
    pub allowed: bool,
    /// The state after it.
    pub state: (u64, u64),
    /// The time that it was decided by, in microseconds since the Unix epoch.
    pub now: u64,
}

impl Taken {
    /// A decision at this time that left this state.
    pub const fn new(allowed: bool, state: (u64, u64), now: u64) -> Self {
        Self { allowed, state, now }
    }
}

/// The answer to a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The cell has the new value, and this version.
    Done(Version),
    /// The cell has another version, or is absent: this is what it has. Nothing was changed.
    Conflict(Option<Stored>),
}
