//! The driver on an engine in memory, in histories that a real engine seldom produces.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Answer, Claim, Grant, LockName, Mode, Origin, OwnerId, Patience, Place, Released, Store,
};

use crate::fake::{FakeEngine, World};
use crate::store::OrderedStore;

type FakeStore = OrderedStore<FakeEngine>;

async fn store(world: &Arc<World>) -> Arc<FakeStore> {
    Arc::new(FakeStore::connect(Arc::clone(world)).await.unwrap())
}

fn claim(mode: Mode, ttl: Duration) -> Claim {
    Claim {
        name: LockName::new("a").unwrap(),
        owner: OwnerId::random(),
        mode,
        ttl,
        origin: Origin::here(),
        label: "".into(),
    }
}

fn alone() -> Claim {
    claim(Mode::Exclusive, LONG)
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
const QUEUE: Patience = Patience::queue(LONG);

fn granted(answer: Answer) -> Grant {
    match answer {
        Answer::Granted(grant) => grant,
        answer => panic!("{answer:?}"),
    }
}

/// Polls until it is so.
async fn until(mut holds: impl FnMut() -> bool) {
    let patience = Duration::from_secs(10);
    let looks = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(patience, looks).await.expect("it never came to be");
}

#[tokio::test]
async fn a_lock_is_handed_over_in_order_within_and_between_clients() {
    let world = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let claims: Vec<Claim> = (0..6).map(|_| alone()).collect();
    let of = |at: usize| if at % 3 == 0 { &other } else { &one };
    let mut last = granted(of(0).claim(&claims[0], QUEUE).await.unwrap()).token;
    for at in 1..claims.len() {
        let answer = of(at).claim(&claims[at], QUEUE).await.unwrap();
        assert!(matches!(answer, Answer::Queued(_)));
    }
    for at in 1..claims.len() {
        assert_eq!(of(at - 1).release(&claims[at - 1]).await.unwrap(), Released::Released);
        let grant = granted(of(at).wait(&claims[at], &Place::default()).await.unwrap());
        assert!(grant.token > last);
        last = grant.token;
    }
}
