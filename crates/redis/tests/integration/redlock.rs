//! Real faults of a quorum's servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::quorum::{Load, block, client, config, has, of, ports, start, store, unblock};
use tenure_core::store::{ClaimOutcome, Released, Renewal, Store, WaitPolicy, now};
use tenure_core::{ErrorKind, Mode, Options, Severity};
use tenure_redis::{ACL, ACL_QUORUM, RedlockStore, Topology};
use tenure_testkit::{GENEROUS, Proxy, RedisServer, Way, eventually};
use tenure_trials::claim;

on_servers! {
    async fn killing_two_of_five_servers_under_load_stops_no_client() {
        let mut servers = start(5);
        let clients = [client(&of(&servers)).await, client(&of(&servers)).await];
        let load = Arc::new(Load::default());
        let tasks = load.start(&clients, 6);
        load.goes_on(30).await;
        servers[0].kill9().unwrap();
        servers[3].kill9().unwrap();
        load.goes_on(100).await;
        load.end(tasks).await;
    }
}

on_servers! {
    async fn killing_three_of_five_servers_is_reported_as_a_lost_quorum_and_nothing_hangs() {
        let mut servers = start(5);
        let client = client(&of(&servers)).await;
        let short = Options::new().ttl(Duration::from_secs(3));
        let held = client.mutex("held").unwrap().with(short).acquire().await.unwrap();
        for server in &mut servers[..3] {
            server.kill9().unwrap();
        }
        let start = Instant::now();
        let error = client.mutex("free").unwrap().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(error.to_string().contains("quorum lost: 2 of 5 servers answer"), "{error}");
        tokio::time::timeout(GENEROUS, held.lost()).await.expect("the holder hears of it");
        let told = tokio::time::timeout(GENEROUS, held.release()).await.expect("the release returns");
        assert!(told.is_err());
        let error = client.mutex("free").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(start.elapsed() < GENEROUS * 2);
    }
}

on_servers! {
    /// A server that restarts has lost its data. Its vote counts again when the longest TTL has passed.
    async fn servers_that_come_back_count_again_after_the_longest_ttl() {
        let mut servers = start(3);
        let mut config = of(&servers);
        config.max_ttl = Duration::from_secs(2);
        let client = client(&config).await;
        let brief = Options::new().ttl(Duration::from_secs(1));
        let mutex = client.mutex("back").unwrap().with(brief);
        mutex.acquire().await.unwrap().release().await.unwrap();
        let killed = now();
        for server in &mut servers[..2] {
            server.restart().unwrap();
        }
        let works = || async { mutex.try_acquire().await.is_ok() };
        assert!(eventually(GENEROUS, works).await, "no lock is granted after the quorum is back");
        assert!(now().since(killed) >= config.max_ttl, "a server was trusted too soon");
    }
}

on_servers! {
    async fn an_unreachable_server_stops_no_client() {
        let servers = start(5);
        let hole = Proxy::start(servers[4].port()).unwrap();
        let mut behind = ports(&servers);
        behind[4] = hole.port();
        let config = config(behind);
        let clients = [client(&config).await, client(&config).await];
        let load = Arc::new(Load::default());
        let tasks = load.start(&clients, 4);
        load.goes_on(30).await;
        hole.set(Way::Black);
        load.goes_on(100).await;
        hole.heal();
        load.goes_on(100).await;
        load.end(tasks).await;
        let start = Instant::now();
        hole.set(Way::Black);
        client(&config).await;
        assert!(start.elapsed() < GENEROUS / 2, "connecting waits for a black hole");
    }
}

on_servers! {
    async fn a_ttl_above_max_ttl_is_refused_and_the_default_is_within_it() {
        let servers = start(3);
        let mut config = of(&servers);
        config.max_ttl = Duration::from_secs(5);
        let mutex = client(&config).await.mutex("a").unwrap();
        let guard = mutex.acquire().await.unwrap();
        assert_eq!(guard.ttl(), config.max_ttl);
        guard.release().await.unwrap();
        let long = mutex.with(Options::new().ttl(Duration::from_secs(30)));
        let error = long.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("max-ttl="), "{error}");
    }
}

/// Claim A holds three of five servers, of which one restarts empty; the other two are free.
async fn restart_in_the_middle_of_a_hold(fresh: bool) {
    let mut servers = start(5);
    let mut config = of(&servers);
    config.max_ttl = Duration::from_secs(4);
    let (holder, witness) = (store(&config).await, client(&config).await);
    // Long enough that the servers are not taken for a new set.
    tokio::time::sleep(Duration::from_secs(8)).await;
    for server in &servers[3..] {
        block(server, "a");
    }
    let (ttl, sent) = (config.max_ttl, now());
    let held = claim("a", ttl);
    let ClaimOutcome::Granted(grant) = holder.claim(&held, WaitPolicy::NoWait).await.unwrap()
    else {
        panic!("the claim has three of five servers");
    };
    for server in &servers[3..] {
        unblock(server, "a");
    }
    servers[0].restart().unwrap();
    assert!(!has(&servers[0], "a"), "the restarted server has forgotten the lock");
    let rival = if fresh { client(&config).await } else { witness };
    let mutex = rival.mutex("a").unwrap().with(Options::new().ttl(ttl));
    let guard = mutex.acquire_within(GENEROUS).await.unwrap();
    assert!(now() >= tenure_proto::deadline(sent, ttl), "two claims hold at once");
    assert!(grant.token < guard.token());
}

on_servers! {
    async fn a_server_restarted_empty_admits_no_claim_of_a_connected_client_within_the_ttl() {
        restart_in_the_middle_of_a_hold(false).await;
    }
}

on_servers! {
    async fn a_server_restarted_empty_admits_no_claim_of_a_new_client_within_the_ttl() {
        restart_in_the_middle_of_a_hold(true).await;
    }
}

on_servers! {
    /// Two servers have restarted empty. The third has not, and answers late.
    async fn servers_are_not_taken_for_a_new_set_before_all_have_had_time_to_answer() {
        let mut servers = start(3);
        let mut config = of(&servers);
        config.max_ttl = Duration::from_secs(6);
        config.nodes.iter_mut().for_each(|node| node.timeout = GENEROUS);
        // Long enough that the third is seen to be older than the longest TTL.
        tokio::time::sleep(Duration::from_secs(10)).await;
        for server in &mut servers[..2] {
            server.restart().unwrap();
        }
        servers[2].stop().unwrap();
        let connecting = tokio::spawn(async move { RedlockStore::connect(config).await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        servers[2].cont().unwrap();
        let store = connecting.await.unwrap().unwrap();
        let answer = store.claim(&claim("a", Duration::from_secs(1)), WaitPolicy::NoWait).await;
        let error = answer.expect_err("two of three may have forgotten a lock");
        assert!(error.to_string().contains("restarted, and does not count"), "{error}");
    }
}

on_servers! {
    /// The servers stand still with the claim in their buffers. When they go on, the release is
    /// behind it: nothing is left long before the TTL.
    async fn a_claim_that_too_few_answered_is_undone_where_it_arrives_late() {
        let mut servers = start(5);
        let mut config = of(&servers);
        config.node_timeout = Some(Duration::from_millis(100));
        let store = store(&config).await;
        for server in &mut servers[..3] {
            server.stop().unwrap();
        }
        let late = claim("late", Duration::from_secs(60));
        let error = store.claim(&late, WaitPolicy::NoWait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(error.to_string().contains("3 did not answer in time"), "{error}");
        for server in &mut servers[..3] {
            server.cont().unwrap();
        }
        let gone = || async { servers.iter().all(|server| !has(server, "late")) };
        assert!(eventually(GENEROUS, gone).await, "the claim is left behind");
    }
}

on_servers! {
    async fn a_claim_whose_votes_take_too_long_is_undone_and_the_error_says_so() {
        let mut servers = start(3);
        let mut config = of(&servers);
        config.node_timeout = Some(GENEROUS);
        let store = store(&config).await;
        for server in &mut servers[..2] {
            server.stop().unwrap();
        }
        let slow = claim("slow", Duration::from_millis(600));
        let error = store.claim(&slow, WaitPolicy::NoWait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseTooShort, "{error}");
        assert!(error.to_string().contains("ask for a longer TTL"), "{error}");
        for server in &mut servers[..2] {
            server.cont().unwrap();
        }
        let again = || async {
            matches!(store.claim(&slow, WaitPolicy::NoWait).await, Ok(ClaimOutcome::Granted(_)))
        };
        assert!(eventually(GENEROUS, again).await);
    }
}

on_servers! {
    async fn a_renewal_repairs_a_server_that_lost_the_lock() {
        let servers = start(3);
        let store = store(&of(&servers)).await;
        let held = claim("repair", Duration::from_secs(60));
        let ClaimOutcome::Granted(grant) = store.claim(&held, WaitPolicy::NoWait).await.unwrap() else {
            panic!("the lock is free");
        };
        for server in &servers {
            unblock(server, "repair");
            assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
            assert!(eventually(GENEROUS, || async { has(server, "repair") }).await);
        }
        // The repaired server knows the token: the next claim gets a higher one.
        assert_eq!(store.release(&held).await.unwrap(), Released::Released);
        let next = claim("repair", Duration::from_secs(60));
        let ClaimOutcome::Granted(after) = store.claim(&next, WaitPolicy::NoWait).await.unwrap() else {
            panic!("the lock is free");
        };
        assert!(grant.token < after.token);
    }
}

on_servers! {
    /// One server's counter is far ahead. The claim that uses its vote raises the other one to it,
    /// so that the token goes on without that server.
    async fn a_token_is_known_to_a_majority_before_it_is_given_out() {
        let mut servers = start(3);
        let store = store(&of(&servers)).await;
        let ahead = (1u64 << 52).to_string();
        servers[0].command(&["SET", "tenure:{token}", &ahead]).unwrap();
        block(&servers[2], "raise");
        let [first, second] = [(); 2].map(|()| claim("raise", Duration::from_secs(60)));
        let ClaimOutcome::Granted(before) = store.claim(&first, WaitPolicy::NoWait).await.unwrap() else {
            panic!("two of three are free");
        };
        assert!(before.token.unwrap().get() > 1 << 52);
        let shown = store.inspect(&first.name).await.unwrap();
        assert_eq!(shown.holders[0].token, before.token, "both show the token");
        store.release(&first).await.unwrap();
        unblock(&servers[2], "raise");
        servers[0].kill9().unwrap();
        let ClaimOutcome::Granted(after) = store.claim(&second, WaitPolicy::NoWait).await.unwrap() else {
            panic!("two of three are there");
        };
        assert!(before.token < after.token, "{before:?} {after:?}");
    }
}

on_servers! {
    async fn a_lock_that_a_majority_lost_is_lost() {
        let servers = start(3);
        let store = store(&of(&servers)).await;
        let held = claim("gone", Duration::from_secs(60));
        store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        unblock(&servers[0], "gone");
        unblock(&servers[2], "gone");
        assert_eq!(store.renew(&held).await.unwrap(), Renewal::Lost);
        let free = || async { servers.iter().all(|server| !has(server, "gone")) };
        assert!(eventually(GENEROUS, free).await, "the rest of the hold is released");
    }
}

on_servers! {
    async fn scripts_that_a_server_lost_are_given_to_it_again() {
        let servers = start(3);
        let client = client(&of(&servers)).await;
        for server in &servers {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
        let mutex = client.mutex("scripts").unwrap();
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
}

on_servers! {
    /// Whether its refusal arrives before the others have confirmed the release, or after.
    async fn a_server_that_lost_its_scripts_carries_out_a_release_before_its_term_ends() {
        let servers = start(3);
        let client = client(&of(&servers)).await;
        let mutex = client.mutex("left").unwrap().with(Options::new().ttl(GENEROUS * 3));
        for server in servers.iter().cycle().take(9) {
            let guard = mutex.acquire().await.unwrap();
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            guard.release().await.unwrap();
            let free = || async { servers.iter().all(|server| !has(server, "left")) };
            assert!(eventually(GENEROUS, free).await, "the lock stays held on one server");
        }
    }
}

on_servers! {
    /// Also those for a second connection, which cuts off the first.
    async fn the_documented_rights_are_enough() {
        let servers = start(3);
        let rights = format!("{ACL} {ACL_QUORUM}");
        let mut words = vec!["ACL", "SETUSER", "locker", "on", ">secret", "resetkeys", "-@all"];
        words.extend(rights.split_whitespace());
        let mut config = of(&servers);
        for (server, node) in servers.iter().zip(&mut config.nodes) {
            assert_eq!(server.command(&words).unwrap(), "OK");
            (node.username, node.password) = (Some("locker".into()), Some("secret".into()));
        }
        let client = client(&config).await;
        let mutex = client.mutex("rights").unwrap();
        mutex.acquire().await.unwrap().release().await.unwrap();
        for server in &servers {
            server.command(&["CLIENT", "KILL", "USER", "locker"]).unwrap();
        }
        mutex.acquire().await.unwrap().release().await.unwrap();
        config.nodes.iter_mut().for_each(|node| node.password = Some("wrong".into()));
        let error = RedlockStore::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

on_servers! {
    async fn a_set_of_servers_that_is_no_quorum_is_refused_with_the_reason() {
        let servers = start(3);
        let refusal = async |ports: &[u16]| {
            let error = RedlockStore::connect(config(ports.to_vec())).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            error.to_string()
        };
        let [a, b, c] = [0, 1, 2].map(|number| servers[number].port());
        assert!(refusal(&[a]).await.contains("1 servers are no quorum"));
        assert!(refusal(&[a, b, c, a]).await.contains("name 3 or 5"));
        assert!(refusal(&[a, b, a]).await.contains("1 and 3 lead to one server"));
        let mut alias = config([a, b, c]);
        alias.nodes[2].topology = Topology::Single { server: ("localhost".into(), b) };
        let error = RedlockStore::connect(alias).await.unwrap_err();
        assert!(error.to_string().contains("2 and 3 lead to one server"), "{error}");
        let mut slow = config([a, b, c]);
        slow.node_timeout = Some(slow.max_ttl);
        let error = RedlockStore::connect(slow).await.unwrap_err();
        assert!(error.to_string().contains("node-timeout="), "{error}");
        let mut long = claim("long", Duration::from_secs(3600));
        let store = store(&config([a, b, c])).await;
        let error = store.claim(&long, WaitPolicy::NoWait).await.unwrap_err();
        assert!(error.to_string().contains("max-ttl="), "{error}");
        long.mode = Mode::Permits { take: 1, of: 2 };
        let error = store.claim(&long, WaitPolicy::NoWait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

on_servers! {
    /// Otherwise rivals that split the votes would split them again.
    async fn a_claim_that_got_some_votes_asks_again_after_a_random_pause() {
        let servers = start(3);
        let store = store(&of(&servers)).await;
        servers[1..].iter().for_each(|server| block(server, "a"));
        let queue = WaitPolicy::Queue { lease: GENEROUS, poll: Duration::from_secs(1) };
        let mut pauses = Vec::new();
        for _ in 0..1000 {
            let rival = claim("a", Duration::from_secs(60));
            let answer = store.claim(&rival, queue).await.unwrap();
            let ClaimOutcome::Queued(place) = answer else { panic!("{answer:?}") };
            // Without a pause, the others' votes were enough to know.
            pauses.extend(place.ask_again_in);
            store.release(&rival).await.unwrap();
            if pauses.len() == 10 {
                break;
            }
        }
        assert_eq!(pauses.len(), 10, "a vote is never among the first");
        assert!(pauses.iter().all(|pause| (1..=1000).contains(&pause.as_millis())), "{pauses:?}");
        pauses.sort_unstable();
        pauses.dedup();
        assert!(pauses.len() > 5, "{pauses:?}");
    }
}

on_servers! {
    /// Rivals that ask at the same time split the votes, and none has a majority. Any number of them
    /// makes progress all the same. `TENURE_LIVELOCK_SECONDS` makes the run longer.
    async fn two_to_fifty_contenders_make_progress() {
        let servers = start(5);
        let clients = [client(&of(&servers)).await, client(&of(&servers)).await];
        let seconds = std::env::var("TENURE_LIVELOCK_SECONDS").ok();
        let seconds: f64 = seconds.and_then(|text| text.parse().ok()).unwrap_or(6.0);
        for contenders in [2, 3, 10, 25, 50] {
            let load = Arc::new(Load::default());
            let tasks = load.start(&clients, contenders);
            let end = Instant::now() + Duration::from_secs_f64(seconds / 5.0);
            while Instant::now() < end {
                load.goes_on(1).await;
            }
            load.goes_on(10).await;
            load.end(tasks).await;
            let turns = load.turns.load(std::sync::atomic::Ordering::SeqCst);
            println!("{contenders} contenders: {turns} turns");
        }
    }
}

on_servers! {
    async fn the_doctor_says_what_each_server_keeps() {
        let durable = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let servers = [durable.unwrap(), start(1).remove(0), start(1).remove(0)];
        let findings = store(&of(&servers)).await.diagnose().await.unwrap();
        let all: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        let all = all.join("\n");
        let forgets = findings.iter().find(|it| it.what.contains("a restart loses its locks")).unwrap();
        assert_eq!(forgets.severity, Severity::Advice, "{forgets:?}");
        assert!(forgets.what.contains(&servers[1].port().to_string()), "{forgets:?}");
        assert!(!forgets.what.contains(&servers[0].port().to_string()), "{forgets:?}");
        assert!(all.contains("every lock is on disk"), "{all}");
        assert!(all.contains("1 of 3 may fail"), "{all}");
        assert!(findings.iter().all(|it| it.severity != Severity::Unsafe), "{all}");
    }
}
