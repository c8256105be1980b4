//! A claim in line: who it waits for, and how it gets in.
//!
//! A task stands in line for each claim. It watches the one obstacle before it. Nothing need be
//! written when its turn has come: who holds is seen in the line.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Claim, Grant, Mode, Result, Token, now};
use tenure_proto::Obstacle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use zookeeper_client::{Error as Fault, OneshotWatcher};

use crate::fault::fault;
use crate::inner::{Inner, line};
use crate::line::Line;
use crate::record::{self, Record};
use crate::session::Session;
use crate::tenants::Stage;

pub(crate) struct Place {
    pub(crate) claim: Claim,
    pub(crate) lock: String,
    /// The path of its first node.
    pub(crate) node: String,
    pub(crate) token: Option<Token>,
    pub(crate) session: Arc<Session>,
    /// The path of the node that must go before anything changes, where there is one.
    obstacle: Mutex<Option<String>>,
    standing: watch::Sender<Standing>,
    /// Rings when the task should look again.
    look: Notify,
    task: Mutex<Option<AbortHandle>>,
    /// Whether the node says that it waits.
    marked: Mutex<bool>,
}

/// How far a place got.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    Waits,
    Holds(Grant),
    /// The node is gone: by its end, or by force.
    Gone,
    /// Nobody looks any more. What is the case is known to ZooKeeper alone.
    Unknown,
}

impl Place {
    pub(crate) fn new(
        claim: &Claim,
        lock: &str,
        node: &str,
        token: Option<Token>,
        session: &Arc<Session>,
    ) -> Arc<Self> {
        let (standing, _) = watch::channel(Standing::Waits);
        Arc::new(Self {
            claim: claim.clone(),
            lock: lock.into(),
            node: node.into(),
            token,
            session: Arc::clone(session),
            obstacle: Mutex::default(),
            standing,
            look: Notify::new(),
            task: Mutex::default(),
            marked: Mutex::default(),
        })
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Resolves when it does not wait any more.
    pub(crate) async fn news(&self) -> Standing {
        let mut standing = self.standing.subscribe();
        let news = standing.wait_for(|standing| !matches!(standing, Standing::Waits)).await;
        news.map_or(Standing::Unknown, |standing| standing.clone())
    }

    pub(crate) fn abandon(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        self.standing.send_replace(Standing::Unknown);
    }

    /// Looks whether its node and its obstacle are still there. False: its node is gone.
    ///
    /// A taker of permits looks at the whole line: there may be room for it although the one before
    /// it, which it watches, has not moved. That one may have been stopped, or have lost its news.
    ///
    /// The first time, the node is made to say that it waits. One that waits no longer than until
    /// then spares the write; it is then shown as if it had held since it came.
    pub(crate) async fn check(&self) -> Result<bool, Fault> {
        let zk = &self.session.zk;
        let sent = now();
        let mark = !std::mem::replace(&mut *self.marked.lock(), true);
        let record = Record::write(&self.claim, record::Stage::Waits, Duration::ZERO);
        let marked = mark.then(|| zk.set_data(&self.node, &record, None));
        let own = zk.check_stat(&self.node);
        let takes_permits = matches!(self.claim.mode, Mode::Permits { .. });
        let listed = takes_permits.then(|| zk.list_children(&self.lock));
        let obstacle = self.obstacle.lock().clone().filter(|_| !takes_permits);
        let before = obstacle.as_deref().map(|path| zk.check_stat(path));
        let answers = async {
            if let Some(marked) = marked {
                match marked.await {
                    Ok(_) => self.session.confirm(sent),
                    Err(Fault::NoNode) => return Ok((None, true)),
                    Err(error) => return Err(error),
                }
            }
            let own = own.await?;
            let hindered = match (listed, before) {
                (Some(listed), _) => self.is_hindered_in(&line(listed.await)?),
                (None, Some(before)) => before.await?.is_some(),
                (None, None) => true,
            };
            Ok((own, hindered))
        };
        let (own, hindered) = self.session.answer(answers).await?;
        if !hindered {
            // Its task may look at something that is gone, or does not matter any more.
            self.look.notify_one();
        }
        let id = self.session.id();
        Ok(own.is_some_and(|stat| stat.ephemeral_owner == id))
    }

    /// Whether no more than this has passed since the session was confirmed.
    pub(crate) fn is_fresh(&self, age: Duration) -> bool {
        now().since(self.session.confirmed()) <= age
    }

    /// Whether so much of the session's life is left that a grant is of use.
    fn is_ready(&self) -> bool {
        self.is_fresh(self.claim.ttl / 4)
    }

    fn is_hindered_in(&self, line: &Line) -> bool {
        line.find(self.claim.owner).is_none_or(|at| line.obstacle(at).is_some())
    }
}

/// What a place waits for.
enum Hurdle {
    /// This node must go, or say something new.
    Node(String),
    /// Somebody must leave.
    Anybody,
}

impl Inner {
    /// Stands in line for a claim, in a line that was seen, until it holds, is gone, or ZooKeeper
    /// cannot be asked.
    pub(crate) fn stand(self: &Arc<Self>, place: &Arc<Place>, line: Line) {
        let (inner, waiter) = (Arc::clone(self), Arc::clone(place));
        let task = self.background.runtime().spawn(async move {
            let standing = match inner.advance(&waiter, line).await {
                Ok(Some(grant)) => Standing::Holds(grant),
                Ok(None) => Standing::Gone,
                Err(error) => {
                    tracing::debug!(lock = %waiter.claim.name, %error, "the place is not watched");
                    Standing::Unknown
                }
            };
            waiter.standing.send_replace(standing);
        });
        *place.task.lock() = Some(task.abort_handle());
    }

    /// Look, watch, wait. A watch is set by the same call that sees its node, so nothing falls in
    /// between.
    async fn advance(self: &Arc<Self>, place: &Place, line: Line) -> Result<Option<Grant>> {
        let mut seen = Some(line);
        loop {
            let (line, fresh) = match seen.take() {
                Some(line) => (line, place.is_ready()),
                None => (self.look(place).await?, true),
            };
            let Some(at) = line.find(place.claim.owner) else { return Ok(None) };
            let hurdle = match line.obstacle(at) {
                None if fresh => return Ok(self.enter(place)),
                // It is its turn; how long its session is good must be asked first.
                None => continue,
                Some(Obstacle::Leaves(index) | Obstacle::Moves(index)) => {
                    let node = &line.0[index].nodes[0];
                    Hurdle::Node(format!("{}/{node}", place.lock))
                }
                Some(Obstacle::Holders) => Hurdle::Anybody,
            };
            let watcher = match self.watch(place, &hurdle, &line).await? {
                Some(watcher) => watcher,
                None => continue,
            };
            tokio::select! {
                _news = watcher.changed() => {}
                () = place.look.notified() => {}
            }
        }
    }

    /// Watches what is in the way. `None`: it has changed already.
    async fn watch(
        &self,
        place: &Place,
        hurdle: &Hurdle,
        line: &Line,
    ) -> Result<Option<OneshotWatcher>> {
        let session = &place.session;
        session.ready(WAIT).await?;
        let watched = match hurdle {
            Hurdle::Node(path) => {
                *place.obstacle.lock() = Some(path.clone());
                let watched = session.answer(session.zk.get_and_watch_data(path)).await;
                watched.map(|(_, _, watcher)| Some(watcher))
            }
            Hurdle::Anybody => {
                *place.obstacle.lock() = None;
                let watched = session.answer(session.zk.list_and_watch_children(&place.lock)).await;
                watched
                    .map(|(children, watcher)| (Line::read(&children) == *line).then_some(watcher))
            }
        };
        match watched {
            Ok(watcher) => Ok(watcher),
            Err(Fault::NoNode) => Ok(None),
            Err(error) => Err(fault(WAIT, error)),
        }
    }

    /// The line of a place, as its own session sees it: with the place's node, if it is there. An
    /// earlier view could not hide anybody who stands before it.
    async fn look(&self, place: &Place) -> Result<Line> {
        place.session.ready(WAIT).await?;
        if !place.is_ready() {
            // If the node is gone, the look will tell.
            place.session.reach(WAIT, &place.node, now()).await?;
        }
        self.see(WAIT, &place.session, &place.lock).await
    }

    /// Notes that a place holds from now on. `None`: its time is over.
    fn enter(&self, place: &Place) -> Option<Grant> {
        let (ttl, owner) = (place.claim.ttl, place.claim.owner);
        let entered = now();
        let stays = self.tenants.update(owner, entered + ttl, |tenant| {
            tenant.stage = Stage::Holds;
            tenant.unsaid = Some(entered);
        });
        if !stays {
            return None;
        }
        if let Mode::Permits { .. } = place.claim.mode {
            // Whoever is next in line watches this node: it may have its turn too.
            let record = Record::write(&place.claim, record::Stage::Held, Duration::ZERO);
            drop(place.session.zk.set_data(&place.node, &record, None));
        }
        Some(Grant { token: place.token, since: Some(place.session.confirmed()), term: None })
    }
}

const WAIT: &str = "wait for news";
