//! Values beside locks: one node each, compared by its version.
//!
//! A cell `orders` with the prefix `tenure/` is the node `/tenure/%cell/orders`. ZooKeeper counts the
//! writes to a node: that is its version. The node's data is when it expires, and the value.
//!
//! # Expiry
//!
//! Ephemeral nodes end with their writer's session, and nodes with a TTL are off by default
//! (`extendedTypesEnabled`). So the data says when the cell expires, on the clock of the leader, which
//! dates every write; and a reader of such a cell asks for the leader's time, by a write to its session's
//! fence. A cell without an expiry costs no such write. After another server has become the leader, a
//! cell may expire early or late by as much as the servers' clocks differ.
//!
//! A cell that has expired is overwritten in place, and never deleted, because the version of a node that
//! is made anew would begin at zero again. So every name that was ever used keeps a node of a few dozen
//! bytes: for an unbounded set of names, such as those of users, use another store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{CellClock, CellKey, Cells, Expiry, Stored, Swap, Swapped, Version};
use tenure_core::{Error, ErrorKind, Result};

use crate::engine::ZooKeeperEngine;
use crate::fault::fault;
use crate::keys::parent;
use crate::reads::{changed, if_there, up_to_date};
use crate::session::ZooKeeperSession;
use crate::wire::{Code, CreateMode, Exists, Fault, GetData, SetData, Stat, Sync};

/// The longest value. A server takes packets of a mebibyte by default (`jute.maxbuffer`).
const MAX_BYTES: usize = 1_000_000;

const READ: &str = "read the cell";
const WRITE: &str = "write the cell";
const WAIT: &str = "wait for a change of the cell";
const TIME: &str = "read the leader's clock";

/// How often a swap starts over because the cell changed while the swap read it.
const ROUNDS: usize = 5;

#[async_trait]
impl Cells for ZooKeeperEngine {
    fn max_value_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn clock(&self) -> CellClock {
        CellClock::Shared
    }

    fn pushes(&self) -> bool {
        true
    }

    async fn time(&self) -> Result<Duration> {
        self.server_time(TIME).await
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        let path = self.layout.cell(key);
        let node = self.live_node(READ, &path).await.map_err(|error| error.about(&key.name))?;
        Ok(node.map(Node::stored))
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        key.check_size(swap.value.len(), MAX_BYTES)?;
        let path = self.layout.cell(key);
        self.swap_node(&path, swap).await.map_err(|error| error.about(&key.name))
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let path = self.layout.cell(key);
        let session = self.sessions.any(WAIT).await?;
        let watched = session.wire.send_watched(Exists::new(path.as_str())).await;
        let (_, watch) = watched.map_err(|error| fault(WAIT, error))?;
        let present = self.live_node(WAIT, &path).await?;
        if present.map(|node| node.version()) == seen {
            changed(WAIT, session, watch).await?;
        }
        Ok(())
    }
}

/// A cell's node.
#[derive(Clone, Debug)]
struct Node {
    /// How often it was written to.
    writes: i32,
    /// When it expires, in milliseconds of the leader's clock since the Unix epoch.
    ends: Option<u64>,
    value: Vec<u8>,
}

impl Node {
    fn read(data: &[u8], stat: &Stat) -> Option<Self> {
        let (ends, value) = Ends::split(data)?;
        let written = u64::try_from(stat.mtime).ok()?;
        let ends = match ends {
            Ends::Never => None,
            Ends::After(millis) => Some(written.saturating_add(millis)),
            Ends::At(millis) => Some(millis),
        };
        Some(Self { writes: stat.version, ends, value: value.to_vec() })
    }

    /// The version says whether the cell expires, so that a swap knows whether it needs the leader's
    /// clock.
    fn version(&self) -> Version {
        version(self.writes, self.ends.is_some())
    }

    fn stored(self) -> Stored {
        let version = self.version();
        Stored::new(self.value, version)
    }
}

fn version(writes: i32, expires: bool) -> Version {
    Version::new(u64::from(writes.cast_unsigned()) << 1 | u64::from(expires))
}

/// The number of writes that a version stands for, and whether the cell expires. `None`: no node has
/// such a version.
fn parse(version: Version) -> Option<(i32, bool)> {
    let (writes, expires) = (version.get() >> 1, version.get() & 1 == 1);
    Some((u32::try_from(writes).ok()?.cast_signed(), expires))
}

/// When a cell expires, as its data says: one byte for the kind, and eight for the milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Never,
    /// So long after the write.
    After(u64),
    /// At this time.
    At(u64),
}

impl Ends {
    const BYTES: usize = 9;

    fn with(self, value: &[u8]) -> Vec<u8> {
        let (kind, millis) = match self {
            Self::Never => (0, 0),
            Self::After(millis) => (1, millis),
            Self::At(millis) => (2, millis),
        };
        [&[kind], &millis.to_be_bytes()[..], value].concat()
    }

    fn split(data: &[u8]) -> Option<(Self, &[u8])> {
        let (head, value) = data.split_at_checked(Self::BYTES)?;
        let millis = u64::from_be_bytes(head[1..].try_into().ok()?);
        let ends = match head[0] {
            0 => Self::Never,
            1 => Self::After(millis),
            2 => Self::At(millis),
            _ => return None,
        };
        Some((ends, value))
    }
}

impl ZooKeeperEngine {
    async fn server_time(&self, operation: &'static str) -> Result<Duration> {
        let time = |session: Arc<ZooKeeperSession>| async move { session.server_time().await };
        self.with_any_session(operation, time).await
    }

    /// A node's data, at least as the leader knew it when this was called.
    pub(crate) async fn latest(
        &self,
        operation: &'static str,
        path: &str,
    ) -> Result<Option<(Vec<u8>, Stat)>> {
        let look = |session: Arc<ZooKeeperSession>| {
            let seen = self.sessions.seen();
            let synced = session.wire.send(Sync { path: path.into() });
            let data = session.wire.send(GetData::new(path));
            async move {
                up_to_date(synced.zxid().await?, seen)?;
                if_there(data.await)
            }
        };
        self.with_any_session(operation, look).await
    }

    /// The cell's node, at least as the leader knew it when this was called.
    async fn node(&self, operation: &'static str, path: &str) -> Result<Option<Node>> {
        let Some((data, stat)) = self.latest(operation, path).await? else {
            return Ok(None);
        };
        let why = "a node that tenure did not write has the name of the cell: delete it";
        let damaged = || Error::new(ErrorKind::Damaged, operation, why);
        Node::read(&data, &stat).map(Some).ok_or_else(damaged)
    }

    /// As [`node`](Self::node), unless it has expired.
    async fn live_node(&self, operation: &'static str, path: &str) -> Result<Option<Node>> {
        let Some(node) = self.node(operation, path).await? else { return Ok(None) };
        let live = self.is_live(operation, &node).await?;
        Ok(live.then_some(node))
    }

    async fn is_live(&self, operation: &'static str, node: &Node) -> Result<bool> {
        let Some(ends) = node.ends else { return Ok(true) };
        Ok(self.server_time(operation).await? < Duration::from_millis(ends))
    }

    async fn swap_node(&self, path: &str, swap: &Swap) -> Result<Swapped> {
        for _ in 0..ROUNDS {
            if let Some(swapped) = self.try_swap(path, swap).await? {
                return Ok(swapped);
            }
        }
        let why = "the cell changed each time it was read: try again";
        Err(Error::new(ErrorKind::Unreachable, WRITE, why))
    }

    /// `None`: the cell changed meanwhile.
    async fn try_swap(&self, path: &str, swap: &Swap) -> Result<Option<Swapped>> {
        let after = match swap.expiry {
            Expiry::Never => Some(Ends::Never),
            Expiry::Keep => None,
            Expiry::After(ttl) => Some(Ends::After(millis(ttl))),
            _ => {
                let why = "this store does not know this kind of expiry: update it";
                return Err(Error::new(ErrorKind::Unsupported, WRITE, why));
            }
        };
        let Some(expected) = swap.expected else {
            return self.try_create(path, &swap.value, after.unwrap_or(Ends::Never)).await;
        };
        let (Some(ends), Some((writes, false))) = (after, parse(expected)) else {
            // Whether it has expired must be looked up, or until when it is to be kept.
            let Some(node) = self.live_node(WRITE, path).await? else {
                return Ok(Some(Swapped::Conflict(None)));
            };
            if node.version() != expected {
                return Ok(Some(Swapped::Conflict(Some(node.stored()))));
            }
            let ends = after.unwrap_or_else(|| node.ends.map_or(Ends::Never, Ends::At));
            return self.set_cell(path, node.writes, ends, &swap.value).await;
        };
        if let Some(swapped) = self.set_cell(path, writes, ends, &swap.value).await? {
            return Ok(Some(swapped));
        }
        let present = self.live_node(WRITE, path).await?;
        let conflict = present.as_ref().map(Node::version) != Some(expected);
        Ok(conflict.then(|| Swapped::Conflict(present.map(Node::stored))))
    }

    async fn try_create(&self, path: &str, value: &[u8], ends: Ends) -> Result<Option<Swapped>> {
        let session = self.sessions.any(WRITE).await?;
        let create = self.layout.create(path, &ends.with(value), CreateMode::Persistent);
        match session.wire.send(create).await {
            Ok(_) => Ok(Some(Swapped::Done(version(0, ends != Ends::Never)))),
            Err(Fault::Refused(Code::NoNode)) => {
                let made = session.make_folder(parent(path)).await;
                made.map(|()| None).map_err(|error| fault(WRITE, error))
            }
            Err(Fault::Refused(Code::NodeExists)) => {
                let Some(node) = self.node(WRITE, path).await? else { return Ok(None) };
                if self.is_live(WRITE, &node).await? {
                    return Ok(Some(Swapped::Conflict(Some(node.stored()))));
                }
                self.set_cell(path, node.writes, ends, value).await
            }
            Err(error) => Err(fault(WRITE, error)),
        }
    }

    /// Writes to a node whose number of writes is as expected. `None`: it is not.
    async fn set_cell(
        &self,
        path: &str,
        writes: i32,
        ends: Ends,
        value: &[u8],
    ) -> Result<Option<Swapped>> {
        let session = self.sessions.any(WRITE).await?;
        let (path, data) = (path.into(), ends.with(value));
        match session.wire.send(SetData { path, data, version: Some(writes) }).await {
            Ok(stat) => Ok(Some(Swapped::Done(version(stat.version, ends != Ends::Never)))),
            Err(Fault::Refused(Code::BadVersion | Code::NoNode)) => Ok(None),
            Err(error) => Err(fault(WRITE, error)),
        }
    }
}

/// Rounded up: a cell does not expire early.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_read_back_and_other_data_is_refused() {
        for ends in [Ends::Never, Ends::After(7), Ends::At(u64::MAX)] {
            let data = ends.with(b"value");
            assert_eq!(Ends::split(&data), Some((ends, &b"value"[..])));
        }
        for bad in [&b""[..], b"12345678", b"\x03\0\0\0\0\0\0\0\0"] {
            assert_eq!(Ends::split(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_version_tells_the_writes_and_whether_the_cell_expires() {
        for (writes, expires) in [(0, false), (1, true), (i32::MAX, false), (i32::MIN, true)] {
            assert_eq!(parse(version(writes, expires)), Some((writes, expires)));
        }
        assert_eq!(parse(Version::new(u64::MAX)), None);
    }
}
