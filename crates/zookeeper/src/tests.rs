//! The engine against a real server, below the store.

use std::collections::HashSet;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{
    Background, Claim, ClaimOutcome, Eviction, Released, Store, WaitPolicy, now,
};
use tenure_core::{AuditEvent, AuditRecord, Effect, ErrorKind, LockName, Mode};
use tenure_ordered::{Engine, Entered, Entry, Session, Watching};
use tenure_testkit::{GENEROUS, Proxy, ZooKeeperServer, eventually};

use crate::config::Compat;
use crate::engine::ZooKeeperEngine;
use crate::evict::delete_old_records;
use crate::names::{Key, Limits, lock_created, number, order, stems};
use crate::session::ZooKeeperSession;
use crate::testing::{Bare, Kind, Rights};
use crate::wire::{Code, CreateMode, Exists, FailedOp, Multi, Op};
use crate::{ZooKeeperConfig, ZooKeeperStore};

const TTL: Duration = Duration::from_secs(30);
const LOCK: &str = "/tenure/a";

/// A new claim on the lock `a`.
fn claim() -> Claim {
    Claim::new(LockName::new("a").unwrap(), Mode::Exclusive, TTL)
}

/// No call is to fail because the machine is busy.
fn config(server: &ZooKeeperServer) -> ZooKeeperConfig {
    let servers = vec![("127.0.0.1".into(), server.port())];
    ZooKeeperConfig { timeout: GENEROUS, ..ZooKeeperConfig::new(servers) }
}

/// An engine, the thread that serves it, and a session of it.
async fn engine(config: ZooKeeperConfig) -> (ZooKeeperEngine, Background, Arc<ZooKeeperSession>) {
    let background = Background::start("test").unwrap();
    let engine = ZooKeeperEngine::connect(config, &background).await.unwrap();
    let session = engine.session(TTL).await.unwrap();
    (engine, background, session)
}

async fn enter(
    engine: &ZooKeeperEngine,
    session: &Arc<ZooKeeperSession>,
    claim: &Claim,
) -> Entered<Key> {
    engine.enter(session, claim, b"data".to_vec(), true).await.unwrap()
}

/// The transaction that adds a claim's entry, as the engine sends it.
fn entering(
    engine: &ZooKeeperEngine,
    session: &ZooKeeperSession,
    fence: u64,
    claim: &Claim,
) -> Multi {
    let mut ops = vec![session.guard(fence)];
    ops.extend(stems(claim, Compat::default()).iter().map(|stem| {
        let path = format!("{LOCK}/{stem}");
        Op::Create(engine.layout.create(&path, b"", CreateMode::EphemeralSequential))
    }));
    Multi { ops }
}

/// A test that needs a server.
macro_rules! on_a_server {
    (async fn $name:ident($server:ident) $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if ZooKeeperServer::is_missing(stringify!($name)) {
                return;
            }
            let $server = ZooKeeperServer::start(&[]).unwrap();
            $body
        }
    };
}

on_a_server! {
    async fn the_first_claim_on_an_empty_server_holds_and_its_token_is_its_czxid(server) {
        for compat in [Compat::default(), Compat { curator_rw: true, kazoo: true }] {
            let mut config = config(&server);
            (config.compat, config.chroot) = (compat, format!("/{}", compat.kazoo));
            let lock = format!("{}{LOCK}", config.chroot);
            let (engine, _background, session) = engine(config).await;
            let claim = claim();
            let bare = Bare::connect(server.port()).await.unwrap();
            for round in 0..3 {
                let Entered { entry, token, listing } = enter(&engine, &session, &claim).await;
                let listing = listing.expect("it is alone");
                assert_eq!(listing.entries, from_ref(&entry), "{round}");
                assert!(listing.covers >= entry.order);
                for node in &entry.key[..] {
                    let state = bare.state(&format!("{lock}/{node}")).await.unwrap().unwrap();
                    assert_eq!(state.czxid, i64::try_from(token.get()).unwrap());
                    assert_eq!(state.ephemeral_owner, session.id());
                }
                assert_eq!(engine.list(&claim.name).await.unwrap().entries, from_ref(&entry));
                assert!(engine.remove(&claim.name, &entry).await.unwrap());
                assert!(!engine.remove(&claim.name, &entry).await.unwrap());
            }
            let state = session.wire.send(Exists::new(lock)).await.unwrap().unwrap();
            assert_eq!(state.version, 0, "the lock's node was written to");
            assert_eq!(engine.is_free(&claim.name).await.unwrap(), Some(true));
        }
    }
}

on_a_server! {
    async fn an_entry_that_arrives_after_the_fence_was_moved_is_refused(server) {
        let (engine, _background, session) = engine(config(&server)).await;
        let first = claim();
        enter(&engine, &session, &first).await;
        let fence = session.fence().await.unwrap();
        let in_time = claim();
        let sent = session.wire.send(entering(&engine, &session, fence, &in_time));
        assert!(sent.await.unwrap().is_ok());
        let began = now();
        assert!(engine.fence_writes(&session, began).await.unwrap());
        let late = claim();
        let sent = session.wire.send(entering(&engine, &session, fence, &late)).await.unwrap();
        assert_eq!(sent.unwrap_err(), FailedOp { index: 0, code: Code::NoNode });
        assert!(engine.find(&session, &in_time).await.unwrap().is_some());
        assert_eq!(engine.find(&session, &late).await.unwrap(), None);
        // One move serves all calls that were made before it.
        let moved = session.fence().await.unwrap();
        assert!(moved != fence && engine.fence_writes(&session, began).await.unwrap());
        assert_eq!(session.fence().await.unwrap(), moved);
        enter(&engine, &session, &claim()).await;
    }
}

on_a_server! {
    async fn entries_and_confirmations_survive_that_fences_are_moved_or_deleted(server) {
        let (engine, _background, session) = engine(config(&server)).await;
        let bare = Bare::connect(server.port()).await.unwrap();
        let engine = Arc::new(engine);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (engine, session) = (Arc::clone(&engine), Arc::clone(&session));
            tasks.spawn(async move {
                for _ in 0..10 {
                    let claim = claim();
                    let entry = enter(&engine, &session, &claim).await.entry;
                    assert!(engine.renew(&session, &claim.name, &entry, None).await.unwrap());
                    assert!(engine.fence_writes(&session, now()).await.unwrap());
                    assert!(engine.confirm(&session, now()).await.unwrap());
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert_eq!(engine.list(&claim().name).await.unwrap().entries.len(), 80);
        for child in bare.children("/tenure").await.unwrap() {
            if child.starts_with("%fence") {
                bare.delete(&format!("/tenure/{child}")).await.unwrap();
            }
        }
        assert!(engine.confirm(&session, now()).await.unwrap());
        enter(&engine, &session, &claim()).await;
        let fences = bare.children("/tenure").await.unwrap();
        assert_eq!(fences.iter().filter(|name| name.starts_with("%fence")).count(), 1);
    }
}

on_a_server! {
    async fn an_entry_of_an_earlier_session_is_not_taken_for_the_claims_own(server) {
        let (engine, _background, session) = engine(config(&server)).await;
        let (claim, earlier) = (claim(), Bare::connect(server.port()).await.unwrap());
        earlier.make(LOCK).await.unwrap();
        let node = format!("{LOCK}/{}", stems(&claim, Compat::default())[0]);
        let left = earlier.create(&node, b"", Kind::EphemeralSequential, Rights::All);
        left.await.unwrap();
        assert_eq!(engine.find(&session, &claim).await.unwrap(), None);
        let entered = enter(&engine, &session, &claim).await;
        let (entry, token) = engine.find(&session, &claim).await.unwrap().unwrap();
        assert_eq!((&entry, token), (&entered.entry, entered.token));
        assert_eq!(engine.list(&claim.name).await.unwrap().entries.len(), 2, "two entries");
        assert!(engine.renew(&session, &claim.name, &entry, Some(b"new".to_vec())).await.unwrap());
    }
}

on_a_server! {
    async fn entries_below_a_lock_node_that_was_created_again_come_after_the_older_ones(server) {
        let (engine, _background, session) = engine(config(&server)).await;
        let bare = Bare::connect(server.port()).await.unwrap();
        let claim = claim();
        let mut before = None;
        for _ in 0..3 {
            let entered = enter(&engine, &session, &claim).await;
            let order = entered.entry.order;
            assert!(Some(order) > before, "the numbers have begun anew");
            bare.delete(&format!("{LOCK}/{}", entered.entry.key[0])).await.unwrap();
            bare.delete(LOCK).await.unwrap();
            let empty = engine.list(&claim.name).await.unwrap();
            assert!(empty.entries.is_empty() && empty.covers >= order, "the entry is gone");
            let next = enter(&engine, &session, &claim).await.entry;
            assert!(next.order > empty.covers, "it was added later");
            before = Some(next.order);
            engine.remove(&claim.name, &next).await.unwrap();
            bare.delete(LOCK).await.unwrap();
        }
    }
}

on_a_server! {
    async fn a_waiter_is_served_after_its_lock_node_was_deleted_and_created_again(server) {
        let store = ZooKeeperStore::connect(config(&server)).await.unwrap();
        let (held, waits) = (claim(), claim());
        store.claim(&held, WaitPolicy::queue(TTL)).await.unwrap();
        let answer = store.claim(&waits, WaitPolicy::queue(TTL)).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}");
        let bare = Bare::connect(server.port()).await.unwrap();
        for child in bare.children(LOCK).await.unwrap() {
            bare.delete(&format!("{LOCK}/{child}")).await.unwrap();
        }
        bare.delete(LOCK).await.unwrap();
        bare.make(LOCK).await.unwrap();
        let other = format!("{LOCK}/x-lock-");
        let other = bare.create(&other, b"", Kind::EphemeralSequential, Rights::All);
        let other = other.await.unwrap();
        let again = || async {
            let answer = store.claim(&waits, WaitPolicy::queue(TTL)).await;
            assert!(!matches!(answer, Ok(ClaimOutcome::Granted(_))), "another holds the lock");
            store.inspect(&waits.name).await.unwrap().waiters.len() == 1
        };
        assert!(eventually(GENEROUS, again).await, "it is not in the queue again");
        bare.delete(&other).await.unwrap();
        let granted = || async {
            matches!(store.claim(&waits, WaitPolicy::queue(TTL)).await, Ok(ClaimOutcome::Granted(_)))
        };
        assert!(eventually(GENEROUS, granted).await, "no other entry is there");
    }
}

on_a_server! {
    async fn a_lock_near_the_end_of_its_numbers_is_refused(server) {
        let (mut engine, _background, session) = engine(config(&server)).await;
        engine.limits = Limits { renew: i32::MAX, last: 2 };
        for _ in 0..3 {
            let claim = claim();
            let entry = enter(&engine, &session, &claim).await.entry;
            assert!(engine.remove(&claim.name, &entry).await.unwrap());
        }
        let refused = engine.enter(&session, &claim(), Vec::new(), true).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        assert_eq!(refused.effect(), Effect::None);
        assert!(refused.to_string().contains("delete that node"), "{refused}");
        assert!(engine.list(&claim().name).await.unwrap().entries.is_empty());
        // What the error says to do.
        let bare = Bare::connect(server.port()).await.unwrap();
        bare.delete(LOCK).await.unwrap();
        enter(&engine, &session, &claim()).await;
    }
}

on_a_server! {
    async fn the_numbers_of_a_lock_begin_anew_when_it_is_not_used(server) {
        let (mut engine, _background, session) = engine(config(&server)).await;
        engine.limits = Limits { renew: 2, last: 9 };
        let mut seen: Vec<(Entry<Key>, u64)> = Vec::new();
        for _ in 0..30 {
            let [one, other] = [claim(), claim()];
            let first = enter(&engine, &session, &one).await;
            let second = enter(&engine, &session, &other).await;
            assert_eq!(second.listing, None, "it is not alone");
            // Not while there is another entry.
            assert!(engine.remove(&one.name, &first.entry).await.unwrap());
            assert_eq!(engine.list(&one.name).await.unwrap().entries, from_ref(&second.entry));
            assert!(engine.remove(&other.name, &second.entry).await.unwrap());
            seen.extend([first, second].map(|it| (it.entry, it.token.get())));
        }
        let sorted = |one: &(Entry<Key>, u64), next: &(Entry<Key>, u64)| {
            one.0.order < next.0.order && one.1 < next.1
        };
        assert!(seen.is_sorted_by(sorted), "{seen:?}");
    }
}

on_a_server! {
    async fn claims_of_many_ttls_share_few_sessions(server) {
        let store = ZooKeeperStore::connect(config(&server)).await.unwrap();
        let mut claims = Vec::new();
        for seconds in 1..=60 {
            let name = LockName::new(&format!("lock {seconds}")).unwrap();
            let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(seconds));
            let answer = store.claim(&claim, WaitPolicy::queue(TTL)).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
            claims.push(claim);
        }
        let bare = Bare::connect(server.port()).await.unwrap();
        let mut sessions = HashSet::new();
        for claim in &claims {
            let lock = format!("/tenure/{}", claim.name);
            for child in bare.children(&lock).await.unwrap() {
                let state = bare.state(&format!("{lock}/{child}")).await.unwrap();
                sessions.extend(state.map(|state| state.ephemeral_owner));
            }
        }
        assert!((2..=11).contains(&sessions.len()), "{} sessions", sessions.len());
        for claim in &claims[5..] {
            assert_eq!(store.release(claim).await.unwrap(), Released::Released);
        }
    }
}

on_a_server! {
    async fn a_curator_writer_that_goes_on_as_a_reader_keeps_a_waiting_writer_out(server) {
        let bare = Bare::connect(server.port()).await.unwrap();
        bare.make(LOCK).await.unwrap();
        let stem = |kind| format!("{LOCK}/_c_0123abcd-0123-4567-89ab-0123456789ab-{kind}");
        let writer =
            bare.create(&stem("__WRIT__"), b"", Kind::EphemeralSequential, Rights::All).await;
        let writer = writer.unwrap();
        let store = ZooKeeperStore::connect(config(&server)).await.unwrap();
        let (mut reads, waits) = (claim(), claim());
        reads.mode = Mode::Shared;
        for claim in [&reads, &waits] {
            let answer = store.claim(claim, WaitPolicy::queue(TTL)).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}");
        }
        // Until the writer's node is watched, which no other client can see.
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Curator gives the reader the number of its writer.
        let reader = writer.replace("__WRIT__", "__READ__");
        bare.create(&reader, b"", Kind::Persistent, Rights::All).await.unwrap();
        bare.delete(&writer).await.unwrap();
        let granted = async |claim: &Claim| {
            matches!(store.claim(claim, WaitPolicy::queue(TTL)).await, Ok(ClaimOutcome::Granted(_)))
        };
        assert!(eventually(GENEROUS, || granted(&reads)).await, "readers share the lock");
        store.release(&reads).await.unwrap();
        let both = eventually(Duration::from_secs(1), || granted(&waits)).await;
        assert!(!both, "the reader holds the lock");
        bare.delete(&reader).await.unwrap();
        assert!(eventually(GENEROUS, || granted(&waits)).await, "the lock is free");
    }
}

on_a_server! {
    async fn a_server_that_is_behind_does_not_make_entries_look_gone(server) {
        // Two servers that know nothing of each other stand for a leader that lost the others, and
        // goes on answering reads, and for the new leader.
        let mut ahead = ZooKeeperServer::start(&[]).unwrap();
        let bare = Bare::connect(ahead.port()).await.unwrap();
        for number in 0..100 {
            bare.make(&format!("/{number}")).await.unwrap();
        }
        let proxy = Proxy::start(server.port()).unwrap();
        let config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), proxy.port())]);
        let (engine, _background, behind) = engine(config).await;
        proxy.lead_new_to(ahead.port());
        let session = engine.session(TTL / 3).await.unwrap();
        assert_ne!(session.id(), behind.id());
        let (holder, waiter) = (claim(), claim());
        let held = enter(&engine, &session, &holder).await.entry;
        let waits = enter(&engine, &session, &waiter).await.entry;
        let watched = engine.watch(&holder.name, &held, Watching::Removal).await.unwrap();
        assert!(watched.is_some(), "the holder's entry is there");
        let listed = engine.list(&holder.name).await.unwrap().entries;
        assert_eq!(listed, [held.clone(), waits], "both entries are there");
        // Only the server that is behind is left to ask.
        ahead.kill9().unwrap();
        let gone = || async { !session.wire.is_connected() };
        assert!(eventually(GENEROUS, gone).await);
        assert!(behind.wire.is_connected());
        let watched = engine.watch(&holder.name, &held, Watching::Removal).await;
        assert!(watched.is_err(), "it does not know of the entry");
        assert!(engine.list(&holder.name).await.is_err(), "it does not know of the lock");
    }
}

on_a_server! {
    async fn a_node_of_an_earlier_queue_is_not_taken_for_an_entry_of_the_same_name(server) {
        // A server that lags behind has the earlier node, and would report its removal.
        let (engine, _background, session) = engine(config(&server)).await;
        let holder = claim();
        let earlier = enter(&engine, &session, &holder).await.entry;
        assert!(engine.watch(&holder.name, &earlier, Watching::Removal).await.unwrap().is_some());
        // As if the lock's node had been deleted and made anew since.
        let created = lock_created(earlier.order);
        let again = order(created + 1_000, number(&earlier.key[0]).unwrap());
        let later = Entry { order: again, ..earlier };
        let watched = engine.watch(&holder.name, &later, Watching::Removal).await.unwrap();
        assert!(watched.is_none(), "the node is older than the queue of the entry");
    }
}

on_a_server! {
    async fn a_claim_waits_for_a_connection_no_longer_than_a_call_may_take(server) {
        let (mut server, timeout) = (server, Duration::from_secs(2));
        let (engine, _background, session) =
            engine(ZooKeeperConfig { timeout, ..config(&server) }).await;
        server.kill9().unwrap();
        let gone = || async { !session.wire.is_connected() };
        assert!(eventually(GENEROUS, gone).await);
        let began = now();
        assert_eq!(engine.session(TTL).await.unwrap_err().kind(), ErrorKind::Unreachable);
        let waited = now().since(began);
        assert!(waited < timeout * 3 / 2, "{waited:?}");
    }
}

/// Each combination of other clients that a claim may have nodes for.
const COMPATS: [Compat; 4] = [
    Compat { curator_rw: false, kazoo: false },
    Compat { curator_rw: true, kazoo: false },
    Compat { curator_rw: false, kazoo: true },
    Compat { curator_rw: true, kazoo: true },
];

on_a_server! {
    async fn a_writer_whose_downgrade_never_arrived_is_removed_with_all_its_nodes(server) {
        let bare = Bare::connect(server.port()).await.unwrap();
        for compat in COMPATS {
            let (engine, _background, session) =
                engine(ZooKeeperConfig { compat, ..config(&server) }).await;
            let writer = claim();
            let entry = enter(&engine, &session, &writer).await.entry;
            let reader = engine.as_reader(&entry);
            assert!(engine.remove(&writer.name, &reader).await.unwrap());
            assert_eq!(bare.children(LOCK).await.unwrap(), Vec::<String>::new(), "{compat:?}");
        }
    }
}

on_a_server! {
    async fn an_eviction_that_a_downgrade_overtakes_leaves_no_node(server) {
        let bare = Bare::connect(server.port()).await.unwrap();
        for compat in COMPATS {
            let (engine, _background, session) =
                engine(ZooKeeperConfig { compat, ..config(&server) }).await;
            let writer = claim();
            let seen = enter(&engine, &session, &writer).await.entry;
            let reader = engine.as_reader(&seen);
            let downgraded = engine.downgrade(&session, &writer.name, &reader, Vec::new()).await;
            assert!(downgraded.unwrap());
            let eviction = Eviction::new(writer.name.clone(), writer.owner, "a test");
            assert!(!engine.evict(&eviction, &seen, true).await.unwrap(), "it must look again");
            let seen = engine.list(&writer.name).await.unwrap().entries;
            assert_eq!(seen, from_ref(&reader), "{compat:?}");
            assert!(engine.evict(&eviction, &seen[0], true).await.unwrap());
            assert_eq!(bare.children(LOCK).await.unwrap(), Vec::<String>::new(), "{compat:?}");
        }
    }
}

on_a_server! {
    async fn records_that_are_old_are_deleted_when_another_is_written(server) {
        let (engine, _background, session) = engine(config(&server)).await;
        let record = AuditRecord::new(AuditEvent::Revoked, "owner", None, "test");
        let name = |number: u32| LockName::new(&format!("lock-{number}")).unwrap();
        for number in 0..5 {
            assert!(engine.add_audit_record(&name(number), &record).await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        for number in [3, 4] {
            assert!(engine.add_audit_record(&name(number), &record).await.unwrap());
        }
        let audit = engine.layout.audit(&name(4));
        delete_old_records(&session, &audit, Duration::from_secs(60)).await.unwrap();
        let bare = Bare::connect(server.port()).await.unwrap();
        assert_eq!(bare.children("/tenure/%audit").await.unwrap().len(), 5);
        delete_old_records(&session, &audit, Duration::from_secs(1)).await.unwrap();
        let mut left = bare.children("/tenure/%audit").await.unwrap();
        left.sort();
        assert_eq!(left, ["lock-3", "lock-4"]);
    }
}
