//! How an entry is added: one transaction, and a look at the lock's node behind it.

use std::sync::Arc;

use tenure_core::store::{Claim, now};
use tenure_core::{Error, ErrorKind, Mode, Result, Token};
use tenure_ordered::{Entered, Entry};

use crate::engine::{ACQUIRE, ZooKeeperEngine, delete};
use crate::fault::fault;
use crate::keys::parent;
use crate::names::{Key, alone, listing, number, order, stems, used_up};
use crate::session::ZooKeeperSession;
use crate::wire::{
    Call, Code, Create, CreateMode, Exists, FailedOp, Fault, GetChildren, Multi, Op, OpReply,
};

/// How many locks' nodes are remembered.
const PARENTS: usize = 10_000;

impl ZooKeeperEngine {
    /// Adds an entry in one transaction with the session's fence, and looks at the lock's node in the
    /// same write: a server handles the requests of a session in their order. `None`: a node that it
    /// needs was missing, and has been made.
    ///
    /// A retry is sent while the fence cannot be moved, so that it does not fail for the same reason
    /// again.
    pub(crate) async fn try_enter(
        &self,
        session: &Arc<ZooKeeperSession>,
        claim: &Claim,
        lock: &str,
        record: &[u8],
        look: bool,
        is_retry: bool,
    ) -> Result<Option<Entered<Key>>> {
        let failed = |error| fault(ACQUIRE, error);
        session.wire.ready().await.map_err(failed)?;
        let create = |stem: &String| {
            let path = format!("{lock}/{stem}");
            Op::Create(self.layout.create(&path, record, CreateMode::EphemeralSequential))
        };
        let creates = stems(claim, self.config.compat).iter().map(create).collect();
        let known = self.parent_cache.lock().contains(lock);
        let requests = Requests {
            create_lock: (!known).then(|| self.layout.create_lock(lock)),
            creates,
            // A lock that is new to this client is listed: whether that is allowed must be known.
            list: !known || (look && claim.mode != Mode::Exclusive),
            lock: lock.to_owned(),
        };
        let (fence, sent, Calls { above, created, seen }) = if is_retry {
            let fenced = Arc::clone(session);
            let send = async move {
                fenced
                    .with_settled_fence(|fence| (fence, now(), requests.send(&fenced, fence)))
                    .await
            };
            self.run(ACQUIRE, send).await?
        } else {
            let fence = session.fence().await.map_err(failed)?;
            (fence, now(), requests.send(session, fence))
        };
        // The last reply is awaited first: then the others are there, and the caller is woken once.
        let state = match seen {
            Seen::Counted(counted) => counted.await.map(|stat| stat.map(|stat| (stat, None))),
            Seen::Listed(listed) => {
                listed.await.map(|(children, stat)| Some((stat, Some(children))))
            }
        };
        let above = match above {
            Some(above) => above.await.map(drop),
            None => Ok(()),
        };
        let replies = match created.await.map_err(failed)? {
            Ok(replies) => replies,
            Err(FailedOp { index: 0, code: Code::NoNode }) => {
                let fenced = Arc::clone(session);
                self.run(ACQUIRE, async move { fenced.replace_fence(fence).await }).await?;
                return Ok(None);
            }
            Err(FailedOp { code: Code::NoNode, .. }) => {
                self.parent_cache.lock().remove(lock);
                match above {
                    Ok(()) | Err(Fault::Refused(Code::NodeExists)) => {}
                    Err(Fault::Refused(Code::NoNode)) => {
                        session.make_folder(parent(lock)).await.map_err(failed)?;
                    }
                    Err(error) => return Err(failed(error)),
                }
                return Ok(None);
            }
            Err(FailedOp { code, .. }) => return Err(failed(Fault::Refused(code))),
        };
        session.confirmed_at(sent);
        // From here on the entry is there.
        let (transaction, nodes) = created_nodes(&replies)
            .ok_or_else(|| unsure("a part of ZooKeeper's reply is missing"))?;
        let (stat, children) = match state {
            // A node that was created later is not the one that the entry is below.
            Ok(Some((stat, children))) if stat.czxid < transaction => (stat, children),
            Ok(_) => return Err(unsure("the entry was removed as soon as it was there")),
            Err(error @ Fault::Refused(Code::NoAuth)) => {
                return self.give_up(session, lock, &nodes, failed(error)).await.map(Some);
            }
            Err(error) => return Err(failed(error).with_unknown_effect()),
        };
        let numbers: Vec<i32> = nodes.iter().filter_map(|node| number(node)).collect();
        let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else {
            return Err(unsure("a node has no number"));
        };
        if self.limits.are_passed(last) {
            let full = used_up(ACQUIRE, lock);
            return self.give_up(session, lock, &nodes, full).await.map(Some);
        }
        self.remember_parent(lock);
        let Claim { mode, owner, .. } = *claim;
        let entry = Entry { order: order(stat.czxid, first), mode, owner: Some(owner), key: nodes };
        let others = usize::try_from(stat.num_children) != Ok(entry.key.len());
        let listing = match children {
            Some(children) => Some(listing(children, &stat)),
            None => (!others).then(|| alone(&entry, &stat, last)),
        };
        let token = Token::new(transaction.cast_unsigned());
        Ok(Some(Entered { entry, token, listing }))
    }

    /// Removes the nodes of a claim that is refused, so that nothing is left of it.
    async fn give_up<T>(
        &self,
        session: &ZooKeeperSession,
        lock: &str,
        nodes: &[String],
        refusal: Error,
    ) -> Result<T> {
        let paths: Vec<String> = nodes.iter().map(|node| format!("{lock}/{node}")).collect();
        match delete(session, &paths, &[]).await {
            Ok(_) => Err(refusal),
            Err(_) => Err(refusal.with_unknown_effect()),
        }
    }

    fn remember_parent(&self, lock: &str) {
        let mut known = self.parent_cache.lock();
        if !known.contains(lock) {
            if known.len() >= PARENTS {
                known.clear();
            }
            known.insert(lock.to_owned());
        }
    }
}

/// The requests that add an entry.
struct Requests {
    /// Creates the lock's own node, if it may be missing.
    create_lock: Option<Create>,
    /// Create the claim's nodes.
    creates: Vec<Op>,
    /// Whether to list the lock's children, and not only to count them.
    list: bool,
    lock: String,
}

/// The replies to [`Requests`].
struct Calls {
    above: Option<Call<Create>>,
    created: Call<Multi>,
    seen: Seen,
}

enum Seen {
    Counted(Call<Exists>),
    Listed(Call<GetChildren>),
}

impl Requests {
    fn send(self, session: &ZooKeeperSession, fence: u64) -> Calls {
        let Self { create_lock, creates, list, lock } = self;
        let wire = &session.wire;
        let above = create_lock.map(|create| wire.send(create));
        let mut ops = vec![session.guard(fence)];
        ops.extend(creates);
        if list {
            let (created, listed) = wire.send_both(Multi { ops }, GetChildren::new(lock));
            Calls { above, created, seen: Seen::Listed(listed) }
        } else {
            let (created, counted) = wire.send_both(Multi { ops }, Exists::new(lock));
            Calls { above, created, seen: Seen::Counted(counted) }
        }
    }
}

/// The transaction that added an entry, and the names of its nodes.
fn created_nodes(replies: &[OpReply]) -> Option<(i64, Key)> {
    let transaction = replies.iter().find_map(|reply| match reply {
        OpReply::Set(stat) => Some(stat.mzxid),
        _ => None,
    })?;
    let names = replies.iter().filter_map(|reply| match reply {
        OpReply::Created(created) => created.path.rsplit('/').next().map(str::to_owned),
        _ => None,
    });
    let nodes: Key = names.collect();
    (!nodes.is_empty()).then_some((transaction, nodes))
}

fn unsure(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, ACQUIRE, why).with_unknown_effect()
}
