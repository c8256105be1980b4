//! A server's clock is set forward while a lock is held: a second holder gets in, which no lock
//! with a TTL can prevent, and the fencing token keeps the first one out of what it protects.

use std::time::Duration;

use crate::quorum::{block, of, start, store, unblock};
use tenure_core::Token;
use tenure_core::store::{Claim, ClaimOutcome, Store, WaitPolicy};
use tenure_redis::RedlockStore;
use tenure_testkit::{FakeClock, GENEROUS, RedisServer, eventually};
use tenure_trials::claim;

const TTL: Duration = Duration::from_secs(30);

/// Something that is written to under the lock, and beside it one without a fence.
#[derive(Default)]
struct Register {
    fenced: Vec<Token>,
    unfenced: Vec<Token>,
}

impl Register {
    /// A write with a token. The fence refuses what is below the highest seen; the other register
    /// takes everything.
    fn write(&mut self, token: Token) -> bool {
        self.unfenced.push(token);
        let stale = self.fenced.iter().any(|seen| token < *seen);
        if !stale {
            self.fenced.push(token);
        }
        !stale
    }
}

async fn hold(store: &RedlockStore, claim: &Claim) -> Option<Token> {
    match store.claim(claim, WaitPolicy::NoWait).await {
        Ok(ClaimOutcome::Granted(grant)) => grant.token,
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_31_seconds_lets_no_stale_write_past_the_fence() {
    const TEST: &str = "a_clock_that_jumps";
    if tenure_testkit::lacks("redis-server", TEST) || tenure_testkit::lacks("cc", TEST) {
        return;
    }
    let clock = FakeClock::new().unwrap();
    let mut servers = vec![RedisServer::start_on_clock(&[], &clock).unwrap()];
    servers.extend(start(4));
    let (first, second) = (store(&of(&servers)).await, store(&of(&servers)).await);
    let mut register = Register::default();

    // The first holds three of five; the other two are free again.
    servers[3..].iter().for_each(|server| block(server, "a"));
    let [a, b, c] = [(); 3].map(|()| claim("a", TTL));
    let token_a = hold(&first, &a).await.expect("three of five are free");
    servers[3..].iter().for_each(|server| unblock(server, "a"));
    assert!(register.write(token_a));
    assert_eq!(hold(&second, &b).await, None, "three of five are held");

    clock.set_ahead(Duration::from_secs(31)).unwrap();
    let got_in = async || {
        let deadline = std::time::Instant::now() + GENEROUS;
        while std::time::Instant::now() < deadline {
            if let Some(token) = hold(&second, &b).await {
                return token;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("a hold that its server's clock has ended lets another in")
    };
    let token_b = got_in().await;
    assert!(register.write(token_b), "the second holder writes");
    assert!(!register.write(token_a), "the first one's write is stale");

    // The clock is set right, and the next token is above both.
    clock.set_ahead(Duration::ZERO).unwrap();
    second.release(&b).await.unwrap();
    first.release(&a).await.unwrap();
    let mut next = None;
    let held = eventually(GENEROUS, || async { hold(&first, &c).await.is_some() }).await;
    if held {
        next = hold(&first, &c).await;
    }
    assert!(register.write(next.expect("the lock is free")), "tokens went back with the clock");
    assert!(!register.write(token_b));
    assert!(register.fenced.is_sorted_by(|a, b| a < b), "{:?}", register.fenced);
    assert!(!register.unfenced.is_sorted(), "without a fence, stale writes go through");
}
