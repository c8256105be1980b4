//! Rate limits.

use std::time::Duration;

use tenure_core::{ErrorKind, Rate, RateLimiter};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::fixture::{client, name};

const HOUR: Duration = Duration::from_secs(3_600);

/// Asks until the store answers. Where faults are injected, a request may have been counted twice.
async fn take(fixture: &dyn Fixture, limiter: &RateLimiter, cost: u64) -> tenure_core::Decision {
    loop {
        match limiter.take(cost).await {
            Err(fault) if fault.is_transient() && fixture.injects_faults() => {}
            decision => return decision.unwrap(),
        }
    }
}

/// Many clients at once get no more than the limit, by either rule, and exactly the limit where no call
/// fails.
pub async fn no_more_than_the_limit_is_let_through_under_load(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    const LIMIT: u64 = 12;
    // An hour may end meanwhile, and then a window begins anew; a day is less likely to.
    let day = 24 * HOUR;
    for rate in [Rate::gcra(LIMIT, HOUR), Rate::fixed_window(LIMIT, day)] {
        let name = name("limit-load");
        let asks = async {
            let limiter = client(fixture).await.rate_limiter(name.as_str(), rate).unwrap();
            let mut allowed = 0;
            for _ in 0..8 {
                allowed += u64::from(take(fixture, &limiter, 1).await.allowed);
            }
            allowed
        };
        let asks2 = async {
            let limiter = client(fixture).await.rate_limiter(name.as_str(), rate).unwrap();
            let mut allowed = 0;
            for _ in 0..4 {
                allowed += 2 * u64::from(take(fixture, &limiter, 2).await.allowed);
                allowed += u64::from(take(fixture, &limiter, 1).await.allowed);
            }
            allowed
        };
        let (one, two) = tokio::join!(asks, asks2);
        assert!(one + two <= LIMIT, "{rate:?}: {one} + {two}");
        assert!(fixture.injects_faults() || one + two == LIMIT, "{rate:?}: {one} + {two}");
    }
}

/// A decision tells what is left and when to come again; a peek takes nothing; a request that is refused
/// takes nothing.
pub async fn a_decision_contains_what_is_left_and_when_to_try_again(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() || fixture.injects_faults() {
        return;
    }
    let client = client(fixture).await;
    let limiter = client.rate_limiter(name("limit-rest").as_str(), Rate::gcra(4, HOUR)).unwrap();
    for _ in 0..3 {
        let peek = limiter.peek(4).await.unwrap();
        assert_eq!((peek.allowed, peek.remaining), (true, 4));
    }
    let first = limiter.take(3).await.unwrap();
    assert_eq!((first.allowed, first.remaining, first.retry_after), (true, 1, Duration::ZERO));
    for _ in 0..2 {
        let refused = limiter.take(2).await.unwrap();
        assert_eq!((refused.allowed, refused.remaining), (false, 1));
        let wait = refused.retry_after;
        assert!(wait > HOUR / 8 && wait <= HOUR / 4, "one of four more in an hour: {wait:?}");
        assert!(!limiter.peek(2).await.unwrap().allowed);
    }
    assert!(limiter.take(1).await.unwrap().allowed);
    assert_eq!(limiter.peek(1).await.unwrap().remaining, 0);
    for cost in [0, 5] {
        assert_eq!(limiter.take(cost).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let senseless = client.rate_limiter("a", Rate::fixed_window(0, HOUR));
    assert_eq!(senseless.unwrap_err().kind(), ErrorKind::Invalid);
}

/// After the time that a refusal names, the same request is let through, by either rule.
pub async fn a_limit_lets_through_again_after_its_time(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() || fixture.injects_faults() {
        return;
    }
    let client = client(fixture).await;
    let short = Duration::from_millis(400);
    for rate in [Rate::gcra(2, short), Rate::fixed_window(2, short)] {
        let limiter = client.rate_limiter(name("limit-again").as_str(), rate).unwrap();
        let refusal = async || {
            for _ in 0..1_000 {
                let decision = limiter.take(2).await.unwrap();
                if !decision.allowed {
                    return decision.retry_after;
                }
            }
            panic!("{rate:?} refuses nothing")
        };
        let wait = refusal().await;
        assert!(wait > Duration::ZERO && wait <= short, "{rate:?}: {wait:?}");
        tokio::time::sleep(wait).await;
        let again = || async { limiter.take(2).await.unwrap().allowed };
        assert!(eventually(GENEROUS, again).await, "{rate:?} lets nothing through any more");
    }
}
