//! Many clients of tenure and of other projects.

use std::path::Path;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_testkit::temp_dir;

use crate::external::Driver;
use crate::scene::Scene;

const EACH: usize = 2;
const ROUNDS: usize = 10;

pub(crate) async fn ours_and_theirs_count_together_and_lose_nothing(scene: &Scene) {
    let mut drivers = Vec::new();
    for _ in 0..EACH {
        drivers.push(scene.theirs().await);
    }
    count_together(scene, drivers).await;
}

/// Counts with clients of tenure and these, as many rounds each.
pub(crate) async fn count_together(scene: &Scene, drivers: Vec<Driver>) {
    let folder = temp_dir();
    let file = &*folder.path().join("counter");
    std::fs::write(file, "0").unwrap();
    let all = drivers.len() + EACH;
    let theirs = drivers.into_iter().map(|theirs| their_rounds(theirs, file));
    let ours = (0..EACH).map(|_| our_rounds(scene, file));
    let (_, mut tokens) = join(join_all(theirs), join_all(ours)).await;
    let counted: usize = std::fs::read_to_string(file).unwrap().parse().unwrap();
    assert_eq!(counted, all * ROUNDS);
    // The count at the time of each grant gives the order of the tokens.
    let mut tokens: Vec<(usize, u64)> = tokens.drain(..).flatten().collect();
    tokens.sort_unstable();
    assert!(tokens.is_sorted_by(|one, next| one.1 < next.1), "{tokens:?}");
}

async fn their_rounds(mut theirs: Driver, file: &Path) {
    for _ in 0..ROUNDS {
        theirs.hold().await;
        count(file).await;
        theirs.release().await;
    }
}

async fn our_rounds(scene: &Scene, file: &Path) -> Vec<(usize, u64)> {
    let mutex = scene.mutex();
    let mut tokens = Vec::new();
    for _ in 0..ROUNDS {
        let guard = mutex.acquire().await.unwrap();
        tokens.push((count(file).await, guard.token().unwrap().get()));
        guard.release().await.unwrap();
    }
    tokens
}

/// Not atomic, and slow: two holders at once lose a count.
async fn count(file: &Path) -> usize {
    let before: usize = std::fs::read_to_string(file).unwrap().parse().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    std::fs::write(file, (before + 1).to_string()).unwrap();
    before
}
