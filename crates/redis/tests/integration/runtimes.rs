//! A store that several runtimes use, of which one stands still.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::servers::single;
use tenure_core::store::{Claim, ClaimOutcome, QueueTicket, Store, WaitPolicy};
use tenure_core::{ErrorKind, Options, blocking};
use tenure_redis::{RedisStore, RedissonStore};
use tenure_testkit::{GENEROUS, RedisServer};
use tenure_trials::claim;
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_secs(30);
const PATIENT: WaitPolicy = WaitPolicy::Queue { lease: TTL, poll: Duration::from_millis(200) };

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn queued(store: &RedisStore, claim: &Claim) -> QueueTicket {
    match store.claim(claim, PATIENT).await.unwrap() {
        ClaimOutcome::Queued(place) => place,
        answer => panic!("the claim should wait: {answer:?}"),
    }
}

/// A program may build its client before it starts a runtime.
#[test]
fn to_connect_outside_a_runtime_is_an_error() {
    use futures_util::FutureExt;
    let config = single(1);
    let refused = RedisStore::connect(config.clone()).now_or_never().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.to_string().contains("Tokio runtime"), "{refused}");
    let refused = RedissonStore::connect(config).now_or_never().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

/// The first waiter starts the refresh task, on its own runtime.
#[test]
fn a_queue_is_refreshed_while_the_runtime_that_did_so_stands_still() {
    if tenure_testkit::lacks("redis-server", "a line of two runtimes") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let program = Builder::new_multi_thread().enable_all().build().unwrap();
    let still = runtime();
    let store = program.block_on(RedisStore::connect(single(server.port()))).unwrap();
    // This lock of another client expires, and no message says so.
    server.command(&["SET", "tenure:a", "theirs", "PX", "1000"]).unwrap();
    let [first, second] = [(); 2].map(|()| claim("a", TTL));
    still.block_on(async {
        let place = queued(&store, &first).await;
        let mut waiting = store.wait(&first, &place);
        poll_fn(|context| {
            assert!(waiting.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    program.block_on(async {
        store.release(&first).await.unwrap();
        let place = queued(&store, &second).await;
        let outcome = tokio::time::timeout(GENEROUS / 4, store.wait(&second, &place)).await;
        assert!(outcome.is_ok(), "no task refreshes the waiters");
        let answer = store.claim(&second, PATIENT).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    });
}

/// The client's own thread serves the connection, so it does not matter that the only thread of this runtime
/// is blocked.
#[test]
fn a_blocking_call_on_the_only_thread_of_a_runtime_reaches_the_server() {
    if tenure_testkit::lacks("redis-server", "blocking calls inside a runtime") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let open = async || {
        let store = RedisStore::connect(single(server.port())).await?;
        Ok(std::sync::Arc::new(store) as std::sync::Arc<dyn Store>)
    };
    runtime().block_on(async {
        let client = blocking::Client::open(open()).unwrap();
        let ttl = Options::new().ttl(Duration::from_millis(400));
        let mutex = client.mutex("a").unwrap().with(ttl);
        let guard = mutex.acquire().unwrap();
        // Renewed several times meanwhile.
        let late = mutex.acquire_within(Duration::from_millis(1500)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        guard.release().unwrap();
        drop(mutex.acquire().unwrap());
        client.close();
        assert!(client.inspect("a").unwrap().is_free());
    });
}
