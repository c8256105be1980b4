//! Crowds of readers behind a writer: more than one call of a script lets in.

use std::collections::HashSet;
use std::time::Duration;

use crate::servers::{client, said, single};
use tenure_core::store::{Claim, ClaimOutcome, Store, WaitPolicy};
use tenure_core::{Client, Guard, LockName, Mode, Options};
use tenure_redis::{RedisStore, RedlockConfig, RedlockStore};
use tenure_testkit::{GENEROUS, Proxy, RedisServer, eventually};
use tokio::task::JoinSet;

const LOCK: &str = "a";
const LINE: &str = "tenure:{tenure:a}:line";

/// Options of waiters that only a message wakes.
fn deaf() -> Options {
    Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(3600))
}

/// Tasks that wait for the lock to read, and hold it then.
async fn read(
    server: &RedisServer,
    client: &Client,
    readers: usize,
    options: &Options,
) -> JoinSet<Guard> {
    let mut tasks = JoinSet::new();
    let before = length(server);
    for _ in 0..readers {
        let lock = client.rw_lock(LOCK).unwrap().with(options.clone());
        tasks.spawn(async move { Guard::from(lock.read().await.unwrap()) });
    }
    let all = || async { length(server) == before + readers };
    assert!(eventually(2 * GENEROUS, all).await, "only {} wait", length(server));
    tasks
}

fn length(server: &RedisServer) -> usize {
    said(server, &["ZCARD", LINE]).parse().unwrap()
}

/// Scripts that the server has run.
fn calls(server: &RedisServer) -> usize {
    let stats = said(server, &["INFO", "commandstats"]);
    let evalsha = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    evalsha.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap()
}

on_servers! {
    /// One release admits a batch. The readers' client is told that there are more, and continues.
    async fn ten_thousand_readers_are_let_in_by_many_calls_without_a_poll() {
        let server = RedisServer::start(&[]).unwrap();
        let store = client(&single(server.port())).await;
        let writer = store.rw_lock(LOCK).unwrap().with(deaf()).write().await.unwrap();
        let readers = 10_000;
        let mut tasks = read(&server, &client(&single(server.port())).await, readers, &deaf()).await;
        let before = calls(&server);
        writer.release().await.unwrap();
        let mut guards = Vec::new();
        while let Some(guard) = tokio::time::timeout(GENEROUS, tasks.join_next()).await.unwrap() {
            guards.push(guard.unwrap());
        }
        let tokens: HashSet<_> = guards.iter().map(Guard::token).collect();
        assert_eq!(tokens.len(), readers, "a reader was admitted twice");
        assert!(calls(&server) - before >= readers / 256, "{}", calls(&server) - before);
        assert_eq!(said(&server, &["GET", "tenure:a"]), format!("pool s {readers}"));
        let shown = store.inspect(LOCK).await.unwrap();
        assert_eq!((shown.holders.len(), shown.waiters.len()), (readers, 0));
    }
}

on_servers! {
    /// The client that should continue does not receive the message: other clients continue when they
    /// poll.
    async fn readers_are_let_in_by_polls_where_the_client_that_should_go_on_is_gone() {
        let server = RedisServer::start(&[]).unwrap();
        let store = client(&single(server.port())).await;
        let writer = store.rw_lock(LOCK).unwrap().with(deaf()).write().await.unwrap();
        let patient = Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(1));
        let mut tasks = read(&server, &store, 1_000, &patient).await;
        let proxy = Proxy::start(server.port()).unwrap();
        let gone = RedisStore::connect(single(proxy.port())).await.unwrap();
        let last = Claim::new(LockName::new(LOCK).unwrap(), Mode::Shared, Duration::from_secs(600));
        let lease = WaitPolicy::Queue { lease: 4 * GENEROUS, poll: Duration::from_secs(3600) };
        assert!(matches!(gone.claim(&last, lease).await.unwrap(), ClaimOutcome::Queued(_)));
        // The server still counts it as a subscriber.
        proxy.strand();
        writer.release().await.unwrap();
        let mut guards = Vec::new();
        while let Some(guard) = tokio::time::timeout(GENEROUS, tasks.join_next()).await.unwrap() {
            guards.push(guard.unwrap());
        }
    }
}

on_servers! {
    /// The servers of a quorum are read page by page, too.
    async fn a_quorum_shows_queues_of_more_than_one_page() {
        let many = 1_000;
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
        let fill = "for i = 1, tonumber(ARGV[1]) do
            local owner = string.format('%032x', i)
            redis.call('ZADD', KEYS[1], tostring(i), owner)
            redis.call('HSET', KEYS[2], owner, '9000000000000 1 x 0 0 60000 - 1 host label')
        end";
        for server in &servers {
            said(server, &["SET", "tenure:a", "theirs"]);
            said(server, &["EVAL", fill, "2", LINE, "tenure:{tenure:a}:w", &many.to_string()]);
        }
        let nodes = servers.iter().map(|server| single(server.port())).collect();
        let store = RedlockStore::connect(RedlockConfig::new(nodes)).await.unwrap();
        let shown = store.inspect(&LockName::new(LOCK).unwrap()).await.unwrap();
        assert_eq!(shown.holders.len(), 1);
        let line: Vec<String> = shown.waiters.into_iter().map(|waiter| waiter.owner).collect();
        let expected: Vec<String> = (1..=many).map(|number| format!("{number:032x}")).collect();
        assert_eq!(line, expected);
    }
}
