//! Tests: a process killed before any store it makes to the table leaves the table as it was.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::{Answer, Claim, LockName, Mode, Origin, OwnerId, Patience, Store};

use crate::LocalStore;
use crate::check::check;
use crate::layout::*;
use crate::records::{CLAIM, FREE, FREE_LINK, LOCK};
use crate::txn::Txn;

const QUEUE: Patience = Patience::queue(Duration::from_secs(600));

struct Scene {
    victim: LocalStore,
    survivor: LocalStore,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let victim = LocalStore::open(dir.path()).unwrap();
        let survivor = LocalStore::open(dir.path()).unwrap();
        Self { victim, survivor, _dir: dir }
    }

    /// Kills the victim before its first store, then before its second, and so on, until the
    /// work is done undisturbed. Returns how many times it was killed.
    async fn kill_everywhere<T>(
        &self,
        work: impl AsyncFn(&LocalStore) -> tenure_core::Result<T>,
    ) -> usize {
        let before = self.image();
        for step in 0..1_000 {
            let left = &self.victim.inner.table.stores_left;
            left.store(step, Ordering::Relaxed);
            let outcome = work(&self.victim).await;
            let was_killed = left.swap(usize::MAX, Ordering::Relaxed) == 0 && outcome.is_err();
            if !was_killed {
                outcome.unwrap();
                self.check();
                return step;
            }
            let identity = self.victim.inner.table.me().identity_at();
            let identity = self.survivor.inner.table.map.word(identity).unwrap();
            let alive = identity.swap(0, Ordering::AcqRel);
            self.check();
            identity.store(alive, Ordering::Release);
            assert!(before == self.image(), "the kill before store {step} left a trace");
        }
        panic!("the work has no end");
    }

    /// Goes in over the dead, which undoes what they left, and looks over everything.
    fn check(&self) {
        let txn = Txn::begin(&self.survivor.inner.table).unwrap();
        check(&txn).unwrap();
    }

    /// All words that mean anything at rest.
    fn image(&self) -> Vec<u64> {
        let map = &self.survivor.inner.table.map;
        let word = |at: usize| map.word(at).unwrap().load(Ordering::Acquire);
        let mut image: Vec<u64> = (STATE_CHECK..STATE + STATE_WORDS).map(word).collect();
        image.push(word(JOURNAL_LENGTH));
        image.extend((MEMBERS_AT..RECORDS_AT).map(word));
        for record in 1..64 {
            let at = words_for(record);
            let means = match word(at) as u8 {
                LOCK | CLAIM => 1..FREE_LINK,
                FREE => FREE_LINK..RECORD_WORDS,
                _ => 0..0,
            };
            image.push(word(at));
            image.extend(means.map(|place| word(at + place)));
        }
        image
    }
}

fn claim(mode: Mode) -> Claim {
    Claim {
        name: LockName::new("a lock").unwrap(),
        owner: OwnerId::random(),
        mode,
        ttl: Duration::from_secs(600),
        origin: Origin::here(),
        label: "label".into(),
    }
}

#[tokio::test]
async fn a_kill_at_any_step_of_a_claim_or_release_is_undone() {
    let scene = Scene::new();
    let (first, second, third) =
        (claim(Mode::Exclusive), claim(Mode::Exclusive), claim(Mode::Exclusive));
    let steps = scene.kill_everywhere(async |store| store.claim(&first, QUEUE).await).await;
    assert!(steps > 20, "{steps}");
    scene.kill_everywhere(async |store| store.claim(&second, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.claim(&third, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.renew(&first).await).await;
    // Hands over to the second.
    scene.kill_everywhere(async |store| store.release(&first).await).await;
    let held = scene.victim.claim(&second, QUEUE).await.unwrap();
    assert!(matches!(held, Answer::Granted(_)), "{held:?}");
    // Leaves the line.
    scene.kill_everywhere(async |store| store.release(&third).await).await;
    scene.kill_everywhere(async |store| store.release(&second).await).await;
    assert!(scene.survivor.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_kill_at_any_step_among_readers_and_permits_is_undone() {
    for mode in [Mode::Shared, Mode::Permits { take: 1, of: 3 }] {
        let scene = Scene::new();
        let claims = [(); 3].map(|()| claim(mode));
        for claim in &claims {
            scene.kill_everywhere(async |store| store.claim(claim, QUEUE).await).await;
        }
        for claim in [&claims[1], &claims[0], &claims[2]] {
            scene.kill_everywhere(async |store| store.release(claim).await).await;
        }
    }
}

/// Letting several in takes several changes, each of them whole: the table is sound after a kill
/// between or in any of them, and whoever asks next lets in the rest.
#[tokio::test]
async fn a_kill_while_letting_many_in_leaves_the_rest_for_whoever_asks_next() {
    for step in 0..400 {
        let scene = Scene::new();
        let writer = claim(Mode::Exclusive);
        scene.victim.claim(&writer, QUEUE).await.unwrap();
        let readers = [(); 4].map(|()| claim(Mode::Shared));
        for reader in &readers {
            scene.survivor.claim(reader, QUEUE).await.unwrap();
        }
        let left = &scene.victim.inner.table.stores_left;
        left.store(step, Ordering::Relaxed);
        let done = scene.victim.release(&writer).await.is_ok();
        left.store(usize::MAX, Ordering::Relaxed);
        if done {
            assert!(step > 50, "{step}");
            return;
        }
        let identity = scene.victim.inner.table.me().identity_at();
        let identity = scene.survivor.inner.table.map.word(identity).unwrap();
        let alive = identity.swap(0, Ordering::AcqRel);
        scene.check();
        // The victim counts as dead, so its hold is in nobody's way.
        for reader in &readers {
            let answer = scene.survivor.claim(reader, QUEUE).await.unwrap();
            assert!(matches!(answer, Answer::Granted(_)), "{step}: {answer:?}");
        }
        identity.store(alive, Ordering::Release);
    }
    panic!("the release has no end");
}

#[tokio::test]
async fn one_who_stays_inside_is_named_and_the_others_get_an_error() {
    let scene = Scene::new();
    let gate = scene.survivor.inner.table.map.half(GATE).unwrap();
    gate.store(scene.victim.inner.table.me().at_gate(), Ordering::Release);
    let error = scene.survivor.claim(&claim(Mode::Exclusive), QUEUE).await.unwrap_err();
    gate.store(0, Ordering::Release);
    assert_eq!(error.kind(), tenure_core::ErrorKind::Unreachable);
    assert!(error.is_transient());
    let pid = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
}

#[tokio::test]
async fn a_word_changed_twice_gets_its_first_value_back() {
    let scene = Scene::new();
    let before = scene.image();
    let mut txn = Txn::begin(&scene.victim.inner.table).unwrap();
    let word = RECORDS_AT - 1;
    let first = txn.get(word).unwrap();
    txn.set(word, first + 1).unwrap();
    txn.set(word, first + 2).unwrap();
    assert_eq!(txn.get(word).unwrap(), first + 2);
    drop(txn);
    assert!(before == scene.image());
}

#[tokio::test]
async fn a_change_too_large_for_the_journal_is_refused_and_undone() {
    let scene = Scene::new();
    let before = scene.image();
    let mut txn = Txn::begin(&scene.victim.inner.table).unwrap();
    let words = BUCKETS_AT..BUCKETS_AT + JOURNAL_ENTRIES;
    words.clone().for_each(|word| txn.set(word, 1).unwrap());
    assert!(txn.set(words.end, 1).is_err());
    drop(txn);
    assert!(before == scene.image());
}
