//! One session with ZooKeeper, and the ephemeral nodes that go with it: its write fence and its loss
//! channel.
//!
//! # The write fence
//!
//! Each transaction that adds an entry also writes to the session's fence node, and so fails if that
//! node is not there. A transaction whose reply was lost may still be on its way: a server that stood
//! still carries it out later. To move the fence deletes the node, and from then on such a
//! transaction fails. Each fence has a new number, and none is used before its creation was
//! confirmed, so a fence that was deleted never comes back.
//!
//! # When a session is confirmed
//!
//! A server that lost the leader goes on answering reads for a while, and so does a leader that lost
//! the others, even to `sync`. Only the reply to a write shows that a majority knows the session. So
//! a session counts as confirmed at the moment before the last write was sent that was answered.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_ordered::Session;
use tokio::sync::Mutex as AsyncMutex;

use crate::keys::{Layout, with_ancestors};
use crate::wire::{
    self, Code, Create, CreateMode, Delete, Exists, Fault, Multi, Op, SetData, Stat,
};

/// How much longer a session lasts than the longest claim that it was opened for.
///
/// A server tells the leader twice a tick which sessions it has heard of. If it dies before that, the
/// leader counts from the sign of life before. Signs are sent about once a second, and a tick has two
/// seconds by default.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// One session with ZooKeeper.
pub struct ZooKeeperSession {
    pub(crate) wire: wire::Session,
    layout: Arc<Layout>,
    /// The TTL that it was opened for.
    opened_for: Duration,
    confirmed: AtomicU64,
    /// Held by the call that has the session confirmed, for all calls that wait for it.
    confirming: AsyncMutex<Failed>,
    fence: Mutex<Fence>,
    /// Held by the call that makes or moves the fence, for all calls that wait for it.
    fencing: AsyncMutex<Failed>,
}

/// When the last call that failed was sent, and how it failed. Calls that were made before that, and
/// wait for their turn, fail with the same fault; else each of them would wait for a reply of its own.
type Failed = Option<(Moment, Fault)>;

#[derive(Debug, Default)]
struct Fence {
    /// The fence that writes carry: its creation was confirmed.
    current: Option<u64>,
    /// A number that no request has carried yet.
    next: u64,
    /// When the fence was last moved: writes that were sent before carried another.
    moved: Option<Moment>,
}

impl ZooKeeperSession {
    /// A session that was asked for at `sent`, for claims of the TTL `opened_for`.
    pub(crate) fn new(
        wire: wire::Session,
        layout: Arc<Layout>,
        opened_for: Duration,
        sent: Moment,
    ) -> Self {
        Self {
            wire,
            layout,
            opened_for,
            confirmed: AtomicU64::new(sent.as_nanos()),
            confirming: AsyncMutex::default(),
            fence: Mutex::default(),
            fencing: AsyncMutex::default(),
        }
    }

    /// Whether the session suits claims of this TTL: it lasts at least as long, and ends soon enough after
    /// their process dies.
    pub(crate) fn fits(&self, ttl: Duration) -> bool {
        self.life() >= ttl && self.life().min(self.opened_for) <= 2 * ttl
    }

    /// Whether it has a fence.
    pub(crate) fn is_prepared(&self) -> bool {
        self.fence.lock().current.is_some()
    }

    /// A write that was sent at this moment was answered.
    pub(crate) fn confirmed_at(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Has a majority confirm the session after `began`, by a write that changes nothing, and looks
    /// at a node after that.
    pub(crate) async fn confirm(
        &self,
        began: Moment,
        look: Option<Exists>,
    ) -> Result<Option<Stat>, Fault> {
        self.wire.ready().await?;
        let mut turn = self.confirming.lock().await;
        if self.confirmed() >= began {
            drop(turn);
            return match look {
                Some(look) => self.wire.send(look).await,
                None => Ok(None),
            };
        }
        if let Some((_, fault)) = turn.as_ref().filter(|(sent, _)| *sent >= began) {
            return Err(fault.clone());
        }
        let sent = now();
        let outcome = self.confirm_now(look).await;
        *turn = outcome.as_ref().err().map(|fault| (sent, fault.clone()));
        outcome
    }

    async fn confirm_now(&self, look: Option<Exists>) -> Result<Option<Stat>, Fault> {
        let began = now();
        let number = self.fence().await?;
        if look.is_none() && self.confirmed() >= began {
            // The fence has just been made.
            return Ok(None);
        }
        let (sent, data) = (now(), Vec::new());
        let written = self.wire.send(SetData { path: self.path(number), data, version: None });
        let seen = look.map(|look| self.wire.send(look));
        match written.await {
            Ok(_) => self.confirmed_at(sent),
            // The fence was moved, or deleted by hand: that says nothing about the session.
            Err(Fault::Refused(Code::NoNode)) => self.replace_fence(number).await?,
            Err(fault) => return Err(fault),
        }
        match seen {
            Some(seen) => seen.await,
            None => Ok(None),
        }
    }

    /// The number of the fence that a write carries now. The first one is made if need be, and the
    /// loss channel with it.
    pub(crate) async fn fence(&self) -> Result<u64, Fault> {
        if let Some(number) = self.fence.lock().current {
            return Ok(number);
        }
        let _turn = self.fencing.lock().await;
        let current = self.fence.lock().current;
        match current {
            Some(number) => Ok(number),
            None => self.make_fence().await,
        }
    }

    /// Has `send` send a write that carries the fence, while the fence is not being moved. The writes of
    /// a session are carried out in order, so a later move does not make it fail.
    pub(crate) async fn with_settled_fence<T>(
        &self,
        send: impl FnOnce(u64) -> T,
    ) -> Result<T, Fault> {
        let _turn = self.fencing.lock().await;
        let current = self.fence.lock().current;
        let number = match current {
            Some(number) => number,
            None => self.make_fence().await?,
        };
        Ok(send(number))
    }

    /// What a write carries so that it fails when the fence was moved. Its reply has the number of
    /// the transaction.
    pub(crate) fn guard(&self, fence: u64) -> Op {
        Op::SetData(SetData { path: self.path(fence), data: Vec::new(), version: None })
    }

    /// Makes another fence, for this one is not there.
    pub(crate) async fn replace_fence(&self, missing: u64) -> Result<(), Fault> {
        let _turn = self.fencing.lock().await;
        if self.fence.lock().current == Some(missing) {
            self.make_fence().await?;
        }
        Ok(())
    }

    /// Makes sure that no write that was sent before `began`, and carries a fence, is carried out
    /// after this.
    pub(crate) async fn move_fence(&self, began: Moment) -> Result<(), Fault> {
        self.wire.ready().await?;
        let mut turn = self.fencing.lock().await;
        if self.fence.lock().moved >= Some(began) {
            return Ok(());
        }
        if let Some((_, fault)) = turn.as_ref().filter(|(sent, _)| *sent >= began) {
            return Err(fault.clone());
        }
        let sent = now();
        let outcome = self.move_fence_now(sent).await;
        *turn = outcome.as_ref().err().map(|fault| (sent, fault.clone()));
        outcome
    }

    async fn move_fence_now(&self, sent: Moment) -> Result<(), Fault> {
        let (current, next) = {
            let mut fence = self.fence.lock();
            // Without a fence, nothing was sent.
            let Some(current) = fence.current else { return Ok(()) };
            (current, fence.take_number())
        };
        let delete = Op::Delete(Delete { path: self.path(current), version: None });
        let create = Op::Create(self.create_fence(next));
        match self.wire.send(Multi { ops: vec![delete, create] }).await? {
            Ok(_) => {
                self.confirmed_at(sent);
                self.fence.lock().current = Some(next);
            }
            // An earlier call of unknown outcome has moved it, or it was deleted by hand.
            Err(failed) if failed.code == Code::NoNode => drop(self.make_fence().await?),
            Err(failed) => return Err(Fault::Refused(failed.code)),
        }
        self.fence.lock().moved = Some(sent);
        Ok(())
    }

    /// Makes a fence, and the loss channel if it is missing. The caller has the turn.
    async fn make_fence(&self) -> Result<u64, Fault> {
        let number = self.fence.lock().take_number();
        self.wire.ready().await?;
        let sent = now();
        let make = || {
            let made = self.wire.send(self.create_fence(number));
            // Whether it is there, `Engine::open_loss_channel` finds out.
            drop(self.wire.send(self.create_loss_channel()));
            made
        };
        let mut made = make().await;
        if let Err(Fault::Refused(Code::NoNode)) = made {
            self.make_folder(self.layout.folder()).await?;
            made = make().await;
        }
        match made {
            Ok(_) | Err(Fault::Refused(Code::NodeExists)) => {
                self.confirmed_at(sent);
                self.fence.lock().current = Some(number);
                Ok(number)
            }
            Err(fault) => Err(fault),
        }
    }

    /// The leader's wall clock, since the Unix epoch, at some moment after this was called: the time
    /// that it dates a write with.
    pub(crate) async fn server_time(&self) -> Result<Duration, Fault> {
        self.wire.ready().await?;
        let mut number = self.fence().await?;
        let write = |number| {
            self.wire.send(SetData { path: self.path(number), data: Vec::new(), version: None })
        };
        let mut written = write(number).await;
        if matches!(written, Err(Fault::Refused(Code::NoNode))) {
            self.replace_fence(number).await?;
            number = self.fence().await?;
            written = write(number).await;
        }
        Ok(Duration::from_millis(u64::try_from(written?.mtime).unwrap_or_default()))
    }

    /// Makes a node that others are to be children of, and those above it.
    pub(crate) async fn make_folder(&self, path: &str) -> Result<(), Fault> {
        let create = |path| self.wire.send(self.layout.create(path, b"", CreateMode::Persistent));
        let calls: Vec<_> = with_ancestors(path).map(create).collect();
        let mut made = Ok(());
        for call in calls {
            made = match call.await {
                Ok(_) | Err(Fault::Refused(Code::NodeExists)) => Ok(()),
                Err(fault) => Err(fault),
            };
        }
        // The nodes above it may exist already, where this user may not create any.
        made
    }

    pub(crate) fn loss_channel(&self) -> String {
        self.layout.loss_channel(self.id())
    }

    pub(crate) fn create_loss_channel(&self) -> Create {
        self.layout.create(&self.loss_channel(), b"", CreateMode::Ephemeral)
    }

    fn create_fence(&self, number: u64) -> Create {
        self.layout.create(&self.path(number), b"", CreateMode::Ephemeral)
    }

    fn path(&self, fence: u64) -> String {
        self.layout.fence(self.id(), fence)
    }
}

impl Fence {
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[async_trait]
impl Session for ZooKeeperSession {
    fn id(&self) -> i64 {
        self.wire.id()
    }

    fn life(&self) -> Duration {
        self.wire.life().saturating_sub(GRACE)
    }

    fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    fn is_over(&self) -> bool {
        self.wire.is_over()
    }

    async fn ended(&self) {
        self.wire.ended().await;
    }
}

impl fmt::Debug for ZooKeeperSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ZooKeeperSession");
        shown.field("id", &format_args!("{:x}", self.id())).field("life", &self.life());
        shown.finish_non_exhaustive()
    }
}
