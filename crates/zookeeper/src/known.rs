//! What a client remembers of locks it has used, so that it need not ask again.
//!
//! A node above that nobody else was below when it was last looked at is likely to be as quiet the
//! next time. Then a claim's nodes are created in one transaction with a write to it, of the nothing
//! that it says already, and the answer to the write counts all that is below: whoever is alone
//! there holds, and need not list.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The node that a lock's claims are below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Above {
    /// The last one who came was alone there, and it says nothing.
    Quiet,
    /// Others were there, or it says something that is not ours to overwrite.
    Busy,
    /// It may not be written to.
    Closed,
}

/// Locks whose nodes were there when they were last looked at. A guess that is wrong costs a call.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<String, Above>>);

impl Known {
    /// How many are remembered.
    const LIMIT: usize = 10_000;

    pub(crate) fn get(&self, lock: &str) -> Option<Above> {
        self.0.lock().get(lock).copied()
    }

    pub(crate) fn note(&self, lock: &str, above: Above) {
        let mut known = self.0.lock();
        if let Some(noted) = known.get_mut(lock) {
            // What it is refused once, it is likely to be refused again.
            if *noted != Above::Closed {
                *noted = above;
            }
            return;
        }
        if known.len() >= Self::LIMIT {
            known.clear();
        }
        known.insert(lock.to_owned(), above);
    }

    /// Whether it was known.
    pub(crate) fn forget(&self, lock: &str) -> bool {
        self.0.lock().remove(lock).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tenure_core::{Answer, Claim, Released};
    use tenure_testkit::ZooKeeperServer;
    use zookeeper_client::{Acl, Acls, AuthId, Client as Bare, CreateMode, Permission};

    use super::*;
    use crate::config::{Neighbours, ZooKeeperConfig};
    use crate::inner::Inner;
    use crate::inside::{PATIENT, TTL, bare, claim, inner, stand, take, try_to_stand};
    use crate::line::Line;
    use crate::numbers::Limits;

    /// Uses the lock until its client knows that it is alone with it.
    async fn warm(inner: &Arc<Inner>) {
        for _ in 0..2 {
            pair(inner).await;
        }
        assert_eq!(inner.known.get("/tenure/a"), Some(Above::Quiet));
    }

    async fn pair(inner: &Arc<Inner>) {
        let held = take(inner).await.unwrap();
        assert_eq!(inner.release(&held).await.unwrap(), Released::Released);
    }

    /// Somebody who makes the folder of all locks before we do.
    async fn first_comer(server: &ZooKeeperServer) -> Bare {
        let other = bare(server).await;
        let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
        other.mkdir("/tenure", &folder).await.unwrap();
        other
    }

    fn received(server: &ZooKeeperServer) -> u64 {
        let said = server.word("mntr").unwrap();
        let line = said.lines().find(|line| line.starts_with("zk_packets_received")).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_who_are_alone_with_a_lock_in_turn_do_not_list_it() {
        if ZooKeeperServer::is_missing("those_who_are_alone_with_a_lock_in_turn") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let one = inner(&server, Limits::default()).await;
        let two = inner(&server, Limits::default()).await;
        for client in [&one, &two] {
            warm(client).await;
        }
        let before = received(&server);
        for _ in 0..100 {
            pair(&one).await;
            pair(&two).await;
        }
        // Signs of life come on top.
        let asked = received(&server) - before;
        assert!((400..500).contains(&asked), "{asked} for 200 creations and deletions");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_token_is_the_transaction_of_its_node_however_it_came_to_be() {
        if ZooKeeperServer::is_missing("a_token_is_the_transaction_of_its_node") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let judge = bare(&server).await;
        for kazoo in [false, true] {
            let servers = vec![("127.0.0.1".into(), server.port())];
            let neighbours = Neighbours { kazoo, ..Neighbours::default() };
            let config = ZooKeeperConfig { neighbours, ..ZooKeeperConfig::new(servers) };
            let inner = Inner::connect(config, Limits::default()).await.unwrap().0;
            // The first is listed, the others are counted.
            for round in 0..3 {
                let claim = claim();
                let answer = inner.claim(&claim, PATIENT).await.unwrap();
                let Answer::Granted(grant) = answer else { panic!("it was free: {answer:?}") };
                let children = judge.list_children("/tenure/a").await.unwrap();
                assert_eq!(children.len(), 1 + usize::from(kazoo), "round {round}: {children:?}");
                for child in children {
                    let node = judge.check_stat(&format!("/tenure/a/{child}")).await.unwrap();
                    let transaction = u64::try_from(node.unwrap().czxid).unwrap();
                    assert_eq!(grant.token.unwrap().get(), transaction, "round {round}: {child}");
                }
                inner.release(&claim).await.unwrap();
                assert_eq!(inner.known.get("/tenure/a"), Some(Above::Quiet), "round {round}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_others_keep_above_is_not_overwritten() {
        if ZooKeeperServer::is_missing("what_others_keep_above_is_not_overwritten") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        let other = first_comer(&server).await;
        let theirs = CreateMode::Persistent.with_acls(Acls::anyone_all());
        other.create("/tenure/a", b"theirs", &theirs).await.unwrap();
        for _ in 0..4 {
            pair(&inner).await;
        }
        assert_eq!(inner.known.get("/tenure/a"), Some(Above::Busy));
        assert_eq!(other.get_data("/tenure/a").await.unwrap().0, b"theirs");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_above_which_nothing_may_be_written_is_taken_all_the_same() {
        if ZooKeeperServer::is_missing("a_lock_above_which_nothing_may_be_written") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        let other = first_comer(&server).await;
        let rights = Permission::READ | Permission::CREATE | Permission::DELETE;
        let closed = [Acl::new(rights, AuthId::anyone())];
        let closed = CreateMode::Persistent.with_acls(Acls::new(&closed));
        other.create("/tenure/a", b"", &closed).await.unwrap();
        for _ in 0..4 {
            pair(&inner).await;
        }
        assert_eq!(inner.known.get("/tenure/a"), Some(Above::Closed));
        assert!(other.list_children("/tenure/a").await.unwrap().is_empty(), "nothing is left");
        let held = take(&inner).await.unwrap();
        assert!(matches!(inner.claim(&claim(), PATIENT).await.unwrap(), Answer::Queued(_)));
        inner.release(&held).await.unwrap();
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
        // Ours may find it empty and delete it.
        let held = try_to_stand(other).await?;
        for _ in 1..old.cversion / 2 {
            other.delete(&try_to_stand(other).await?, None).await?;
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
        if let Ok(node) = try_to_stand(other).await {
            tokio::time::sleep(Duration::from_millis(3)).await;
            let _ = other.delete(&node, None).await;
        }
    }
}
