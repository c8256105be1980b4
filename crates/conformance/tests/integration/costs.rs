//! What locks cost, as counts: commands that the server executes, and allocations of the calling thread. Unlike
//! times, they are the same on a busy machine. Each has a bound, so that a change that makes locks dearer
//! fails here; one that makes them cheaper lowers the bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use tenure::Client;
use tenure_core::store::{Claim, ClaimOutcome, Released, Store, WaitPolicy};
use tenure_core::{LockName, Mode};
use tenure_testkit::{EtcdServer, Member, RedisServer, ZooKeeperServer, lacks, temp_dir};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged. The counter has no destructor and does not
// allocate, so it can be used at any time in the life of a thread.
#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above. The block comes from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The highest acceptable costs.
struct Bounds {
    /// Commands that the server executes, those in scripts included, for an acquire and release of a free lock.
    pair: f64,
    /// The same for a turn of two clients that always wait for each other: to queue, and to hand over.
    turn: f64,
    /// Allocations of the calling thread for an acquire and release of a free lock. The engine's libraries
    /// allocate as well, and a little more or less often with the sizes of what arrives.
    allocations: f64,
}

/// Keep-alives may fall into a measurement, more of them on a slow machine, and a table grows now and then. One
/// more command or allocation for each operation is too much.
const SLACK: f64 = 0.5;

/// The allocations of this thread for each of many pairs. What another thread does in between does not count.
async fn allocations(client: &Client) -> f64 {
    const PAIRS: u64 = 500;
    let mutex = client.mutex("allocations").unwrap();
    // The first pairs fill buffers and caches.
    for _ in 0..100 {
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..PAIRS {
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
    (ALLOCATIONS.get() - before) as f64 / PAIRS as f64
}

/// The commands for each of so many rounds of `work`.
async fn commands(server: &impl Member, rounds: u64, work: impl AsyncFn()) -> f64 {
    let asking = server.requests().unwrap();
    let before = server.requests().unwrap();
    for _ in 0..rounds {
        work().await;
    }
    let after = server.requests().unwrap();
    // To ask for the number may count as well.
    (after - before).saturating_sub(before - asking) as f64 / rounds as f64
}

/// Two claims that always wait for each other: with each release, the other one holds.
async fn turns(stores: [&dyn Store; 2], count: usize) {
    let ttl = Duration::from_secs(60);
    let name = LockName::new("turns").unwrap();
    let new = || Claim::new(name.clone(), Mode::Exclusive, ttl);
    let policy = WaitPolicy::queue(ttl);
    let mut held = new();
    let outcome = stores[0].claim(&held, policy).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
    for turn in 0..count {
        let (holder, waiter) = (stores[turn % 2], stores[(turn + 1) % 2]);
        let waits = new();
        let ClaimOutcome::Queued(ticket) = waiter.claim(&waits, policy).await.unwrap() else {
            panic!("the lock was not held")
        };
        assert_eq!(holder.release(&held).await.unwrap(), Released::Released);
        let outcome = waiter.wait(&waits, &ticket).await.unwrap();
        assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
        held = waits;
    }
    assert_eq!(stores[count % 2].release(&held).await.unwrap(), Released::Released);
}

async fn check(server: &impl Member, url: String, bounds: Bounds) {
    const TURNS: usize = 200;
    let clients = [tenure::connect(&url).await.unwrap(), tenure::connect(&url).await.unwrap()];
    let stores = clients.each_ref().map(|client| &**client.store());
    let mutex = clients[0].mutex("pairs").unwrap();
    let pair = async || mutex.acquire().await.unwrap().release().await.unwrap();
    // The first calls find out what the server can do.
    pair().await;
    turns(stores, 4).await;
    let a_pair = commands(server, 200, pair).await;
    let a_turn = commands(server, 1, async || turns(stores, TURNS).await).await / TURNS as f64;
    let allocated = allocations(&clients[0]).await;
    println!("{url}: {a_pair} commands a pair, {a_turn} a turn; {allocated} allocations a pair");
    let within = |what: &str, cost: f64, most: f64| {
        assert!(cost <= most + SLACK, "{cost} {what}, at most {most} wanted");
    };
    within("commands for a pair", a_pair, bounds.pair);
    within("commands for a turn", a_turn, bounds.turn);
    within("allocations for a pair", allocated, bounds.allocations);
}

#[tokio::test]
async fn a_local_lock_costs_few_allocations() {
    let folder = temp_dir();
    let client = tenure::connect(&format!("local:{}", folder.path().display())).await.unwrap();
    let allocated = allocations(&client).await;
    println!("local: {allocated} allocations a pair");
    assert!(allocated <= 3.0 + SLACK, "{allocated} allocations for a pair");
}

#[tokio::test]
async fn redis_executes_few_commands_for_a_lock() {
    if lacks("redis-server", "costs") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    // A counter that is behind the server's time is set to it, up to once a millisecond. This one is ahead
    // for decades.
    server.command(&["SET", "tenure:{token}", "4000000000000000"]).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    check(&server, url, Bounds { pair: 8.0, turn: 19.5, allocations: 12.0 }).await;
}

#[tokio::test]
async fn etcd_executes_few_requests_for_a_lock() {
    if lacks("etcd", "costs") {
        return;
    }
    let server = EtcdServer::start(&[]).unwrap();
    let url = format!("etcd://127.0.0.1:{}?timeout=10s", server.port());
    check(&server, url, Bounds { pair: 2.0, turn: 8.0, allocations: 150.0 }).await;
}

#[tokio::test]
async fn zookeeper_executes_few_requests_for_a_lock() {
    if ZooKeeperServer::is_missing("costs") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let url = format!("zk://127.0.0.1:{}?timeout=10s", server.port());
    check(&server, url, Bounds { pair: 3.0, turn: 6.0, allocations: 72.0 }).await;
}
