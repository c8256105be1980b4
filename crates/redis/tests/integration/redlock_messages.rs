//! Messages of a quorum that are late, lost, or on a connection that has been replaced.

use std::sync::Arc;
use std::time::Duration;

use crate::quorum::{block, config, counter, has, hold, of, ports, start, store, unblock};
use tenure_core::Mode;
use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, Store, WaitPolicy};
use tenure_redis::{RedlockConfig, RedlockStore};
use tenure_testkit::{GENEROUS, Proxy, RedisServer, Way, eventually};
use tenure_trials::claim;

const TTL: Duration = Duration::from_secs(60);

/// What a server has to answer where the test waits for it to be late.
const LIMIT: Duration = Duration::from_millis(500);

/// Three servers, the first behind a proxy.
async fn behind_a_proxy(limit: Duration) -> (Vec<RedisServer>, Proxy, Arc<RedlockStore>) {
    let (servers, proxy, config) = proxied(limit);
    (servers, proxy, store(&config).await)
}

fn proxied(limit: Duration) -> (Vec<RedisServer>, Proxy, RedlockConfig) {
    let servers = start(3);
    let proxy = Proxy::start(servers[0].port()).unwrap();
    let mut ports = ports(&servers);
    ports[0] = proxy.port();
    let mut config = config(ports);
    config.node_timeout = Some(limit);
    (servers, proxy, config)
}

on_servers! {
    /// A lost claim and its release are under way when their connection is replaced. The same owner
    /// asks again and wins, and only then do they arrive.
    async fn a_release_on_a_replaced_connection_undoes_no_later_claim() {
        let (servers, proxy, store) = behind_a_proxy(GENEROUS).await;
        block(&servers[2], "a");
        let owner = claim("a", TTL);
        proxy.keep();
        let asking = { let (store, owner) = (Arc::clone(&store), owner.clone()); async move {
            store.claim(&owner, WaitPolicy::NoWait).await
        } };
        let asking = tokio::spawn(asking);
        assert!(eventually(GENEROUS, || async { has(&servers[1], "a") }).await);
        // The store has no answer of the first server yet: the release of a claim that is given up goes
        // behind it.
        asking.abort();
        let _aborted = asking.await;
        let release = tokio::time::timeout(Duration::from_secs(1), store.release(&owner));
        let _unclear = release.await;
        proxy.cut();
        hold(&store, &owner).await;
        assert!(has(&servers[0], "a"));
        assert!(eventually(GENEROUS, || async { proxy.deliver() }).await, "no request was late");
        assert!(has(&servers[0], "a"), "an old release has undone a new claim");
    }
}

on_servers! {
    /// The connection breaks before the release of a lost claim can be sent. When there is another,
    /// the release goes first: it must not undo what the same owner has won since.
    async fn a_release_that_could_not_be_sent_undoes_no_later_claim() {
        let (servers, proxy, store) = behind_a_proxy(GENEROUS).await;
        block(&servers[2], "a");
        let owner = claim("a", TTL);
        proxy.keep();
        let queue = WaitPolicy::Queue { lease: GENEROUS, poll: Duration::from_secs(1) };
        let asking = { let (store, owner) = (Arc::clone(&store), owner.clone()); async move {
            store.claim(&owner, queue).await
        } };
        let asking = tokio::spawn(asking);
        assert!(eventually(GENEROUS, || async { has(&servers[1], "a") }).await);
        proxy.cut();
        assert!(matches!(asking.await.unwrap(), Ok(ClaimOutcome::Queued(_) | ClaimOutcome::Granted(_))));
        hold(&store, &owner).await;
        // Whatever there was to be sent has been by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has(&servers[0], "a") && has(&servers[1], "a"), "a late release took it away");
    }
}

on_servers! {
    /// A server stands still, and goes on too late for its confirmation of a release to count. When
    /// the connection breaks after the same owner has won there, that release is not sent again.
    async fn a_release_that_was_confirmed_too_late_undoes_no_later_claim() {
        let (mut servers, proxy, config) = proxied(LIMIT);
        block(&servers[2], "a");
        let store = store(&config).await;
        let owner = claim("a", TTL);
        servers[0].stop().unwrap();
        assert_eq!(store.claim(&owner, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
        tokio::time::sleep(config.nodes[0].timeout + Duration::from_millis(500)).await;
        servers[0].cont().unwrap();
        hold(&store, &owner).await;
        proxy.cut();
        // Whatever there was to be sent has been by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has(&servers[0], "a") && has(&servers[1], "a"), "a late release took it away");
    }
}

on_servers! {
    /// The server gets the claim late, and the connection is gone by then.
    async fn a_lost_claim_is_taken_back_when_its_server_can_be_reached_again() {
        let (mut servers, proxy, store) = behind_a_proxy(GENEROUS).await;
        block(&servers[1], "a");
        let owner = claim("a", TTL);
        servers[0].stop().unwrap();
        let asking = { let (store, owner) = (Arc::clone(&store), owner.clone()); async move {
            store.claim(&owner, WaitPolicy::NoWait).await
        } };
        let asking = tokio::spawn(asking);
        assert!(eventually(GENEROUS, || async { has(&servers[2], "a") }).await);
        proxy.cut();
        assert_eq!(asking.await.unwrap().unwrap(), ClaimOutcome::Busy);
        servers[0].cont().unwrap();
        let gone = || async { !has(&servers[0], "a") && !has(&servers[2], "a") };
        assert!(eventually(GENEROUS, gone).await, "the claim is left behind");
    }
}

on_servers! {
    async fn a_server_that_missed_a_release_gets_it_when_it_is_back() {
        let (servers, proxy, store) = behind_a_proxy(GENEROUS).await;
        let owner = claim("a", TTL);
        hold(&store, &owner).await;
        assert!(eventually(GENEROUS, || async { has(&servers[0], "a") }).await);
        proxy.keep();
        assert_eq!(store.release(&owner).await.unwrap(), Released::Released);
        assert!(has(&servers[0], "a"), "the server has not received the release");
        proxy.cut();
        let gone = || async { !has(&servers[0], "a") };
        assert!(eventually(GENEROUS, gone).await, "the lock is left there for its TTL");
    }
}

on_servers! {
    /// A majority decides, or the fact that there can be none: no call waits for the rest.
    async fn a_server_that_is_suspended_is_not_waited_for() {
        let mut servers = start(3);
        let mut config = of(&servers);
        config.node_timeout = Some(GENEROUS);
        config.nodes.iter_mut().for_each(|node| node.timeout = GENEROUS);
        let store = store(&config).await;
        servers[0].stop().unwrap();
        let [owner, rival] = [(); 2].map(|()| claim("a", TTL));
        let calls = async {
            let won = store.claim(&owner, WaitPolicy::NoWait).await;
            assert!(matches!(won, Ok(ClaimOutcome::Granted(_))), "{won:?}");
            assert_eq!(store.claim(&rival, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
            assert_eq!(store.renew(&owner).await.unwrap(), Renewal::Renewed);
            assert_eq!(store.release(&owner).await.unwrap(), Released::Released);
        };
        tokio::time::timeout(GENEROUS / 2, calls).await.expect("the calls wait for the suspended server");
    }
}

on_servers! {
    /// A server that owes an answer is not asked for more: it costs neither time nor memory.
    async fn an_unreachable_server_is_asked_once() {
        let (_servers, proxy, store) = behind_a_proxy(LIMIT).await;
        let pair = async || {
            let owner = claim("a", TTL);
            hold(&store, &owner).await;
            store.release(&owner).await.unwrap();
        };
        proxy.set(Way::Black);
        pair().await;
        assert!(eventually(GENEROUS, || async { proxy.swallowed() > 0 }).await, "the server is asked");
        // By then it owes the answer for longer than it may take.
        tokio::time::sleep(LIMIT + Duration::from_millis(50)).await;
        let before = proxy.swallowed();
        for _ in 0..100 {
            pair().await;
        }
        assert_eq!(proxy.swallowed(), before, "the server is asked again and again");
    }
}

on_servers! {
    /// The last server votes too late, and above the token. Among others next time, its vote would
    /// be the largest.
    async fn a_holder_that_asks_again_keeps_its_token() {
        let mut servers = start(3);
        let store = store(&of(&servers)).await;
        let ahead = (1u64 << 52).to_string();
        servers[2].command(&["SET", "tenure:{token}", &ahead]).unwrap();
        servers[2].stop().unwrap();
        let held = claim("a", TTL);
        let token = hold(&store, &held).await;
        servers[2].cont().unwrap();
        assert!(eventually(GENEROUS, || async { has(&servers[2], "a") }).await);
        servers[1].stop().unwrap();
        assert_eq!(hold(&store, &held).await, token);
    }
}

/// A lock with a token far ahead of all clocks, of which the last server has forgotten everything.
async fn forgotten_by_the_last(mode: Mode) -> (Vec<RedisServer>, Arc<RedlockStore>, Claim, u64) {
    let servers = start(3);
    let store = store(&of(&servers)).await;
    for server in &servers {
        server.command(&["SET", "tenure:{token}", &(1u64 << 52).to_string()]).unwrap();
    }
    let mut held = claim("a", TTL);
    held.mode = mode;
    let token = hold(&store, &held).await.get();
    assert!(token > 1 << 52);
    assert!(eventually(GENEROUS, || async { has(&servers[2], "a") }).await);
    unblock(&servers[2], "a");
    servers[2].command(&["SET", "tenure:{token}", "5"]).unwrap();
    (servers, store, held, token)
}

on_servers! {
    async fn a_repaired_server_counts_on_from_the_holders_token() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let (servers, store, held, token) = forgotten_by_the_last(mode).await;
            assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
            let repaired = || async { has(&servers[2], "a") };
            assert!(eventually(GENEROUS, repaired).await, "the server is not repaired");
            assert!(counter(&servers[2]) >= token, "{mode:?}");
        }
    }
}

on_servers! {
    async fn a_server_that_another_holds_is_neither_raised_nor_repaired() {
        let (servers, store, held, _) = forgotten_by_the_last(Mode::Exclusive).await;
        block(&servers[2], "a");
        for _ in 0..3 {
            assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
        }
        // The answer of the last server may have come after the others' were enough.
        store.inspect(&held.name).await.unwrap();
        assert_eq!(counter(&servers[2]), 5);
        let holder = servers[2].command(&["GET", "tenure:a"]).unwrap();
        assert!(holder.contains("foreign"), "{holder}");
    }
}
