//! Tests: a process that is killed before any of its stores to the table leaves the table consistent.
//!
//! A [`Scene`] has one directory and four stores, which stand for four processes. The victim is killed
//! during an operation, the rescuer is killed while it rolls back the victim's change, the departed has died
//! before, and the survivor must find a consistent table.

mod cases;
mod gate;
mod tokens;

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::store::{Claim, ClaimOutcome, Released, Store, WaitPolicy};
use tenure_core::{LockName, Mode};
use tenure_proto::Occupancy;

use crate::claim_index::OwnerRecords;
use crate::consistency::check;
use crate::fault::{Fault, Result};
use crate::layout::*;
use crate::records::{CLAIM, FREE, FREE_LINK, LOCK};
use crate::store::Inner;
use crate::txn::Txn;
use crate::{LocalStore, Setup};

/// After how many stores the process counts as killed, and the most words it has read in one change.
#[derive(Debug)]
pub(crate) struct Kill {
    left: AtomicUsize,
    fired: AtomicBool,
    most_reads: AtomicUsize,
    /// Whether background work is off.
    is_alone: AtomicBool,
}

impl Default for Kill {
    fn default() -> Self {
        Self {
            left: AtomicUsize::new(usize::MAX),
            fired: AtomicBool::new(false),
            most_reads: AtomicUsize::new(0),
            is_alone: AtomicBool::new(false),
        }
    }
}

impl Kill {
    /// Called before each store. Fails from the armed one on: a killed process stores nothing.
    pub(crate) fn before_store(&self) -> Result<()> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            self.fired.store(true, Ordering::Relaxed);
            return Err(Fault::new(tenure_core::ErrorKind::Internal, "killed by the test"));
        }
        if left != usize::MAX {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Called when the gate is left, with the number of words read inside.
    pub(crate) fn count_reads(&self, reads: usize) {
        self.most_reads.fetch_max(reads, Ordering::Relaxed);
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Relaxed)
    }

    fn arm(&self, stores: usize) {
        self.fired.store(false, Ordering::Relaxed);
        self.left.store(stores, Ordering::Relaxed);
    }

    /// Whether the process was killed since [`arm`](Self::arm).
    fn disarm(&self) -> bool {
        self.left.store(usize::MAX, Ordering::Relaxed);
        self.fired.swap(false, Ordering::Relaxed)
    }
}

const LONG: Duration = Duration::from_secs(600);
const QUEUE: WaitPolicy = WaitPolicy::queue(LONG);
/// A wait whose lease ends at once: a waiter that is stopped.
const LAPSED: WaitPolicy = WaitPolicy::queue(Duration::ZERO);

struct Scene {
    victim: LocalStore,
    rescuer: LocalStore,
    departed: LocalStore,
    survivor: LocalStore,
    /// Claims of the survivor that no kill of another process may harm.
    bystanders: Vec<Claim>,
    /// Kill points so far: in operations, and in the recovery from each of those.
    kills: usize,
    recovery_kills: usize,
    dir: tempfile::TempDir,
}

/// The table's file and what the victim and the survivor remember, to start again from.
struct Snapshot {
    bytes: Vec<u8>,
    kept: [OwnerRecords; 2],
}

/// A lock that only takes up room; it is not given back in the end.
const FILLER: &str = "filler";

impl Scene {
    fn new() -> Self {
        Self::with_records(64)
    }

    fn with_records(limit: u32) -> Self {
        let scene = Self::open(Setup { max_records: Some(limit), ..Setup::default() });
        for store in [&scene.victim, &scene.rescuer, &scene.departed, &scene.survivor] {
            store.inner.table.kill.is_alone.store(true, Ordering::Relaxed);
        }
        scene
    }

    fn with_tokens(block: u64) -> Self {
        let setup = Setup { token_block: Some(block), max_records: Some(64), ..Setup::default() };
        Self::open(setup)
    }

    fn open(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = || LocalStore::open_with(dir.path(), setup).unwrap();
        Self {
            victim: open(),
            rescuer: open(),
            departed: open(),
            survivor: open(),
            bystanders: Vec::new(),
            kills: 0,
            recovery_kills: 0,
            dir,
        }
    }

    /// A claim of the survivor, granted or queued, that stays in the table.
    async fn bystander(&mut self, mode: Mode) -> Claim {
        let claim = claim(mode);
        self.survivor.claim(&claim, QUEUE).await.unwrap();
        self.bystanders.push(claim.clone());
        claim
    }

    /// From now on the departed is dead, and its claims are still in the table.
    fn bury_departed(&self) {
        identity(&self.departed).store(0, Ordering::Release);
    }

    /// Kills the victim before its first store, then before its second, and so on, each time from
    /// the same table, until the work is done undisturbed. After each kill the table is recovered,
    /// also by a process that is itself killed at each of its stores, and then judged and used.
    /// Leaves the table as the work left it. Returns how often the victim was killed.
    async fn kill_everywhere<T>(
        &mut self,
        work: impl AsyncFn(&LocalStore) -> tenure_core::Result<T>,
    ) -> usize {
        let before = self.snapshot();
        let holding = self.holding().await;
        for step in 0..5_000 {
            self.restore(&before);
            let kill = &self.victim.inner.table.kill;
            kill.arm(step);
            let outcome = work(&self.victim).await;
            if !kill.disarm() {
                outcome.unwrap();
                let done = self.snapshot();
                self.judge(step, &holding).await;
                self.restore(&done);
                self.kills += step;
                return step;
            }
            identity(&self.victim).store(0, Ordering::Release);
            let wreck = self.snapshot();
            self.check(step);
            let recovered = self.image();
            self.kill_recovery_everywhere(step, &wreck, &recovered);
            self.judge(step, &holding).await;
        }
        panic!("the work has no end");
    }

    /// Recovers from the same wreck again and again, killed before each store, and has the
    /// survivor finish: the outcome must be the same as of a recovery that was not disturbed.
    fn kill_recovery_everywhere(&mut self, step: usize, wreck: &Snapshot, recovered: &[u8]) {
        for recovery_step in 0..5_000 {
            self.restore(wreck);
            let kill = &self.rescuer.inner.table.kill;
            kill.arm(recovery_step);
            drop(Txn::begin(&self.rescuer.inner.table));
            if !kill.disarm() {
                self.recovery_kills += recovery_step;
                assert!(self.image() == recovered, "the recovery from {step} differs");
                return;
            }
            let alive = identity(&self.rescuer).swap(0, Ordering::AcqRel);
            drop(Txn::begin(&self.survivor.inner.table).unwrap());
            identity(&self.rescuer).store(alive, Ordering::Release);
            let same = self.image() == recovered;
            assert!(same, "a recovery from {step} that ended at {recovery_step} differs");
        }
        panic!("the recovery has no end");
    }

    /// Enters the gate after the killed process, which rolls back its change, and checks the whole table.
    fn check(&self, step: usize) {
        let txn = Txn::begin(&self.survivor.inner.table).unwrap();
        check(&txn).unwrap_or_else(|fault| panic!("after a kill before store {step}: {fault:?}"));
    }

    /// Checks that each claim of the survivor holds or waits as it should, that each is granted in turn, that
    /// nothing is left in the end, and that another claim can take the lock then.
    async fn judge(&self, step: usize, holding: &HashSet<String>) {
        // Their claims block no other claim.
        for dead in [&self.victim, &self.departed] {
            identity(dead).store(0, Ordering::Release);
        }
        self.check(step);
        let store = &self.survivor;
        let still = self.holding().await;
        assert!(holding.is_subset(&still), "{step}: a holder lost its lock");
        let mut waiting: Vec<&Claim> = self.bystanders.iter().collect();
        let mut tokens = Vec::new();
        while !waiting.is_empty() {
            let mut served = Vec::new();
            for claim in &waiting {
                if let ClaimOutcome::Granted(grant) = store.claim(claim, QUEUE).await.unwrap() {
                    tokens.push(grant.token.unwrap());
                    served.push(claim.owner);
                }
                self.at_most_what_fits(&claim.name, step).await;
            }
            assert!(!served.is_empty(), "{step}: no waiter is admitted");
            for claim in &waiting {
                if served.contains(&claim.owner) {
                    let released = store.release(claim).await.unwrap();
                    assert_eq!(released, Released::Released, "{step}");
                }
            }
            waiting.retain(|claim| !served.contains(&claim.owner));
        }
        for name in self.locks() {
            let next = claim_on(&name, Mode::Exclusive);
            let ClaimOutcome::Granted(grant) =
                store.claim(&next, WaitPolicy::NoWait).await.unwrap()
            else {
                panic!("{step}: {name} is not free in the end");
            };
            assert!(tokens.iter().all(|token| Some(*token) < grant.token), "{step}");
            assert_eq!(store.release(&next).await.unwrap(), Released::Released, "{step}");
        }
        assert!(self.locks().is_empty(), "{step}: {:?} left", self.locks());
        self.check(step);
    }

    /// The names of all locks in the table, also of those that only the dead have claims on.
    fn locks(&self) -> Vec<String> {
        let txn = Txn::begin(&self.survivor.inner.table).unwrap();
        let records = (1..txn.high_water()).filter(|index| txn.kind(*index).unwrap().0 == LOCK);
        let names = records.map(|index| txn.name_of(&txn.lock(index).unwrap()).unwrap());
        names.filter(|name| name != FILLER).collect()
    }

    /// The holders of a lock may hold it together, and no claim is there twice.
    async fn at_most_what_fits(&self, name: &LockName, step: usize) {
        let state = self.survivor.inspect(name).await.unwrap();
        let mut room = Occupancy::default();
        for holder in &state.holders {
            assert!(room.admits(holder.mode), "{step}: too many holders: {state:?}");
            room.enter(holder.mode);
        }
        let owners = state.holders.iter().map(|holder| &holder.owner);
        let owners = owners.chain(state.waiters.iter().map(|waiter| &waiter.owner));
        let mut seen = HashSet::new();
        assert!(owners.into_iter().all(|owner| seen.insert(owner)), "{step}: twice: {state:?}");
    }

    /// The owners of the bystanders that hold their lock now.
    async fn holding(&self) -> HashSet<String> {
        let mut holding = HashSet::new();
        for name in self.bystanders.iter().map(|claim| &claim.name).collect::<HashSet<_>>() {
            let state = self.survivor.inspect(name).await.unwrap();
            holding.extend(state.holders.into_iter().map(|holder| holder.owner));
        }
        let known: HashSet<_> = self.bystanders.iter().map(|c| c.owner.to_string()).collect();
        holding.intersection(&known).cloned().collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let file = self.survivor.inner.table.map.file();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn snapshot(&self) -> Snapshot {
        let bytes = self.bytes();
        let kept = [&self.victim, &self.survivor].map(|store| store.inner.claim_index.save());
        Snapshot { bytes, kept }
    }

    /// Puts the file back as it was, also its length.
    fn restore(&self, snapshot: &Snapshot) {
        let file = self.survivor.inner.table.map.file();
        file.set_len(snapshot.bytes.len() as u64).unwrap();
        file.write_all_at(&snapshot.bytes, 0).unwrap();
        for store in [&self.victim, &self.rescuer, &self.departed, &self.survivor] {
            store.inner.table.map.refresh().unwrap();
        }
        for (store, kept) in [&self.victim, &self.survivor].into_iter().zip(&snapshot.kept) {
            store.inner.claim_index.restore(kept);
        }
    }

    /// All words that mean anything at rest, as bytes.
    fn image(&self) -> Vec<u8> {
        let bytes = self.bytes();
        let words = |words: std::ops::Range<usize>| &bytes[words.start * 8..words.end * 8];
        let word = |at| u64::from_ne_bytes(words(at..at + 1).try_into().unwrap());
        let mut image = words(STATE_CHECK..STATE + STATE_WORDS).to_vec();
        image.extend_from_slice(words(JOURNAL_LENGTH..JOURNAL_LENGTH + 1));
        image.extend_from_slice(words(SLOTS_AT..RECORDS_AT));
        for at in (1..high(word(STATE))).map(words_for) {
            image.extend_from_slice(words(at..at + 1));
            image.extend_from_slice(match word(at) as u8 {
                LOCK | CLAIM => words(at + 1..at + FREE_LINK),
                FREE => words(at + FREE_LINK..at + RECORD_WORDS),
                _ => &[],
            });
        }
        image
    }

    /// Kill points in operations and in recoveries; fails if there are fewer than expected, so
    /// that the harness cannot shrink unnoticed.
    fn finish(self, kills: usize, recovery_kills: usize) {
        println!("killed {} times, and {} times in recovery", self.kills, self.recovery_kills);
        assert!(self.kills >= kills, "{} kill points", self.kills);
        assert!(self.recovery_kills >= recovery_kills, "{} in recovery", self.recovery_kills);
    }
}

/// The word that says which life of its slot a store is in: zero means dead.
fn identity(store: &LocalStore) -> &std::sync::atomic::AtomicU64 {
    let inner: &Inner = &store.inner;
    inner.table.map.word(inner.table.me().identity_at()).unwrap()
}

fn claim(mode: Mode) -> Claim {
    claim_on("a lock", mode)
}

fn claim_on(name: &str, mode: Mode) -> Claim {
    Claim::new(LockName::new(name).unwrap(), mode, LONG).with_label("label")
}

/// The same claim with a term that ends as soon as it begins.
fn brief(claim: &Claim) -> Claim {
    let mut claim = claim.clone();
    claim.ttl = Duration::ZERO;
    claim
}
