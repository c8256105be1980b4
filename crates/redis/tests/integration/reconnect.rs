//! How often servers are dialled and asked while something is wrong, counted at the server.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::servers::{FAILOVER, client, said, single};
use crate::stubs::{bulk, shards, stub};
use parking_lot::Mutex;
use tenure_core::store::{ClaimOutcome, Renewal, Store, WaitPolicy};
use tenure_core::{Client, ErrorKind, Options};
use tenure_redis::{RedisConfig, RedisStore, RedlockConfig, RedlockStore, Topology};
use tenure_testkit::{GENEROUS, RedisServer, RedisStub, eventually};
use tenure_trials::claim;

/// Calls from many tasks at once, each as soon as the one before has failed, for three seconds at most. Says
/// how long it took.
async fn hammer(client: &Client, calls: usize) -> Duration {
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..calls {
                if start.elapsed() > Duration::from_secs(3) {
                    return;
                }
                let _refused = client.mutex(&format!("lock-{task}")).unwrap().try_acquire().await;
            }
        });
    }
    tasks.join_all().await;
    start.elapsed()
}

/// At most so many attempts are made in this time at the pace of dials: each link has a few quick
/// ones, then at least an eighth of a second between two.
fn most_dials(took: Duration) -> usize {
    20 + took.as_millis() as usize / 125
}

/// The port of a server that was killed, where a stub now takes connections and drops them.
fn dropping(port: u16) -> RedisStub {
    RedisStub::start_on(port, |_| None).unwrap()
}

on_servers! {
    async fn a_server_that_was_killed_is_not_dialled_at_the_rate_of_the_calls() {
        let mut server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        let ttl = Options::new().ttl(Duration::from_secs(600));
        let held = client.mutex("held").unwrap().with(ttl).acquire().await.unwrap();
        server.kill9().unwrap();
        let stub = dropping(server.port());
        // One dial serves all calls that wait for it.
        let took = hammer(&client, 2000).await;
        let dials = stub.connections();
        assert!(dials > 0 && dials <= most_dials(took), "{dials} connections in {took:?}");
        drop(stub);
        server.restart().unwrap();
        let found = eventually(GENEROUS, || async {
            client.mutex("a").unwrap().try_acquire().await.is_ok()
        });
        assert!(found.await, "a server that is back is not found");
        drop(held);
    }
}

on_servers! {
    async fn a_replica_is_not_left_and_dialled_again_at_the_rate_of_the_calls() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        client.mutex("a").unwrap().try_acquire().await.unwrap().release().await.unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let (start, before) = (Instant::now(), connections(&server));
        said(&server, &["REPLICAOF", "127.0.0.1", &port.to_string()]);
        let took = hammer(&client, 40).await;
        let refused = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert!(refused.to_string().contains("replica"), "{refused}");
        // Two are this test's own.
        let dials = connections(&server) - before - 2;
        let most = 2 + start.elapsed().as_secs() as usize;
        assert!(dials <= most, "{dials} connections for 640 calls in {took:?}");
    }
}

fn connections(server: &RedisServer) -> usize {
    let stats = said(server, &["INFO", "stats"]);
    let name = "total_connections_received:";
    stats.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
}

fn cluster(port: u16) -> RedisConfig {
    let mut config =
        RedisConfig::new(Topology::Cluster { nodes: vec![("127.0.0.1".into(), port)] });
    config.timeout = Duration::from_secs(2);
    config
}

/// A node whose masters are what `masters` makes of its own port, and that drops every claim.
fn node(masters: fn(u16) -> Vec<(u16, u16, u16)>) -> RedisStub {
    let port = Arc::new(OnceLock::new());
    let own = Arc::clone(&port);
    let stub = stub(move |words| match words[..] {
        ["CLUSTER", "SHARDS"] => Some(shards(&masters(*own.wait()))),
        // Clients ask this when slots are missing.
        ["CLUSTER", "SLOTS"] => Some("-ERR no\r\n".into()),
        _ => None,
    });
    port.set(stub.port()).unwrap();
    stub
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_not_looked_up_as_fast_as_errors_come() {
    for (what, masters) in [
        ("a node that drops calls", (|port| vec![(0, 16_383, port)]) as fn(u16) -> _),
        ("slots that no node serves", |port| vec![(0, 0, port)]),
    ] {
        let stub = node(masters);
        let client = client(&cluster(stub.port())).await;
        let before = stub.received(&["CLUSTER", "SHARDS"]);
        let took = hammer(&client, 20).await;
        let asked = || stub.received(&["CLUSTER", "SHARDS"]) - before;
        let (times, most) = (asked(), 20 + took.as_millis() as usize / 250);
        assert!(times <= most, "{what}: asked {times} times in {took:?}");
        let dials = stub.connections();
        assert!(dials <= most_dials(took), "{what}: {dials} connections in {took:?}");
        // In a crowd of calls that are dropped, the question may be dropped with each of their connections.
        let asks = || async {
            let _refused = client.mutex("alone").unwrap().try_acquire().await;
            asked() > 0
        };
        assert!(eventually(GENEROUS, asks).await, "{what}: the slots are not looked up");
    }
}

/// A node that grants and renews whatever it is asked for, and from some time on drops every connection that
/// asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_and_renewals_share_the_dials_of_a_node() {
    let (port, down) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
    let (own, drops) = (Arc::clone(&port), Arc::clone(&down));
    let node = stub(move |words| match words {
        ["CLUSTER", "SHARDS"] => Some(shards(&[(0, 16_383, *own.wait())])),
        _ if drops.load(Ordering::SeqCst) => None,
        ["EVALSHA", _, "3", arguments @ ..] if arguments.len() == 6 => Some(bulk("granted 5")),
        _ => Some(":1\r\n".into()),
    });
    port.set(node.port()).unwrap();
    let store = Arc::new(RedisStore::connect(cluster(node.port())).await.unwrap());
    let client = Client::new(Arc::clone(&store) as Arc<dyn Store>).unwrap();
    let held = claim("held", Duration::from_secs(60));
    let granted = store.claim(&held, WaitPolicy::NoWait).await.unwrap();
    assert!(matches!(granted, ClaimOutcome::Granted(_)), "{granted:?}");
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
    let over_its_own = || async { node.connections() == 2 };
    assert!(eventually(GENEROUS, over_its_own).await, "renewals have no connection of their own");
    down.store(true, Ordering::SeqCst);
    let renewing = tokio::spawn(async move {
        loop {
            let _refused = store.renew(&held).await;
        }
    });
    let took = hammer(&client, 2000).await;
    renewing.abort();
    // A few quick ones, then at least an eighth of a second between two.
    let (dials, most) = (node.connections() - 2, 8 + took.as_millis() as usize / 125);
    assert!(dials > 0 && dials <= most, "{dials} connections in {took:?}");
}

/// Which server a Sentinel names as the master, and in which epoch.
type Named = Arc<Mutex<(u16, u64)>>;

/// A Sentinel that names this master in this epoch.
fn sentinel(master: u16, epoch: u64) -> RedisStub {
    sentinel_of(&Named::new(Mutex::new((master, epoch))))
}

fn sentinel_of(named: &Named) -> RedisStub {
    let named = Arc::clone(named);
    stub(move |words| {
        let (master, epoch) = *named.lock();
        match words[..] {
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"] => {
                Some(format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&master.to_string())))
            }
            ["SENTINEL", "MASTER", "main"] => {
                Some(format!("%1\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string())))
            }
            _ => Some("-ERR no\r\n".into()),
        }
    })
}

/// A master that grants every claim, and may have the command `DELIFEQ`.
fn master(compares: bool) -> RedisStub {
    stub(move |words| match words {
        ["EVALSHA", _, "3", ..] => Some(bulk("granted 5")),
        ["DELIFEQ" | "DELEX", ..] if !compares => Some("-ERR unknown command\r\n".into()),
        _ => Some(":1\r\n".into()),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_a_new_master_are_learnt_anew() {
    let (old, new) = (master(false), master(true));
    let named = Named::new(Mutex::new((old.port(), 1)));
    let sentinel = sentinel_of(&named);
    let store = RedisStore::connect(behind(&[&sentinel])).await.unwrap();
    let taken_and_released = async || {
        let held = claim("a", Duration::from_secs(60));
        store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        store.release(&held).await.unwrap();
    };
    for _ in 0..4 {
        taken_and_released().await;
    }
    assert_eq!((old.received(&["DELIFEQ"]), old.received(&["DELEX"])), (1, 1));
    *named.lock() = (new.port(), 2);
    let arrived = || async { new.connections() > 0 };
    assert!(eventually(FAILOVER, arrived).await, "the new master is not found");
    let learnt = || async {
        taken_and_released().await;
        new.received(&["DELIFEQ"]) > 0
    };
    assert!(eventually(GENEROUS, learnt).await, "the new master is not asked for DELIFEQ");
}

fn behind(sentinels: &[&RedisStub]) -> RedisConfig {
    let sentinels = sentinels.iter().map(|it| ("127.0.0.1".to_owned(), it.port())).collect();
    RedisConfig::new(Topology::Sentinel { sentinels, service: "main".into() })
}

on_servers! {
    async fn a_sentinel_has_one_connection_that_lasts() {
        let server = RedisServer::start(&[]).unwrap();
        let sentinel = sentinel(server.port(), 1);
        let client = client(&behind(&[&sentinel])).await;
        let asked = eventually(GENEROUS, || async { sentinel.received(&["SENTINEL"]) >= 10 });
        assert!(asked.await, "the master is not followed");
        assert_eq!(sentinel.connections(), 1);
        client.mutex("a").unwrap().try_acquire().await.unwrap().release().await.unwrap();
    }
}

on_servers! {
    async fn a_sentinel_that_is_behind_is_not_believed() {
        let (old, new) = (RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap());
        let (stale, first, second) =
            (sentinel(old.port(), 4), sentinel(new.port(), 5), sentinel(new.port(), 5));
        let orders =
            [[&stale, &first, &second], [&first, &stale, &second], [&first, &second, &stale]];
        for order in orders {
            let client = client(&behind(&order)).await;
            let guard = client.mutex("a").unwrap().try_acquire().await.unwrap();
            assert_eq!(said(&new, &["EXISTS", "tenure:a"]), "1");
            guard.release().await.unwrap();
        }
        let client = client(&behind(&[&stale, &first, &second])).await;
        drop((first, second));
        // The client asks the remaining Sentinel again and again, and keeps its connection.
        let before = stale.received(&["SENTINEL", "MASTER"]);
        let asked = || async { stale.received(&["SENTINEL", "MASTER"]) >= before + 3 };
        assert!(eventually(FAILOVER, asked).await);
        said(&new, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        for _ in 0..5 {
            let _refused = client.mutex("a").unwrap().try_acquire().await;
        }
        assert_eq!(said(&old, &["EXISTS", "tenure:a"]), "0");
        let loads = said(&old, &["INFO", "commandstats"]);
        assert!(!loads.contains("evalsha"), "the old master was used: {loads}");
    }
}

on_servers! {
    /// The Sentinel may be cut off, together with a master that was replaced.
    async fn a_sentinel_that_answers_alone_is_not_believed() {
        let (old, new) = (RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap());
        let (stale, first) = (sentinel(old.port(), 4), sentinel(new.port(), 5));
        let gone = RedisStub::start(|_| None).unwrap();
        let mut config = behind(&[&gone, &stale, &gone]);
        config.timeout = Duration::from_secs(1);
        let refused = RedisStore::connect(config.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("1 of 3 Sentinels"), "{refused}");
        assert!(!said(&old, &["INFO", "commandstats"]).contains("cmdstat_role"), "the old master was dialled");
        // Two of three are enough, and the newer of them is right.
        let client = client(&behind(&[&gone, &stale, &first])).await;
        let guard = client.mutex("a").unwrap().try_acquire().await.unwrap();
        assert_eq!(said(&new, &["EXISTS", "tenure:a"]), "1");
        guard.release().await.unwrap();
    }
}

on_servers! {
    /// Most Sentinels may be behind together: then the server that they name says what it is.
    async fn a_server_that_sentinels_call_the_master_has_to_say_so_itself() {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let port = master.port().to_string();
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
        let sentinels = [(); 3].map(|()| sentinel(replica.port(), 7));
        let refused = RedisStore::connect(behind(&sentinels.each_ref())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("no master"), "{refused}");
    }
}

on_servers! {
    async fn a_server_of_a_quorum_is_not_dialled_at_the_rate_of_the_calls() {
        let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
        let nodes = servers.iter().map(|server| single(server.port())).collect();
        let store = RedlockStore::connect(RedlockConfig::new(nodes)).await.unwrap();
        let client = Client::new(Arc::new(store)).unwrap();
        servers[0].kill9().unwrap();
        let stub = dropping(servers[0].port());
        let took = hammer(&client, 200).await;
        let dials = stub.connections();
        assert!(dials > 0 && dials <= most_dials(took), "{dials} connections in {took:?}");
        drop(stub);
        // A server that accepts every login, and then refuses every command.
        let useless = RedisStub::start_on(servers[0].port(), |words| {
            let hello = words[0] == "HELLO";
            Some(if hello { crate::stubs::HELLO.into() } else { "-NOPERM no\r\n".to_owned() })
        });
        let useless = useless.unwrap();
        let took = hammer(&client, 200).await;
        let asked = useless.received(&["INFO"]);
        assert!(asked <= most_dials(took), "asked {asked} times in {took:?}");
    }
}

/// A master that takes connections and never answers.
fn black_hole(below: u16) -> TcpListener {
    let mut tried = Vec::new();
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        if listener.local_addr().unwrap().port() < below {
            return listener;
        }
        assert!(tried.len() < 500, "no lower port is free");
        tried.push(listener);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_never_answers_does_not_keep_a_client_from_the_others() {
    let masters = Arc::new(OnceLock::new());
    let known: Arc<OnceLock<Vec<(u16, u16, u16)>>> = Arc::clone(&masters);
    let node = stub(move |words| match words[..] {
        ["CLUSTER", "SHARDS"] => Some(shards(known.wait())),
        _ => None,
    });
    // The masters are asked in the order of their ports.
    let hole = black_hole(node.port());
    let hole_port = hole.local_addr().unwrap().port();
    masters.set(vec![(0, 8_000, hole_port), (8_001, 16_383, node.port())]).unwrap();
    RedisStore::connect(cluster(node.port())).await.unwrap();
}

/// More seeds are silent than can be waited for one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_that_never_answer_do_not_keep_a_client_from_the_others() {
    let node = node(|port| vec![(0, 16_383, port)]);
    let holes: Vec<_> = (0..4).map(|_| black_hole(u16::MAX)).collect();
    let mut nodes: Vec<_> = holes.iter().map(|it| it.local_addr().unwrap().port()).collect();
    nodes.push(node.port());
    let nodes = nodes.into_iter().map(|port| ("127.0.0.1".to_owned(), port)).collect();
    RedisStore::connect(RedisConfig::new(Topology::Cluster { nodes })).await.unwrap();
}

/// A call dials on the runtime that it is made on. That may stand still before the dial is done.
#[test]
fn a_dial_on_a_runtime_that_stands_still_holds_up_no_other_runtime() {
    if tenure_testkit::lacks("redis-server", "a dial on a runtime that stands still") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let program = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut config = single(server.port());
    config.timeout = Duration::from_millis(500);
    let store = program.block_on(RedisStore::connect(config)).unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let one = claim("a", Duration::from_secs(30));
    still.block_on(async {
        let mut call = store.claim(&one, WaitPolicy::NoWait);
        std::future::poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    });
    let asked = || async {
        let call = store.claim(&one, WaitPolicy::NoWait);
        tokio::time::timeout(Duration::from_secs(1), call).await.is_ok_and(|it| it.is_ok())
    };
    assert!(program.block_on(eventually(GENEROUS, asked)), "no runtime dials any more");
}
