//! Work that is done once, while an earlier holder of its lock is late.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Chaos, Client, ErrorKind, Faults, MemoryStore, Once, OnceRun, OnceStart, Token};
use tokio::time::sleep;

/// How long a request or a reply of the slow client takes.
const DELAY: Duration = Duration::from_millis(20);

/// The same work for a client that is quick and one that is slow, on the clock of the runtime.
fn quick_and_slow() -> (Once<String>, Once<String>) {
    let store = Arc::new(MemoryStore::new());
    let slow = Chaos::new(store.clone(), Faults::new(1).delay(DELAY..DELAY));
    let once = |store| Client::new(store).unwrap().once("payment").unwrap();
    (once(store), once(Arc::new(slow)))
}

fn started(start: OnceStart<String>) -> Box<OnceRun<String>> {
    match start {
        OnceStart::Started(run) => run,
        OnceStart::Replayed(value) => panic!("the work was done: {value}"),
    }
}

fn token(number: u64) -> Option<Token> {
    Some(Token::new(number))
}

/// Resolves when the slow client has read, and has not written yet.
async fn between_read_and_write() {
    sleep(2 * DELAY + DELAY / 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_result_that_comes_before_the_next_runner_has_begun_is_its_result() {
    for earlier in [token(7), None] {
        let (quick, slow) = quick_and_slow();
        let late = started(quick.start(earlier).await.unwrap());
        let later = earlier.map(|_| Token::new(8));
        let (next, finished) = tokio::join!(slow.start(later), async {
            between_read_and_write().await;
            late.finish(&"receipt".to_owned()).await
        });
        finished.unwrap();
        match next.unwrap() {
            OnceStart::Replayed(value) => assert_eq!(value, "receipt"),
            OnceStart::Started(_) => panic!("the work is done twice"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_runner_with_the_newest_token_wins_in_whichever_order_they_begin() {
    let (quick, slow) = quick_and_slow();
    // The older holder was paused between its grant and its beginning.
    let (newer, older) = tokio::join!(slow.start(token(8)), async {
        between_read_and_write().await;
        quick.start(token(7)).await
    });
    let (newer, older) = (started(newer.unwrap()), started(older.unwrap()));
    assert_eq!(older.finish(&"older".to_owned()).await.unwrap_err().kind(), ErrorKind::Lost);
    newer.finish(&"newer".to_owned()).await.unwrap();

    let (quick, slow) = quick_and_slow();
    let (older, newer) = tokio::join!(slow.start(token(7)), async {
        between_read_and_write().await;
        quick.start(token(8)).await
    });
    assert_eq!(older.unwrap_err().kind(), ErrorKind::Lost);
    started(newer.unwrap()).finish(&"newer".to_owned()).await.unwrap();
}
