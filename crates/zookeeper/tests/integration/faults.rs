//! Servers that die, stop and come back, sessions that end, replies that are lost: no two claims hold at
//! once, no claim is stuck, nothing is left behind, and tokens keep rising.

use std::time::Duration;

use crate::common::{client, config, config_of, connect, store};
use tenure_core::store::{ClaimOutcome, Eviction, Released, Renewal, Store, WaitPolicy, now};
use tenure_core::{ErrorKind, Fence, LossReason, Options};
use tenure_testkit::{GENEROUS, Proxy, Way, ZooKeeperEnsemble, ZooKeeperServer, eventually};
use tenure_trials::{ELECTION, claim, failing_servers, partitions};
use tenure_zookeeper::testing::{Bare, Kind, Rights};

const TTL: Duration = Duration::from_secs(2);

on_servers! {
    async fn the_death_of_any_server_under_load_costs_no_lock() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        failing_servers::deaths_cost_no_lock(ensemble, connect).await;
    }
}

on_servers! {
    async fn a_server_that_stands_still_under_load_costs_no_lock() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        failing_servers::standing_still_costs_no_lock(ensemble, connect).await;
    }
}

on_servers! {
    async fn a_silent_server_does_not_delay_connecting() {
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let silent = (ensemble.leader().unwrap() + 1) % 3;
        ensemble.members()[silent].stop().unwrap();
        for round in 0..10 {
            let client = client(&config(&ensemble.addresses())).await;
            assert!(client.list("").await.is_ok(), "{round}");
        }
        ensemble.members()[silent].cont().unwrap();
    }
}

on_servers! {
    async fn a_guard_outlives_the_leader() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        failing_servers::a_guard_outlives_the_leader(ensemble, connect).await;
    }
}

on_servers! {
    async fn without_a_quorum_the_guard_reports_danger_and_loss() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        failing_servers::a_lost_quorum_is_reported(ensemble, connect).await;
    }
}

on_servers! {
    /// A server that lost the leader answers reads for a long time, while the leader ends the
    /// sessions of its clients: its replies must not extend a hold.
    async fn replies_of_a_server_that_lost_the_leader_extend_no_hold() {
        let mut ensemble = ZooKeeperEnsemble::start(&["syncLimit=1000"]).unwrap();
        let leader = ensemble.leader().unwrap();
        let alone = (leader + 1) % 3;
        let address = format!("127.0.0.1:{}", ensemble.members()[alone].port());
        let client = client(&config(&address)).await;
        let mutex = client.mutex("a").unwrap().with(Options::new().ttl(TTL));
        let guard = mutex.acquire().await.unwrap();
        for member in (0..3).filter(|member| *member != alone) {
            ensemble.members()[member].stop().unwrap();
        }
        let reason = tokio::time::timeout(GENEROUS, guard.lost()).await.expect("the hold was extended");
        assert_eq!(reason, LossReason::Expired);
        let state = ensemble.members()[alone].word("srvr").unwrap();
        assert!(state.contains("Mode: follower"), "the server did not answer all the time: {state}");
        drop(guard);
        for member in (0..3).filter(|member| *member != alone) {
            ensemble.members()[member].cont().unwrap();
        }
    }
}

on_servers! {
    async fn a_restart_of_the_whole_ensemble_keeps_locks_places_and_tokens() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        failing_servers::a_restart_of_all_keeps_everything(ensemble, connect).await;
    }
}

on_servers! {
    async fn a_client_that_is_cut_off_loses_its_guard_before_another_claim_holds() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        partitions::a_cut_off_holder_loses_its_guard_before_another_claim_holds(server.port(), connect).await;
    }
}

on_servers! {
    async fn a_waiter_that_was_cut_off_is_served_when_it_is_back() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        partitions::a_waiter_is_served_when_it_is_back(server.port(), connect).await;
    }
}

on_servers! {
    /// The node was created and the reply was lost: the same claim, made again, finds the node.
    async fn a_claim_whose_reply_is_lost_is_one_claim() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let mut short = config(&proxy.address());
        short.timeout = Duration::from_millis(500);
        let (store, other) = (store(&short).await, store(&config_of(&server)).await);
        let long = Duration::from_secs(60);
        let policy = WaitPolicy::queue(long);
        // The lock's node exists before, so that the claim is a single request.
        let first = claim("a", long);
        store.claim(&first, policy).await.unwrap();
        store.release(&first).await.unwrap();
        for release in [false, true] {
            let asked = claim("a", long);
            proxy.set(Way::Deaf);
            let error = store.claim(&asked, policy).await.unwrap_err();
            assert_eq!(error.effect(), tenure_core::Effect::Unknown, "{error}");
            let seen = || async { other.inspect(&asked.name).await.unwrap().holders.len() == 1 };
            assert!(eventually(GENEROUS, seen).await, "the claim was carried out");
            proxy.heal();
            let again = || async {
                if release {
                    return store.release(&asked).await.is_ok();
                }
                let answer = store.claim(&asked, policy).await;
                matches!(answer, Ok(ClaimOutcome::Granted(_)))
            };
            assert!(eventually(GENEROUS, again).await);
            let state = other.inspect(&asked.name).await.unwrap();
            if release {
                assert!(state.is_free(), "an orphan: {state:?}");
            } else {
                assert_eq!(state.holders.len(), 1, "a double: {state:?}");
                assert!(state.waiters.is_empty(), "a double: {state:?}");
                assert_eq!(store.release(&asked).await.unwrap(), Released::Released);
            }
        }
    }
}

on_servers! {
    /// The connection breaks when the node is gone, and before the client has heard of it.
    async fn a_release_whose_reply_is_lost_is_not_taken_for_a_lost_lock() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let client = client(&config(&proxy.address())).await;
        let other = store(&config_of(&server)).await;
        let guard = client.mutex("a").unwrap().acquire().await.unwrap();
        let name = guard.name().clone();
        proxy.set(Way::Deaf);
        let released = tokio::spawn(guard.release());
        let gone = || async { other.inspect(&name).await.unwrap().is_free() };
        assert!(eventually(GENEROUS, gone).await, "the release was carried out");
        proxy.set(Way::Open);
        proxy.cut();
        if let Err(error) = released.await.unwrap() {
            assert_ne!(error.kind(), ErrorKind::Lost, "{error}");
        }
    }
}

on_servers! {
    async fn a_claim_that_is_not_asked_for_again_is_removed_though_its_session_lives() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let [kept, forgotten] = ["kept", "forgotten"].map(|name| claim(name, TTL));
        for claim in [&kept, &forgotten] {
            store.claim(claim, WaitPolicy::queue(TTL)).await.unwrap();
        }
        let begun = now();
        let gone = || async {
            assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed);
            store.inspect(&forgotten.name).await.unwrap().is_free()
        };
        assert!(eventually(GENEROUS, gone).await, "the claim stays");
        assert!(now().since(begun) >= TTL.mul_f64(0.9), "the claim was removed too early");
        assert_eq!(store.renew(&forgotten).await.unwrap(), Renewal::Lost);
        assert_eq!(store.inspect(&kept.name).await.unwrap().holders.len(), 1);
    }
}

on_servers! {
    /// The servers end the session of a client that is cut off. The client then opens a new session, and
    /// ignores nodes of the old one.
    async fn a_session_that_ended_is_replaced_and_its_holds_are_lost() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let (store, other) =
            (store(&config(&proxy.address())).await, store(&config_of(&server)).await);
        let (held, ttl) = (claim("a", TTL), TTL);
        let ClaimOutcome::Granted(before) = store.claim(&held, WaitPolicy::queue(ttl)).await.unwrap() else {
            panic!("the lock was free")
        };
        let waits = claim("b", TTL);
        let holder = claim("b", Duration::from_secs(60));
        other.claim(&holder, WaitPolicy::queue(GENEROUS)).await.unwrap();
        store.claim(&waits, WaitPolicy::queue(GENEROUS)).await.unwrap();
        proxy.set(Way::Shut);
        let ended = || async {
            let [a, b] = [other.inspect(&held.name).await, other.inspect(&waits.name).await];
            a.unwrap().is_free() && b.unwrap().waiters.is_empty()
        };
        assert!(eventually(GENEROUS, ended).await, "the session lives on");
        proxy.heal();
        let told = || async { store.renew(&held).await.ok() == Some(Renewal::Lost) };
        assert!(eventually(GENEROUS, told).await);
        // Until it knows that its session is over, it answers with the place that it had.
        let again = || async {
            let answer = store.claim(&waits, WaitPolicy::queue(GENEROUS)).await;
            let state = other.inspect(&waits.name).await.unwrap();
            matches!(answer, Ok(ClaimOutcome::Queued(_))) && state.waiters.len() == 1
        };
        assert!(eventually(GENEROUS, again).await);
        let ClaimOutcome::Granted(after) = store.claim(&held, WaitPolicy::queue(ttl)).await.unwrap() else {
            panic!("the lock was free")
        };
        assert!(before.token < after.token);
        assert_eq!(other.inspect(&waits.name).await.unwrap().waiters.len(), 1);
    }
}

on_servers! {
    /// Long before its next renewal: a server that does not know the session refuses the reconnect.
    async fn a_holder_whose_session_the_servers_ended_hears_of_it_at_once() {
        let servers = [(); 2].map(|()| ZooKeeperServer::start(&[]).unwrap());
        let proxy = Proxy::start(servers[0].port()).unwrap();
        let long = Options::new().ttl(Duration::from_secs(500));
        // A server that has written less than its client has seen would refuse the session.
        let busy = client(&config_of(&servers[1])).await.mutex("busy").unwrap();
        for _ in 0..20 {
            busy.acquire().await.unwrap().release().await.unwrap();
        }
        let client = client(&config(&proxy.address())).await;
        let mutex = client.mutex("a").unwrap().with(long);
        let guard = mutex.acquire().await.unwrap();
        proxy.lead_to(servers[1].port());
        let told = tokio::time::timeout(GENEROUS, guard.lost()).await.expect("the holder is notified");
        assert_eq!(told, LossReason::NotHeld);
        drop(guard);
        let again = mutex.acquire_within(GENEROUS).await.unwrap();
        again.release().await.unwrap();
    }
}

/// A write that depends on a fence; whether it was made.
async fn write_if(zk: &Bare, fence: &Fence, value: &str) -> bool {
    zk.set_if_there(fence.existing_path().unwrap(), "/balance", value.as_bytes()).await.unwrap()
}

on_servers! {
    async fn a_write_that_names_the_fence_fails_when_the_lock_is_lost() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let zk = Bare::connect(server.port()).await.unwrap();
        zk.create("/balance", b"0", Kind::Persistent, Rights::All).await.unwrap();
        let mutex = client.mutex("a").unwrap();
        let guard = mutex.acquire().await.unwrap();
        let stale = guard.fence().unwrap();
        assert!(write_if(&zk, &stale, "1").await);
        let order = Eviction::new(guard.name().clone(), guard.owner(), "test");
        client.store().evict(&order).await.unwrap();
        let next = mutex.acquire().await.unwrap();
        assert!(!write_if(&zk, &stale, "2").await);
        let fence = next.fence().unwrap();
        assert_ne!(fence, stale);
        assert!(write_if(&zk, &fence, "3").await);
        next.release().await.unwrap();
        assert!(!write_if(&zk, &fence, "4").await);
        assert_eq!(zk.data("/balance").await.unwrap(), b"3");
    }
}

on_servers! {
    async fn a_client_that_closes_leaves_no_session_unless_it_is_needed() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let with = |seconds| Options::new().ttl(Duration::from_secs(seconds));
        let held = client.mutex("a").unwrap().with(with(10)).acquire().await.unwrap();
        client.mutex("b").unwrap().with(with(20)).acquire().await.unwrap().release().await.unwrap();
        let sessions = || {
            let figures = server.word("mntr").unwrap();
            let line = figures.lines().find(|line| line.starts_with("zk_global_sessions"));
            line.and_then(|line| line.split_whitespace().last()?.parse::<u64>().ok()).unwrap()
        };
        assert_eq!(sessions(), 2, "one for each TTL: the first one was not used");
        client.close().await;
        assert_eq!(sessions(), 1);
        assert!(held.is_valid());
        held.release().await.unwrap();
        client.close().await;
        assert_eq!(sessions(), 0);
        client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    }
}

on_servers! {
    /// The leader does not know yet that it lost the others, and goes on answering reads. The others may
    /// have another leader by then, which ends sessions.
    async fn a_leader_that_is_cut_off_renews_nothing() {
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let leader = ensemble.leader().unwrap();
        let store = store(&config_of(&ensemble.members()[leader])).await;
        let held = claim("a", Duration::from_secs(20));
        let answer = store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
        assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
        let others: Vec<usize> = (0..3).filter(|one| *one != leader).collect();
        for other in &others {
            ensemble.members()[*other].stop().unwrap();
        }
        let renewed = store.renew(&held).await;
        assert!(renewed.is_err(), "{renewed:?}");
        for other in &others {
            ensemble.members()[*other].cont().unwrap();
        }
        let again = || async { matches!(store.renew(&held).await, Ok(Renewal::Renewed)) };
        assert!(eventually(ELECTION, again).await);
    }
}

on_servers! {
    /// One claim opens a session, another has a hold confirmed; each is no longer polled at some moment.
    async fn a_claim_that_is_not_polled_delays_no_other() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        for (seconds, polls) in (10..16).zip(1..) {
            let ttl = Duration::from_secs(seconds);
            let [left_alone, next] = ["left alone", "next"].map(|name| claim(name, ttl));
            let mut idle = store.claim(&left_alone, WaitPolicy::NoWait);
            for _ in 0..polls {
                if tokio::time::timeout(Duration::from_millis(1), &mut idle).await.is_ok() {
                    break;
                }
            }
            let answer = tokio::time::timeout(GENEROUS, store.claim(&next, WaitPolicy::NoWait)).await;
            let answer = answer.expect("the next claim waits for it").unwrap();
            assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
            let mut again = store.renew(&next);
            let _moved_on = tokio::time::timeout(Duration::ZERO, &mut again).await;
            let renewed = tokio::time::timeout(GENEROUS, store.renew(&next)).await;
            assert_eq!(renewed.expect("the renewal waits for it").unwrap(), Renewal::Renewed);
            // The claim's own release comes after it.
            drop(idle);
            for claim in [&left_alone, &next] {
                store.release(claim).await.unwrap();
            }
        }
    }
}

on_servers! {
    async fn a_downgrade_whose_reply_is_lost_is_made_again_or_undone() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let scenario = partitions::a_downgrade_whose_reply_is_lost_is_made_again_or_undone;
        scenario(server.port(), connect).await;
    }
}
