//! The line of waiters, where some of them are gone.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{
    Answer, Claim, Client, LockName, Mode, Origin, OwnerId, Patience, Place, Released, Store,
};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, RedisServer, eventually};

const TTL: Duration = Duration::from_secs(60);
const PATIENT: Patience = Patience::Queue { lease: GENEROUS, poll: Duration::from_millis(200) };

async fn connect(server: &RedisServer) -> RedisStore {
    let server = ("127.0.0.1".into(), server.port());
    RedisStore::connect(RedisConfig::new(Topology::Single { server })).await.unwrap()
}

fn server() -> Option<RedisServer> {
    let missing = tenure_testkit::lacks("redis-server", "lines of waiters on Redis");
    (!missing).then(|| RedisServer::start(&[]).unwrap())
}

fn claim(mode: Mode) -> Claim {
    Claim {
        name: LockName::new("a").unwrap(),
        owner: OwnerId::random(),
        mode,
        ttl: TTL,
        origin: Origin::here(),
        label: "".into(),
    }
}

async fn queued(store: &RedisStore, claim: &Claim, patience: Patience) -> Place {
    match store.claim(claim, patience).await.unwrap() {
        Answer::Queued(place) => place,
        answer => panic!("it should wait: {answer:?}"),
    }
}

/// Its client is gone when it is let in: it must not keep the lock for its whole term.
#[tokio::test]
async fn a_waiter_that_is_gone_holds_no_longer_than_it_would_have_waited() {
    let Some(server) = server() else { return };
    let place = Duration::from_secs(2);
    for mode in [Mode::Exclusive, Mode::Permits { take: 1, of: 1 }] {
        let store = connect(&server).await;
        let first = claim(mode);
        assert!(matches!(store.claim(&first, Patience::None).await.unwrap(), Answer::Granted(_)));
        let gone = connect(&server).await;
        queued(&gone, &claim(mode), Patience::queue(place)).await;
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
                    Answer::Granted(_) => break,
                    _ => {
                        let asked = store.claim(&last, PATIENT).await.unwrap();
                        if matches!(asked, Answer::Granted(_)) {
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

/// Channels that somebody listens to.
fn channels(server: &RedisServer) -> usize {
    let listed = server.command(&["PUBSUB", "CHANNELS"]).unwrap();
    listed.lines().filter(|line| line.contains("inbox")).count()
}

#[tokio::test]
async fn a_claim_whose_place_has_ended_goes_to_the_end_of_the_line() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let [holder, late, next] = [(); 3].map(|()| claim(Mode::Exclusive));
    assert!(matches!(store.claim(&holder, Patience::None).await.unwrap(), Answer::Granted(_)));
    let short = Duration::from_millis(50);
    queued(&store, &late, Patience::queue(short)).await;
    queued(&store, &next, PATIENT).await;
    tokio::time::sleep(short * 2).await;
    queued(&store, &late, PATIENT).await;
    let client = Client::new(Arc::new(connect(&server).await));
    let line = client.inspect("a").await.unwrap().waiters;
    let line: Vec<&str> = line.iter().map(|waiter| &*waiter.owner).collect();
    assert_eq!(line, [next.owner.to_string(), late.owner.to_string()]);
    store.release(&holder).await.unwrap();
    let holders = client.inspect("a").await.unwrap().holders;
    assert_eq!(holders[0].owner, next.owner.to_string());
}

/// The list of waiters is gone, and their records are not: all of them must come back into it.
#[tokio::test]
async fn a_line_that_was_lost_starves_nobody() {
    let Some(server) = server() else { return };
    let store = connect(&server).await;
    let holder = claim(Mode::Exclusive);
    assert!(matches!(store.claim(&holder, Patience::None).await.unwrap(), Answer::Granted(_)));
    let client = Client::new(Arc::new(connect(&server).await));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mutex = client.mutex("a").unwrap();
            tokio::spawn(async move { mutex.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let queue = "tenure:{tenure:a}:q";
    let all = || async { server.command(&["LLEN", queue]).unwrap() == "3" };
    assert!(eventually(GENEROUS, all).await);
    assert_eq!(server.command(&["DEL", queue]).unwrap(), "1");
    assert!(eventually(GENEROUS, all).await, "some are not in line any more");
    store.release(&holder).await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), Released::Released);
    }
}
