//! The queue of waiters when some of them, or replies to them, are lost.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::store::{
    Claim, ClaimOutcome, Eviction, QueueTicket, Released, Renewal, Store, WaitPolicy,
};
use tenure_core::{Client, Effect, ErrorKind, LockName, Mode};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, Proxy, RedisServer, eventually};

const TTL: Duration = Duration::from_secs(60);
const PATIENT: WaitPolicy = WaitPolicy::Queue { lease: GENEROUS, poll: Duration::from_millis(200) };

async fn connect(server: &RedisServer) -> RedisStore {
    let server = ("127.0.0.1".into(), server.port());
    RedisStore::connect(RedisConfig::new(Topology::Single { server })).await.unwrap()
}

fn server() -> Option<RedisServer> {
    let missing = tenure_testkit::lacks("redis-server", "queues of waiters on Redis");
    (!missing).then(|| RedisServer::start(&[]).unwrap())
}

fn claim(mode: Mode) -> Claim {
    Claim::new(LockName::new("a").unwrap(), mode, TTL)
}

async fn queued(store: &RedisStore, claim: &Claim, policy: WaitPolicy) -> QueueTicket {
    match store.claim(claim, policy).await.unwrap() {
        ClaimOutcome::Queued(place) => place,
        answer => panic!("the claim should wait: {answer:?}"),
    }
}

/// The waiter's client is gone when the lock is granted to it: the grant must not last for its whole
/// term.
#[tokio::test]
async fn a_waiter_that_is_gone_holds_no_longer_than_it_would_have_waited() {
    let Some(server) = server() else { return };
    let place = Duration::from_secs(2);
    for mode in [Mode::Exclusive, Mode::Permits { take: 1, of: 1 }] {
        let store = connect(&server).await;
        let first = claim(mode);
        assert!(matches!(
            store.claim(&first, WaitPolicy::NoWait).await.unwrap(),
            ClaimOutcome::Granted(_)
        ));
        let gone = connect(&server).await;
        queued(&gone, &claim(mode), WaitPolicy::queue(place)).await;
        drop(gone);
        // The server has to have noticed.
        let alone = || async { channels(&server) == 0 };
        assert!(eventually(GENEROUS, alone).await);
        let last = claim(mode);
        let place = queued(&store, &last, PATIENT).await;
        let start = Instant::now();
        assert_eq!(store.release(&first).await.unwrap(), Released::Released);
        let granted = async {
            loop {
                match store.wait(&last, &place).await.unwrap() {
                    ClaimOutcome::Granted(_) => break,
                    _ => {
                        let asked = store.claim(&last, PATIENT).await.unwrap();
                        if matches!(asked, ClaimOutcome::Granted(_)) {
                            break;
                        }
                    }
                }
            }
        };
        tokio::time::timeout(TTL / 2, granted).await.expect("not after the whole term");
        assert!(start.elapsed() < TTL / 2);
        store.release(&last).await.unwrap();
    }
}

/// How many channels have subscribers.
fn channels(server: &RedisServer) -> usize {
    let listed = server.command(&["PUBSUB", "CHANNELS"]).unwrap();
    listed.lines().filter(|line| line.contains("inbox")).count()
}

#[tokio::test]
async fn a_claim_whose_place_has_expired_goes_to_the_end_of_the_queue() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let [holder, late, next] = [(); 3].map(|()| claim(Mode::Exclusive));
    assert!(matches!(
        store.claim(&holder, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    let short = Duration::from_millis(50);
    queued(&store, &late, WaitPolicy::queue(short)).await;
    queued(&store, &next, PATIENT).await;
    tokio::time::sleep(short * 2).await;
    queued(&store, &late, PATIENT).await;
    let client = Client::new(Arc::new(connect(&server).await)).unwrap();
    let line = client.inspect("a").await.unwrap().waiters;
    let line: Vec<&str> = line.iter().map(|waiter| &*waiter.owner).collect();
    assert_eq!(line, [next.owner.to_string(), late.owner.to_string()]);
    store.release(&holder).await.unwrap();
    let holders = client.inspect("a").await.unwrap().holders;
    assert_eq!(holders[0].owner, next.owner.to_string());
}

/// A connection that carries nothing any more, and does not end, as when a firewall has dropped its
/// state.
#[tokio::test]
async fn a_connection_that_goes_silent_is_replaced_by_one_that_answers() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(server.port()).unwrap();
    let mut config =
        RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), proxy.port()) });
    config.timeout = Duration::from_secs(2);
    let store = RedisStore::connect(config).await.unwrap();
    let held = claim(Mode::Exclusive);
    assert!(matches!(
        store.claim(&held, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    renew_over_its_own(&server, &store, &held).await;
    proxy.strand();
    let lost = store.renew(&held).await.unwrap_err();
    assert_eq!((lost.kind(), lost.effect()), (ErrorKind::Unreachable, Effect::Unknown));
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
}

/// Renewals have a connection of their own, but do not fail if it cannot be made.
#[tokio::test]
async fn a_server_that_takes_no_more_connections_renews_over_the_one_there_is() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let held = claim(Mode::Exclusive);
    assert!(matches!(
        store.claim(&held, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    // Over a connection of the test's own: the store has the other.
    let mut operator = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let mut allow = |clients: u32| {
        let heard = operator.try_clone().unwrap();
        write!(operator, "CONFIG SET maxclients {clients}\r\n").unwrap();
        let mut reply = String::new();
        BufReader::new(heard).read_line(&mut reply).unwrap();
        assert_eq!(reply.trim_end(), "+OK");
    };
    allow(2);
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
    allow(100);
    // The connection for renewals is made meanwhile, and used from then on.
    renew_over_its_own(&server, &store, &held).await;
}

/// Renews until there is a connection for renewals besides the one for everything else.
async fn renew_over_its_own(server: &RedisServer, store: &RedisStore, held: &Claim) {
    let has_its_own = || async {
        assert_eq!(store.renew(held).await.unwrap(), Renewal::Renewed);
        let clients = server.command(&["CLIENT", "LIST"]).unwrap();
        clients.matches("name=tenure ").count() == 2
    };
    assert!(eventually(GENEROUS, has_its_own).await);
    assert_eq!(store.renew(held).await.unwrap(), Renewal::Renewed);
}

/// The server is used again also if another connection was tried meanwhile, and failed.
#[tokio::test]
async fn a_server_that_paused_is_used_again_when_it_goes_on() {
    let Some(mut server) = server() else { return };
    let mut config =
        RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), server.port()) });
    config.timeout = Duration::from_millis(500);
    let store = RedisStore::connect(config).await.unwrap();
    let held = claim(Mode::Exclusive);
    assert!(matches!(
        store.claim(&held, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    server.stop().unwrap();
    assert_eq!(store.renew(&held).await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(store.renew(&held).await.unwrap_err().kind(), ErrorKind::Unreachable);
    server.cont().unwrap();
    let renewed = || async { matches!(store.renew(&held).await, Ok(Renewal::Renewed)) };
    assert!(eventually(GENEROUS, renewed).await);
    assert_eq!(store.release(&held).await.unwrap(), Released::Released);
}

/// The queue is lost and the waiters' records are not: all waiters must join it again.
#[tokio::test]
async fn waiters_of_a_queue_that_was_lost_join_again() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let holder = claim(Mode::Exclusive);
    assert!(matches!(
        store.claim(&holder, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    let client = Client::new(Arc::new(connect(&server).await)).unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mutex = client.mutex("a").unwrap();
            tokio::spawn(async move { mutex.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let queue = "tenure:{tenure:a}:line";
    let all = || async { server.command(&["ZCARD", queue]).unwrap() == "3" };
    assert!(eventually(GENEROUS, all).await);
    assert_eq!(server.command(&["DEL", queue]).unwrap(), "1");
    assert!(eventually(GENEROUS, all).await, "some waiters are no longer queued");
    store.release(&holder).await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

/// The records of shared holders are gone: they have lost the lock, and it becomes free.
#[tokio::test]
async fn a_pool_that_was_lost_has_no_holders() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let [reader, other, writer] = [Mode::Shared, Mode::Shared, Mode::Exclusive].map(claim);
    for reader in [&reader, &other] {
        assert!(matches!(
            store.claim(reader, WaitPolicy::NoWait).await.unwrap(),
            ClaimOutcome::Granted(_)
        ));
    }
    assert_eq!(server.command(&["DEL", "tenure:{tenure:a}:p"]).unwrap(), "1");
    assert_eq!(store.renew(&reader).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&other).await.unwrap(), Released::NotHeld);
    assert_eq!(store.claim(&writer, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    // The pool's term ends: no client renews it.
    assert_eq!(server.command(&["PEXPIRE", "tenure:a", "1"]).unwrap(), "1");
    let free = || async {
        matches!(store.claim(&writer, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Granted(_))
    };
    assert!(eventually(GENEROUS, free).await);
}

/// Permits of holders whose records are lost become free when their terms have ended.
#[tokio::test]
async fn permits_whose_record_was_lost_come_back() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let [lost, kept, next] = [(); 3].map(|()| claim(Mode::Permits { take: 1, of: 2 }));
    assert!(matches!(
        store.claim(&lost, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    assert_eq!(server.command(&["DEL", "tenure:{tenure:a}:p"]).unwrap(), "1");
    assert!(matches!(
        store.claim(&kept, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    assert_eq!(store.claim(&next, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    // Its term ends.
    let owner = lost.owner.to_string();
    assert_eq!(server.command(&["ZADD", "tenure:{tenure:a}:e", "1", &owner]).unwrap(), "0");
    assert!(matches!(
        store.claim(&next, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    assert_eq!(store.renew(&kept).await.unwrap(), Renewal::Renewed);
}

/// Every value that keeps claims out is shown, and can be evicted.
#[tokio::test]
async fn every_value_that_keeps_others_out_is_shown_and_can_be_evicted() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let name = LockName::new("a").unwrap();
    for value in ["", "pool foo", "pool s 2", "somebody"] {
        assert_eq!(server.command(&["SET", "tenure:a", value]).unwrap(), "OK");
        assert_eq!(
            store.claim(&claim(Mode::Exclusive), WaitPolicy::NoWait).await.unwrap(),
            ClaimOutcome::Busy
        );
        let holders = store.inspect(&name).await.unwrap().holders;
        assert_eq!(holders.len(), 1, "{value:?}");
        let eviction = Eviction::new(name.clone(), &holders[0].owner, "test");
        assert_eq!(store.evict(&eviction).await.unwrap(), Released::Released, "{value:?}");
        assert_eq!(server.command(&["EXISTS", "tenure:a"]).unwrap(), "0", "{value:?}");
    }
    // A pool that lost its key is none: only the current holder is shown.
    let [reader, writer] = [Mode::Shared, Mode::Exclusive].map(claim);
    assert!(matches!(
        store.claim(&reader, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    assert_eq!(server.command(&["DEL", "tenure:a"]).unwrap(), "1");
    assert!(matches!(
        store.claim(&writer, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    let holders = store.inspect(&name).await.unwrap().holders;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].owner, writer.owner.to_string());
}

/// A message also goes to clients that listen at a replica, and the server does not count those. A client
/// that receives a grant relies on its whole term, so a grant that was cut short must not be published.
#[tokio::test]
async fn a_grant_that_is_cut_short_is_not_published() {
    let Some(server) = server() else { return };
    let master = server.port().to_string();
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master]).unwrap();
    let follows =
        || async { replica.command(&["INFO", "replication"]).unwrap().contains("link_status:up") };
    assert!(eventually(GENEROUS, follows).await);
    let store = connect(&server).await;
    let first = claim(Mode::Exclusive);
    assert!(matches!(
        store.claim(&first, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    let gone = connect(&server).await;
    queued(&gone, &claim(Mode::Exclusive), PATIENT).await;
    let listed = server.command(&["PUBSUB", "CHANNELS", "*inbox*"]).unwrap();
    let channel = listed.lines().find(|line| line.contains("inbox")).unwrap().trim().to_owned();
    let mut ear = TcpStream::connect(("127.0.0.1", replica.port())).unwrap();
    ear.set_read_timeout(Some(GENEROUS)).unwrap();
    write!(ear, "SUBSCRIBE {channel}\r\n").unwrap();
    let mut heard = BufReader::new(ear).lines().map(Result::unwrap);
    assert!(heard.any(|line| line == ":1"), "the client listens at the replica");
    drop(gone);
    assert!(eventually(GENEROUS, || async { channels(&server) == 0 }).await);
    store.release(&first).await.unwrap();
    let left: u64 = server.command(&["PTTL", "tenure:a"]).unwrap().parse().unwrap();
    assert!(left <= GENEROUS.as_millis() as u64, "the grant was not cut short: {left}");
    server.command(&["PUBLISH", &channel, "marker"]).unwrap();
    // A message is three strings, each with its length before it.
    let message = heard.nth(6).unwrap();
    assert_eq!(message, "marker", "the grant was published");
}

/// The reply to a claim that was queued is lost. When the same claim is granted later, it must leave the
/// queue, or it would get the lock again after its release.
#[tokio::test]
async fn without_fencing_a_claim_whose_reply_was_lost_leaves_no_place_behind() {
    let Some(server) = server() else { return };
    // On a busy machine the server itself may answer before the first poll ends: a proxy does not.
    let proxy = Proxy::start(server.port()).unwrap();
    let address = ("127.0.0.1".into(), proxy.port());
    let mut config = RedisConfig::new(Topology::Single { server: address });
    config.fencing = false;
    let store = RedisStore::connect(config).await.unwrap();
    let waiters = "tenure:{tenure:a}:w";
    let mut caught = 0;
    for attempt in 0..200 {
        if caught == 10 {
            break;
        }
        let late = claim(Mode::Exclusive);
        let owner = late.owner.to_string();
        server.command(&["SET", "tenure:a", "theirs", "PX", "60000"]).unwrap();
        let mut call = store.claim(&late, PATIENT);
        let mut polls = 0;
        let done = std::future::poll_fn(|context| {
            polls += 1;
            match polls > attempt % 12 {
                true => std::task::Poll::Ready(false),
                false => call.as_mut().poll(context).map(|_| true),
            }
        });
        let done = done.await;
        drop(call);
        // What was sent arrives, if anything was.
        let arrived = || async { server.command(&["HEXISTS", waiters, &owner]).unwrap() == "1" };
        let in_line = eventually(Duration::from_millis(100), arrived).await;
        server.command(&["DEL", "tenure:a"]).unwrap();
        if !done && in_line {
            caught += 1;
            let again = store.claim(&late, PATIENT).await.unwrap();
            assert!(matches!(again, ClaimOutcome::Granted(_)), "{again:?}");
            assert_eq!(store.release(&late).await.unwrap(), Released::Released);
            assert_eq!(server.command(&["HEXISTS", waiters, &owner]).unwrap(), "0");
        }
        store.release(&late).await.unwrap();
    }
    assert!(caught > 0, "no reply was lost at the right moment");
}
