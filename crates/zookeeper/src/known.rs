//! What a client remembers of locks it has used, so that it need not ask again.
//!
//! ZooKeeper numbers the children of a node one after the other, whoever creates them. So if the
//! last one that we know of was ours, nobody stood before it, we deleted it, and the next one is
//! ours again: then there is no other child at all, and nothing need be listed. That is true as long
//! as the node above is the same. Its numbers begin anew when it is deleted and made again; so it is
//! watched, and a server tells of the deletion before it answers anything that came later.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::task::unconstrained;
use zookeeper_client::{OneshotWatcher, StateWatcher};

use crate::inner::Inner;
use crate::session::Session;

/// Locks whose nodes were there when they were last looked at. A guess that is wrong costs a call.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<String, Option<Arc<Vigil>>>>);

impl Known {
    /// How many are remembered.
    const LIMIT: usize = 10_000;

    pub(crate) fn has(&self, lock: &str) -> bool {
        self.0.lock().contains_key(lock)
    }

    pub(crate) fn note(&self, lock: &str) {
        let mut known = self.0.lock();
        if known.contains_key(lock) {
            return;
        }
        if known.len() >= Self::LIMIT {
            known.clear();
        }
        known.insert(lock.to_owned(), None);
    }

    /// Whether it was known.
    pub(crate) fn forget(&self, lock: &str) -> bool {
        self.0.lock().remove(lock).is_some()
    }

    /// Who watches the lock's node on this session, if nothing has happened to it since.
    pub(crate) fn vigil(&self, lock: &str, session: &Session) -> Option<Arc<Vigil>> {
        let vigil = self.0.lock().get(lock).cloned().flatten()?;
        (vigil.session == session.id() && !vigil.is_over()).then_some(vigil)
    }

    fn keep(&self, lock: &str, vigil: Vigil) -> Arc<Vigil> {
        let vigil = Arc::new(vigil);
        if let Some(known) = self.0.lock().get_mut(lock) {
            *known = Some(Arc::clone(&vigil));
        }
        vigil
    }
}

impl Inner {
    /// Has a lock's node watched, if it is not yet. To be called while a node of ours is below it:
    /// then it is the one that ours is below, or ours cannot be deleted later.
    pub(crate) async fn watch_over(&self, lock: &str, session: &Session) -> Option<Arc<Vigil>> {
        if let Some(vigil) = self.known.vigil(lock, session) {
            return Some(vigil);
        }
        let state = session.zk.state_watcher();
        let (stat, watcher) = session.answer(session.zk.check_and_watch_stat(lock)).await.ok()?;
        stat?;
        Some(self.known.keep(lock, Vigil::new(session, state, watcher)))
    }
}

type News = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A lock's node that is watched, and what is known of its numbers.
pub(crate) struct Vigil {
    session: i64,
    /// No child has a number below this, nor ever will.
    next: AtomicI32,
    /// Whether the last one who came was alone.
    alone: AtomicBool,
    /// Resolves when it is over: something happened to the node, or to the connection. What is told
    /// of the time without a connection is not relied on.
    news: Mutex<Option<News>>,
}

impl Vigil {
    /// The state is one from before the node was asked to be watched.
    fn new(session: &Session, mut state: StateWatcher, watcher: OneshotWatcher) -> Self {
        let news = async move {
            tokio::select! {
                _ = watcher.changed() => {}
                _ = state.changed() => {}
            }
        };
        Self {
            session: session.id(),
            next: AtomicI32::new(i32::MIN),
            alone: AtomicBool::new(false),
            news: Mutex::new(Some(Box::pin(news))),
        }
    }

    /// Whether this is the number of the only child, which was created just now.
    ///
    /// To be asked after the answer to the creation: then an earlier deletion of the lock's node has
    /// been heard of.
    pub(crate) fn is_only(&self, number: i32) -> bool {
        let only = self.next.load(Ordering::Acquire) == number && !self.is_over();
        self.alone.store(only, Ordering::Relaxed);
        only
    }

    /// Whether the next one who comes is probably alone, as the last one was.
    pub(crate) fn is_quiet(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// One with this number, before which nobody stood, was deleted.
    pub(crate) fn gone(&self, number: i32) {
        self.next.fetch_max(number.saturating_add(1), Ordering::AcqRel);
    }

    fn is_over(&self) -> bool {
        let mut news = self.news.lock();
        // A task that has had its turn would be told to wait, as if there were no news.
        if news.as_mut().is_none_or(|news| unconstrained(news).now_or_never().is_some()) {
            *news = None;
        }
        news.is_none()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tenure_core::{Answer, Claim, Released};
    use tenure_testkit::ZooKeeperServer;
    use tokio::task::consume_budget;
    use zookeeper_client::{Acls, Client as Bare, CreateMode};

    use crate::inner::Inner;
    use crate::inside::{PATIENT, TTL, bare, claim, inner, stand, take};
    use crate::line::Line;
    use crate::numbers::Limits;
    use std::sync::Arc;
    use std::time::Duration;

    /// Uses the lock until its client knows that it is alone with it.
    async fn warm(inner: &Arc<Inner>) {
        for _ in 0..4 {
            pair(inner).await;
        }
        let session = inner.sessions.any("test").await.unwrap();
        let vigil = inner.known.vigil("/tenure/a", &session).expect("the node is watched");
        assert!(vigil.is_quiet(), "the last one was seen to be alone");
    }

    async fn pair(inner: &Arc<Inner>) {
        let held = take(inner).await.unwrap();
        assert_eq!(inner.release(&held).await.unwrap(), Released::Released);
    }

    fn received(server: &ZooKeeperServer) -> u64 {
        let said = server.word("mntr").unwrap();
        let line = said.lines().find(|line| line.starts_with("zk_packets_received")).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_who_is_alone_with_a_lock_does_not_list_it() {
        if ZooKeeperServer::is_missing("one_who_is_alone_with_a_lock") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        warm(&inner).await;
        let before = received(&server);
        for _ in 0..200 {
            pair(&inner).await;
        }
        // Signs of life come on top.
        let asked = received(&server) - before;
        assert!((400..500).contains(&asked), "{asked} for 200 creations and deletions");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_who_came_in_between_is_seen() {
        if ZooKeeperServer::is_missing("another_who_came_in_between_is_seen") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        warm(&inner).await;
        let other = bare(&server).await;
        let held = stand(&other).await;
        let waits = claim();
        assert!(matches!(inner.claim(&waits, PATIENT).await.unwrap(), Answer::Queued(_)));
        other.delete(&held, None).await.unwrap();
        inner.release(&waits).await.unwrap();
        warm(&inner).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_same_number_below_a_new_node_means_nothing() {
        if ZooKeeperServer::is_missing("the_same_number_below_a_new_node") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        warm(&inner).await;
        let other = bare(&server).await;
        // As servers do with a container that is not used, and as others do who need it then.
        other.delete("/tenure/a", None).await.unwrap();
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        other.create("/tenure/a", b"", &container).await.unwrap();
        for _ in 0..4 {
            stand(&other).await;
        }
        let waits = claim();
        let answer = inner.claim(&waits, PATIENT).await.unwrap();
        assert!(matches!(answer, Answer::Queued(_)), "four are before it: {answer:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_happens_without_a_connection_is_not_guessed() {
        if ZooKeeperServer::is_missing("what_happens_without_a_connection") {
            return;
        }
        let mut server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        warm(&inner).await;
        let session = inner.sessions.any("test").await.unwrap();
        server.kill9().unwrap();
        server.restart().unwrap();
        session.ready("test").await.unwrap();
        assert!(inner.known.vigil("/tenure/a", &session).is_none(), "it was not watched meanwhile");
        warm(&inner).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_has_had_its_turn_hears_of_a_new_node_all_the_same() {
        if ZooKeeperServer::is_missing("a_task_that_has_had_its_turn") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        warm(&inner).await;
        let session = inner.sessions.any("test").await.unwrap();
        bare(&server).await.delete("/tenure/a", None).await.unwrap();
        // What is answered now comes after the news.
        session.zk.sync("/").await.unwrap();
        let turns = (0..10_000).take_while(|_| consume_budget().now_or_never().is_some());
        assert!(turns.count() < 10_000, "the runtime lets a task go on for ever");
        assert!(inner.known.vigil("/tenure/a", &session).is_none(), "the node is gone");
    }

    /// Takes the lock so often, with one session or another, and looks who is first while it holds.
    async fn take_turns(inner: Arc<Inner>, judge: Bare, rounds: u32, pause: Duration) {
        for round in 0..rounds {
            let ttl = TTL + Duration::from_secs((round / 20 % 2).into());
            let claim = Claim { ttl, ..claim() };
            let mut answer = inner.claim(&claim, PATIENT).await;
            while let Ok(Answer::Queued(_)) = answer {
                tokio::time::sleep(Duration::from_millis(1)).await;
                answer = inner.claim(&claim, PATIENT).await;
            }
            // It fails where the node above is gone at every look.
            if answer.is_ok() {
                judge.sync("/").await.unwrap();
                let line = Line::read(&judge.list_children("/tenure/a").await.unwrap());
                assert_eq!(line.0[0].owner, Some(claim.owner), "it is not first: {line:?}");
            }
            inner.release(&claim).await.unwrap();
            // In a row first, then with time for others in between.
            if round % 6 == 5 {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// If nobody is there: makes the lock's node anew, with as many children as it ever had, and
    /// leaves but the first.
    async fn replace(other: &Bare) -> Result<(), zookeeper_client::Error> {
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let Some(old) = other.check_stat("/tenure/a").await? else { return Ok(()) };
        other.delete("/tenure/a", None).await?;
        other.create("/tenure/a", b"", &container).await?;
        let held = stand(other).await;
        for _ in 1..old.cversion / 2 {
            other.delete(&stand(other).await, None).await?;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        other.delete(&held, None).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_let_in_is_first_whatever_others_do() {
        if ZooKeeperServer::is_missing("who_is_let_in_is_first_whatever_others_do") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        // Our own replace it as well.
        let inner = inner(&server, Limits { renew: 12, last: i32::MAX }).await;
        let other = bare(&server).await;
        let turns = [(240, 30), (40, 210)].map(|(rounds, pause)| {
            let pause = Duration::from_millis(pause);
            take_turns(Arc::clone(&inner), other.clone(), rounds, pause)
        });
        let turns = tokio::spawn(futures_util::future::join_all(turns));
        for step in 0_u64.. {
            if turns.is_finished() {
                break;
            }
            let _ = replace(&other).await;
            tokio::time::sleep(Duration::from_millis(step * 7 % 31)).await;
            stand_for_a_moment(&other).await;
        }
        turns.await.unwrap();
    }

    /// Comes to the lock and goes, if there is one.
    async fn stand_for_a_moment(other: &Bare) {
        let child = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        if let Ok((_, number)) = other.create("/tenure/a/x-lock-", b"", &child).await {
            tokio::time::sleep(Duration::from_millis(3)).await;
            let _ = other.delete(&format!("/tenure/a/x-lock-{number}"), None).await;
        }
    }
}
