//! Claims that share a lease expire each on its own, and late requests leave nothing behind.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{client, config, config_of, store, write_if};
use futures_util::FutureExt;
use tenure_core::store::{
    AUDIT_KEPT, CellKey, CellSpace, ClaimOutcome, Eviction, Expiry, Released, Renewal, Store, Swap,
    Swapped, WaitPolicy, now,
};
use tenure_core::{AuditEvent, AuditRecord};
use tenure_testkit::{EtcdServer, GENEROUS, Proxy, Way, eventually};
use tenure_trials::claim;

const TTL: Duration = Duration::from_secs(3);

async fn is_free(store: &dyn Store, name: &str) -> bool {
    store.inspect(&name.parse().unwrap()).await.unwrap().is_free()
}

fn leases(server: &EtcdServer) -> Vec<String> {
    let listed = server.control(&["lease", "list"]).unwrap();
    listed.lines().skip(1).map(str::to_owned).collect()
}

on_servers! {
    async fn a_hold_that_is_not_renewed_ends_although_its_lease_lives_on() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let (forgotten, kept) = (claim("forgotten", TTL), claim("kept", TTL));
        let began = now();
        for claim in [&forgotten, &kept] {
            let answer = store.claim(claim, WaitPolicy::NoWait).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
        }
        assert_eq!(leases(&server).len(), 1, "both hang on one lease");
        let ended = || async {
            assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed);
            is_free(&store, "forgotten").await
        };
        assert!(eventually(GENEROUS, ended).await, "the lease of another keeps it alive");
        assert!(now() >= tenure_proto::deadline(began, TTL), "the hold ended before its time");
        assert_eq!(store.renew(&forgotten).await.unwrap(), Renewal::Lost);
        assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed);
        assert_eq!(leases(&server).len(), 1);
    }
}

on_servers! {
    async fn a_queue_entry_that_is_not_asked_for_expires_although_its_lease_lives_on() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let long = Duration::from_secs(60);
        let [holder, dead, alive] = [(); 3].map(|()| claim("a", long));
        let policy = WaitPolicy::queue(TTL);
        store.claim(&holder, policy).await.unwrap();
        store.claim(&dead, policy).await.unwrap();
        let alone = || async {
            let answer = store.claim(&alive, policy).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}");
            store.inspect(&holder.name).await.unwrap().waiters.len() == 1
        };
        assert!(!alone().await, "both wait");
        assert!(eventually(GENEROUS, alone).await, "a dead waiter stays in line");
        assert_eq!(store.release(&holder).await.unwrap(), Released::Released);
        let granted = || async {
            matches!(store.claim(&alive, policy).await.unwrap(), ClaimOutcome::Granted(_))
        };
        assert!(eventually(GENEROUS, granted).await);
    }
}

on_servers! {
    /// The server stands still while it is asked for a lock. The caller gives up, and the release goes
    /// over another connection. In whichever order the two are carried out, no entry stays, though the
    /// lease that the claim named is kept alive for another lock.
    async fn a_claim_that_arrives_late_does_not_stay() {
        let mut server = EtcdServer::start(&[]).unwrap();
        let mut config = config_of(&server);
        config.timeout = Duration::from_millis(500);
        let store = store(&config).await;
        let ttl = Duration::from_secs(20);
        let kept = claim("kept", ttl);
        store.claim(&kept, WaitPolicy::NoWait).await.unwrap();
        for round in 0..5 {
            let late = claim("late", ttl);
            server.stop().unwrap();
            let error = store.claim(&late, WaitPolicy::NoWait).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
            let released = store.release(&late);
            server.cont().unwrap();
            drop(released.await);
            // A store's caller repeats a release that failed.
            let again = || async { store.release(&late).await.is_ok() };
            assert!(eventually(GENEROUS, again).await);
            let gone = || async {
                assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed, "{round}");
                is_free(&store, "late").await
            };
            assert!(eventually(GENEROUS, gone).await, "the entry stays");
        }
    }
}

/// The revision that last wrote a key, and the key's name.
fn last_written(server: &EtcdServer, prefix: &str) -> (String, String) {
    let fields = server.control(&["get", "--prefix", prefix, "--write-out=fields"]).unwrap();
    let field = |name: &str| {
        let value = fields.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim_start_matches(" : ").trim_matches('"').to_owned()
    };
    (field("\"Key\""), field("\"ModRevision\""))
}

on_servers! {
    /// The late arrival is played by hand: the transaction of a server that carries it out after the
    /// claim was given up.
    async fn a_claim_that_arrives_after_its_release_is_refused() {
        let mut server = EtcdServer::start(&[]).unwrap();
        let mut config = config_of(&server);
        config.timeout = Duration::from_millis(500);
        let store = store(&config).await;
        let ttl = Duration::from_secs(60);
        let (kept, late) = (claim("kept", ttl), claim("late", ttl));
        store.claim(&kept, WaitPolicy::NoWait).await.unwrap();
        let (fence, revision) = last_written(&server, "tenure/%fence/");
        server.stop().unwrap();
        let unanswered = store.claim(&late, WaitPolicy::queue(TTL)).await;
        server.cont().unwrap();
        assert!(unanswered.is_err());
        let released = || async { store.release(&late).await.is_ok() };
        assert!(eventually(GENEROUS, released).await);
        let arrive = |revision: &str| {
            let key = format!("tenure/late/{}", late.owner);
            let compare = format!("mod({fence:?}) = {revision:?}");
            write_if(&server, &compare, &key, "late")
        };
        assert!(!arrive(&revision), "a transaction from before the release took effect");
        assert!(is_free(&store, "late").await);
        let (_, moved) = last_written(&server, "tenure/%fence/");
        assert!(arrive(&moved), "the comparison is not what kept it out");
        let next = claim("next", ttl);
        let answer = store.claim(&next, WaitPolicy::NoWait).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    }
}

on_servers! {
    async fn a_ttl_below_the_floor_of_etcd_is_kept_by_the_holder() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let short = claim("short", Duration::from_millis(400));
        let ClaimOutcome::Granted(grant) = store.claim(&short, WaitPolicy::NoWait).await.unwrap() else {
            panic!("the lock is free")
        };
        assert!(grant.since.unwrap() <= now());
        let left = store.inspect(&short.name).await.unwrap().holders[0].expires_in.unwrap();
        assert!(left <= short.ttl, "{left:?}");
        let gone = || async { is_free(&store, "short").await };
        assert!(eventually(GENEROUS, gone).await);
    }
}

on_servers! {
    /// The lease lives on, and with it the key; but the hold has expired, and may be removed.
    async fn a_hold_that_has_expired_is_not_renewed() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let (short, long) = (Duration::from_millis(2_100), Duration::from_millis(2_900));
        let (late, kept) = (claim("late", short), claim("kept", long));
        for claim in [&late, &kept] {
            store.claim(claim, WaitPolicy::NoWait).await.unwrap();
        }
        assert_eq!(leases(&server).len(), 1, "both hang on one lease");
        tokio::time::sleep(short / 2).await;
        assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed);
        tokio::time::sleep(short / 2).await;
        assert_eq!(store.renew(&late).await.unwrap(), Renewal::Lost);
    }
}

on_servers! {
    /// A claim is about to use the lease; the reply that confirms the lease is late, and the request to
    /// end it comes later still.
    async fn a_lease_that_is_given_back_takes_no_hold_with_it() {
        let server = EtcdServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let mut config = config(&format!("{},127.0.0.1:{}", proxy.address(), server.port()));
        config.timeout = Duration::from_secs(2);
        let store = Arc::new(store(&config).await);
        let ttl = Duration::from_secs(8);
        let (first, second) = (claim("first", ttl), claim("second", ttl));
        store.claim(&first, WaitPolicy::NoWait).await.unwrap();
        store.release(&first).await.unwrap();
        // Old enough that it must be confirmed before its next use.
        tokio::time::sleep(ttl / 3).await;
        proxy.set(Way::Shut);
        let claiming = tokio::spawn({
            let (store, second) = (Arc::clone(&store), second.clone());
            async move { store.claim(&second, WaitPolicy::NoWait).await }
        });
        tokio::time::sleep(config.timeout / 4).await;
        store.close_idle().await;
        let answer = claiming.await.unwrap().unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
        assert_eq!(store.renew(&second).await.unwrap(), Renewal::Renewed, "the hold ended with the lease");
        assert_eq!(leases(&server).len(), 1);
    }
}

on_servers! {
    /// The records of evictions from a lock are on one lease of their own, however many there are.
    async fn a_hold_that_was_evicted_keeps_no_lease_and_its_record_expires() {
        let server = EtcdServer::start(&[]).unwrap();
        let [store, other] = [store(&config_of(&server)).await, store(&config_of(&server)).await];
        for _ in 0..3 {
            let taken = claim("taken", TTL);
            store.claim(&taken, WaitPolicy::NoWait).await.unwrap();
            let order = Eviction::new(taken.name.clone(), taken.owner, "test");
            assert_eq!(other.evict(&order).await.unwrap(), Released::Released);
            assert_eq!(store.release(&taken).await.unwrap(), Released::NotHeld);
        }
        let name = "taken".parse().unwrap();
        let record = AuditRecord::new(AuditEvent::Revoked, "owner", None, "test");
        other.add_audit_record(&name, &record).await.unwrap();
        store.close_idle().await;
        let one_is_left = || async { leases(&server).len() == 1 };
        assert!(eventually(GENEROUS, one_is_left).await, "{:?}", leases(&server));
        let lease = server.control(&["lease", "timetolive", &leases(&server)[0], "--keys"]).unwrap();
        assert!(lease.contains("attached keys([tenure/%audit/taken])"), "{lease}");
        assert!(lease.contains(&format!("granted with TTL({}s)", AUDIT_KEPT.as_secs())), "{lease}");
        assert_eq!(other.audit(&name).await.unwrap().len(), 4);
    }
}

on_servers! {
    /// A claim has a lease confirmed that another lock is held on, and is then neither polled nor
    /// dropped.
    async fn a_claim_that_is_not_polled_delays_no_other() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = Arc::new(store(&config_of(&server)).await);
        let ttl = Duration::from_secs(24);
        let [held, left_alone, next] = ["held", "left alone", "next"].map(|name| claim(name, ttl));
        store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        tokio::time::sleep(ttl.mul_f64(0.26)).await;
        let mut idle = pin!(store.claim(&left_alone, WaitPolicy::NoWait));
        assert!(idle.as_mut().now_or_never().is_none());
        let renewed = tokio::time::timeout(GENEROUS, store.renew(&held)).await;
        assert_eq!(renewed.expect("the renewal waits for it").unwrap(), Renewal::Renewed);
        let answer = tokio::time::timeout(GENEROUS, store.claim(&next, WaitPolicy::NoWait)).await;
        let answer = answer.expect("the next claim waits for it").unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
        assert!(matches!(idle.await.unwrap(), ClaimOutcome::Granted(_)));
    }
}

on_servers! {
    async fn the_lease_of_a_value_that_was_replaced_does_not_stay() {
        let server = EtcdServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let cell = client.cell::<u64>("often").unwrap().ttl(Duration::from_secs(600));
        let lasting = client.cell::<u64>("often").unwrap();
        for value in 0..20 {
            cell.set(&value).await.unwrap();
        }
        let one_is_left = || async { leases(&server).len() == 1 };
        assert!(eventually(GENEROUS, one_is_left).await, "{:?}", leases(&server));
        assert_eq!(cell.get().await.unwrap(), Some(19), "the value went with a lease");
        lasting.set(&20).await.unwrap();
        let none_is_left = || async { leases(&server).is_empty() };
        assert!(eventually(GENEROUS, none_is_left).await, "{:?}", leases(&server));
        assert_eq!(cell.get().await.unwrap(), Some(20), "the value went with a lease");
    }
}

on_servers! {
    async fn a_write_of_a_value_that_has_changed_grants_no_lease() {
        let server = EtcdServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let cells = store.cells().unwrap();
        let key = CellKey::new(CellSpace::Cell, "contended".parse().unwrap());
        let expiry = Expiry::After(Duration::from_secs(600));
        let swap = |expected| Swap::new(expected, b"value".to_vec(), expiry);
        assert!(matches!(cells.swap(&key, &swap(None)).await.unwrap(), Swapped::Done(_)));
        let granted = || server.metric("grpc_server_started_total", "LeaseGrant").unwrap();
        let before = granted();
        for _ in 0..3 {
            assert!(matches!(cells.swap(&key, &swap(None)).await.unwrap(), Swapped::Conflict(_)));
        }
        assert_eq!(granted(), before);
    }
}
