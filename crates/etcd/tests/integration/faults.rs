//! Members that die, stop and come back, leases that are revoked, clients that are cut off: no two claims
//! hold at once, no claim is stuck, and tokens keep rising.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{client, config, config_of, connect};
use tenure_core::store::{ClaimOutcome, Store, WaitPolicy, now};
use tenure_core::{ErrorKind, Guard, LossReason, Options};
use tenure_etcd::EtcdStore;
use tenure_ordered::{Change, Engine, Watching};
use tenure_testkit::{EtcdCluster, EtcdServer, GENEROUS, Proxy, Way, eventually};
use tenure_trials::{ELECTION, claim, failing_servers, partitions, until_waiting};

on_servers! {
    async fn the_death_of_any_member_under_load_costs_no_lock() {
        let cluster = EtcdCluster::start().unwrap();
        failing_servers::deaths_cost_no_lock(cluster, connect).await;
    }
}

on_servers! {
    async fn a_member_that_stands_still_under_load_costs_no_lock() {
        let cluster = EtcdCluster::start().unwrap();
        failing_servers::standing_still_costs_no_lock(cluster, connect).await;
    }
}

on_servers! {
    async fn a_guard_outlives_the_leader() {
        let cluster = EtcdCluster::start().unwrap();
        failing_servers::a_guard_outlives_the_leader(cluster, connect).await;
    }
}

/// How many more seconds a lease lasts, rounded down, as the leader reports it.
fn time_left(server: &EtcdServer, lease: &str) -> u64 {
    let told = server.control(&["lease", "timetolive", lease]).unwrap();
    let (_, left) = told.split_once("remaining(").unwrap();
    left.trim_end_matches("s)").parse().unwrap()
}

on_servers! {
    /// A leader that stood still and was replaced confirms leases for a moment longer.
    async fn a_grant_is_not_dated_by_a_former_leader() {
        let mut cluster = EtcdCluster::start().unwrap();
        let ttl = Duration::from_secs(12);
        for round in 0..4 {
            let mut addresses: Vec<String> = cluster.addresses().split(',').map(Into::into).collect();
            let leader = cluster.leader().unwrap();
            addresses.rotate_left(leader);
            let mut config = config(&addresses.join(","));
            config.timeout = Duration::from_secs(4);
            let store = Arc::new(EtcdStore::connect(config).await.unwrap());
            let before = claim("a", ttl);
            store.claim(&before, WaitPolicy::NoWait).await.unwrap();
            store.release(&before).await.unwrap();
            cluster.members()[leader].stop().unwrap();
            tokio::time::sleep(Duration::from_secs(7)).await;
            let claimed = claim("a", ttl);
            let claiming = tokio::spawn({
                let (store, claimed) = (Arc::clone(&store), claimed.clone());
                async move { store.claim(&claimed, WaitPolicy::NoWait).await }
            });
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.members()[leader].cont().unwrap();
            let answer = claiming.await.unwrap().unwrap();
            let ClaimOutcome::Granted(grant) = answer else { panic!("{answer:?}") };
            let other = &cluster.members()[(leader + 1) % 3];
            let key = format!("tenure/a/{}", claimed.owner);
            let fields = other.control(&["get", &key, "--write-out=fields"]).unwrap();
            let lease = fields.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).unwrap();
            let lease = format!("{:x}", lease.parse::<i64>().unwrap());
            let ends = now() + Duration::from_secs(time_left(other, &lease) + 1);
            let promised = tenure_proto::deadline(grant.since.unwrap(), ttl);
            assert!(promised <= ends, "{round}: {:?} too long", promised.since(ends));
            store.release(&claimed).await.unwrap();
            cluster.until_all_serve().unwrap();
        }
    }
}

on_servers! {
    /// A claim that enters again has the key of its earlier entry. A member that stood still is asked to
    /// watch the key before it has caught up, and then reports the removal of the earlier entry.
    async fn a_late_report_of_an_earlier_entry_does_not_count_for_the_next_one() {
        let mut cluster = EtcdCluster::start().unwrap();
        let leader = cluster.leader().unwrap();
        let (late, prompt) = ((leader + 1) % 3, (leader + 2) % 3);
        let addresses = cluster.addresses();
        let addresses: Vec<&str> = addresses.split(',').collect();
        let mut late_config = config(addresses[late]);
        late_config.timeout = ELECTION;
        let watches = EtcdStore::connect(late_config).await.unwrap();
        let claims = EtcdStore::connect(config(addresses[prompt])).await.unwrap();
        let claimed = claim("a", Duration::from_secs(60));
        let entry = async || {
            let granted = claims.claim(&claimed, WaitPolicy::NoWait).await.unwrap();
            assert!(matches!(granted, ClaimOutcome::Granted(_)), "{granted:?}");
            claims.engine().list(&claimed.name).await.unwrap().entries.remove(0)
        };
        for round in 0..5 {
            let earlier = entry().await;
            // The stream of watches leads to the late member from now on.
            let watch = watches.engine().watch(&claimed.name, &earlier, Watching::Removal).await;
            let removed = watch.unwrap().unwrap();
            cluster.members()[late].stop().unwrap();
            claims.release(&claimed).await.unwrap();
            let next = entry().await;
            let watching = watches.engine().watch(&claimed.name, &next, Watching::Removal);
            let resume = async {
                // Time for the request to reach the member's socket.
                tokio::time::sleep(Duration::from_millis(200)).await;
                cluster.members()[late].cont().unwrap();
            };
            let (watched, ()) = tokio::join!(watching, resume);
            let mut changed = watched.unwrap().expect("the next entry is there");
            assert_eq!(removed.await.unwrap(), Change::Removed);
            let early = tokio::time::timeout(Duration::from_millis(200), &mut changed).await;
            assert!(early.is_err(), "{round}: {early:?}, but the entry is there");
            claims.release(&claimed).await.unwrap();
            assert_eq!(changed.await.unwrap(), Change::Removed);
        }
    }
}

on_servers! {
    async fn connecting_waits_for_an_election_and_no_longer_than_its_time_out() {
        let mut cluster = EtcdCluster::start().unwrap();
        let mut config = config(&cluster.addresses());
        config.timeout = ELECTION;
        for _ in 0..2 {
            let leader = cluster.leader().unwrap();
            cluster.members()[leader].kill9().unwrap();
            let client = client(&config).await;
            drop(client.mutex("a").unwrap().acquire_within(ELECTION).await.unwrap());
            client.close().await;
            cluster.members()[leader].restart().unwrap();
            cluster.until_all_serve().unwrap();
        }
        for member in 0..2 {
            cluster.members()[member].kill9().unwrap();
        }
        config.timeout = Duration::from_millis(500);
        let began = now();
        let error = EtcdStore::connect(config).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(now().since(began) < GENEROUS, "connecting took too long");
    }
}

on_servers! {
    /// Its own server dies; the members that the cluster named are asked instead.
    async fn a_client_that_knows_one_server_finds_the_others() {
        let mut cluster = EtcdCluster::start().unwrap();
        let addresses = cluster.addresses();
        let client = connect(addresses.split(',').next().unwrap()).await;
        let other = connect(addresses.split(',').next_back().unwrap()).await;
        let mutex = client.mutex("a").unwrap();
        // The client asks for the members in the background, when it has been connected for a moment.
        tokio::time::sleep(Duration::from_secs(5)).await;
        cluster.members()[0].kill9().unwrap();
        let guard = mutex.acquire_within(ELECTION).await.unwrap();
        assert_eq!(other.inspect("a").await.unwrap().holders[0].token, guard.token());
        guard.release().await.unwrap();
    }
}

on_servers! {
    /// The address of the client's server comes to lead to another cluster, in which the lock is free.
    async fn a_server_of_another_cluster_is_not_believed() {
        let (server, other) =
            (EtcdServer::start(&[]).unwrap(), EtcdServer::start(&[]).unwrap());
        let proxy = Proxy::start(server.port()).unwrap();
        let [holds, waits] = [client(&config_of(&server)).await, connect(&proxy.address()).await];
        let _guard = holds.mutex("a").unwrap().acquire().await.unwrap();
        waits.mutex("b").unwrap().acquire().await.unwrap().release().await.unwrap();
        proxy.lead_to(other.port());
        for _ in 0..3 {
            let wrong = waits.mutex("a").unwrap().acquire_within(Duration::from_secs(2)).await;
            let wrong = wrong.unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Unreachable, "{wrong}");
        }
        let foreign = other.control(&["get", "--prefix", "tenure/a/"]).unwrap();
        assert_eq!(foreign, "", "an entry was left in the other cluster");
        let listed = waits.list("").await.unwrap_err();
        assert!(listed.to_string().contains("another cluster"), "{listed}");
        proxy.lead_to(server.port());
        let back = || async { waits.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await);
        let busy = waits.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    }
}

on_servers! {
    /// For a while the address of a holder's server leads to another cluster, which does not know the
    /// holder's lease.
    async fn a_server_of_another_cluster_takes_no_lock_from_its_holder() {
        let (server, other) =
            (EtcdServer::start(&[]).unwrap(), EtcdServer::start(&[]).unwrap());
        let proxy = Proxy::start(server.port()).unwrap();
        let client = connect(&proxy.address()).await;
        let guard = client.mutex("a").unwrap().acquire().await.unwrap();
        proxy.lead_to(other.port());
        let strayed = || async { client.list("").await.is_err() };
        assert!(eventually(GENEROUS, strayed).await);
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        proxy.lead_to(server.port());
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await);
        guard.release().await.unwrap();
    }
}

on_servers! {
    async fn without_a_quorum_the_guard_reports_danger_and_loss() {
        let cluster = EtcdCluster::start().unwrap();
        failing_servers::a_lost_quorum_is_reported(cluster, connect).await;
    }
}

on_servers! {
    async fn a_restart_of_the_whole_cluster_keeps_locks_places_and_tokens() {
        let cluster = EtcdCluster::start().unwrap();
        failing_servers::a_restart_of_all_keeps_everything(cluster, connect).await;
    }
}

on_servers! {
    /// The first renewal would be ten times as far away as the bound.
    async fn a_lease_that_is_revoked_by_hand_is_lost_at_once_and_replaced() {
        let mut server = EtcdServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let options = Options::new().ttl(Duration::from_secs(600));
        let mutexes = ["a", "b", "c"].map(|name| client.mutex(name).unwrap().with(options.clone()));
        for round in 0..4 {
            let mut guards = Vec::new();
            for mutex in &mutexes {
                guards.push(mutex.acquire_within(GENEROUS).await.unwrap());
            }
            assert!(eventually(GENEROUS, || async { !marker_key(&server).is_empty() }).await);
            match round {
                // A reply that the lease is gone is wrong here, and must have no effect.
                1 => assert_eq!(server.control(&["del", &marker_key(&server)]).unwrap(), "1"),
                2 => {
                    server.kill9().unwrap();
                    server.restart().unwrap();
                }
                _ => {}
            }
            assert!(eventually(GENEROUS, || async { !marker_key(&server).is_empty() }).await);
            assert!(guards.iter().all(Guard::is_valid));
            revoke_all(&server);
            for guard in &guards {
                let reason = tokio::time::timeout(GENEROUS, guard.lost()).await;
                assert_eq!(reason.expect("the holder is notified"), LossReason::NotHeld);
            }
        }
        let guard = mutexes[0].acquire_within(GENEROUS).await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(client.list("").await.unwrap(), []);
    }
}

fn marker_key(server: &EtcdServer) -> String {
    let found = server.control(&["get", "--prefix", "--keys-only", "tenure/%lease/"]);
    found.unwrap_or_default().trim().to_owned()
}

fn revoke_all(server: &EtcdServer) {
    let leases = server.control(&["lease", "list"]).unwrap();
    for lease in leases.lines().skip(1) {
        server.control(&["lease", "revoke", lease]).unwrap();
    }
}

on_servers! {
    async fn a_waiter_whose_lease_is_revoked_joins_the_queue_again() {
        let server = EtcdServer::start(&[]).unwrap();
        let config = config_of(&server);
        let clients = [client(&config).await, client(&config).await, client(&config).await];
        let options = Options::new().ttl(Duration::from_secs(60));
        let guard = clients[0].mutex("a").unwrap().with(options.clone()).acquire().await.unwrap();
        let mut waiting = Vec::new();
        let mut leases = vec![server.control(&["lease", "list"]).unwrap()];
        for place in 1..=2 {
            let mutex = clients[place].mutex("a").unwrap().with(options.clone());
            waiting.push(tokio::spawn(async move { mutex.acquire().await.unwrap() }));
            until_waiting(&clients[0], "a", place).await;
            leases.push(server.control(&["lease", "list"]).unwrap());
        }
        let owners = || async {
            let waiters = clients[0].inspect("a").await.unwrap().waiters;
            waiters.into_iter().map(|waiter| waiter.owner).collect::<Vec<_>>()
        };
        let [first, second] = <[String; 2]>::try_from(owners().await).unwrap();
        for lease in leases[1].lines().filter(|lease| !leases[0].contains(lease)) {
            // A lease that another call has replaced meanwhile is gone already.
            drop(server.control(&["lease", "revoke", lease]));
        }
        let behind = || async { owners().await == [second.clone(), first.clone()] };
        assert!(eventually(GENEROUS, behind).await, "{:?}", owners().await);
        guard.release().await.unwrap();
        for waiter in waiting.into_iter().rev() {
            let next = tokio::time::timeout(GENEROUS, waiter).await.expect("the waiter is stuck").unwrap();
            next.release().await.unwrap();
        }
    }
}

on_servers! {
    async fn compaction_does_not_disturb_a_waiter() {
        let server = EtcdServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        // Only a notification wakes it.
        let deaf = Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(3600));
        let mutex = client.mutex("a").unwrap().with(deaf);
        let guard = mutex.acquire().await.unwrap();
        let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&client, "a", 1).await;
        for round in 0..10 {
            server.control(&["put", "other", &round.to_string()]).unwrap();
        }
        let revision = server.control(&["get", "other", "--write-out=fields"]).unwrap();
        let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        server.control(&["compaction", revision.unwrap()]).unwrap();
        guard.release().await.unwrap();
        let next = tokio::time::timeout(GENEROUS, waiting).await.expect("no notification came").unwrap();
        next.release().await.unwrap();
    }
}

on_servers! {
    async fn a_client_that_is_cut_off_loses_its_guard_before_another_claim_holds() {
        let server = EtcdServer::start(&[]).unwrap();
        partitions::a_cut_off_holder_loses_its_guard_before_another_claim_holds(server.port(), connect).await;
    }
}

on_servers! {
    /// The waiter is admitted and cut off at about the same moment.
    async fn a_waiter_that_is_admitted_and_cut_off_loses_its_guard_before_another_claim_holds() {
        let server = EtcdServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let [cut_off, other] =
            [client(&config(&proxy.address())).await, client(&config_of(&server)).await];
        let options = Options::new().ttl(Duration::from_secs(9));
        for round in 0..3 {
            let first = other.mutex("a").unwrap().acquire().await.unwrap();
            let mutex = cut_off.mutex("a").unwrap().with(options.clone());
            let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
            until_waiting(&other, "a", 1).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            first.release().await.unwrap();
            let guard = tokio::time::timeout(ELECTION, waiting).await.expect("the waiter is stuck").unwrap();
            if round == 2 {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            proxy.set(Way::Shut);
            let next = other.mutex("a").unwrap().acquire_within(2 * GENEROUS).await.unwrap();
            let valid = guard.is_valid();
            assert!(!valid, "two guards were valid at once");
            assert!(next.token() > guard.token());
            proxy.set(Way::Open);
            drop(guard);
            cut_off.close().await;
            next.release().await.unwrap();
        }
    }
}

on_servers! {
    async fn a_waiter_that_was_cut_off_is_served_when_it_is_back() {
        let server = EtcdServer::start(&[]).unwrap();
        partitions::a_waiter_is_served_when_it_is_back(server.port(), connect).await;
    }
}

on_servers! {
    async fn a_downgrade_whose_reply_is_lost_is_made_again_or_undone() {
        let server = EtcdServer::start(&[]).unwrap();
        let scenario = partitions::a_downgrade_whose_reply_is_lost_is_made_again_or_undone;
        scenario(server.port(), connect).await;
    }
}
