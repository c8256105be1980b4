//! Values beside locks: read, compare and swap, wait for a change.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{
    CellKey, CellSpace, Cells, Expiry, Store, Stored, Swap, Swapped, Version, now,
};
use tenure_core::{ErrorKind, LockName, Mode, Result};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::fixture::{LONG, claim, client, name};

/// A connection whose calls on cells are repeated after transient faults, and panic on others.
pub(crate) struct RawCells {
    store: Arc<dyn Store>,
    injects_faults: bool,
}

/// How often a call is repeated.
const TRIES: u32 = 100;

/// A connection to the store's cells. `None`: it keeps none, and says why.
pub(crate) async fn raw_cells(fixture: &dyn Fixture) -> Option<RawCells> {
    let store = fixture.store().await;
    if let Err(refused) = store.cells() {
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let client = client(fixture).await;
        assert_eq!(client.cell::<u64>("a").unwrap_err().kind(), ErrorKind::Unsupported);
        return None;
    }
    Some(RawCells { store, injects_faults: fixture.injects_faults() })
}

pub(crate) fn key(tag: &str) -> CellKey {
    CellKey::new(CellSpace::Cell, name(tag))
}

impl RawCells {
    pub(crate) fn cells(&self) -> &dyn Cells {
        self.store.cells().unwrap()
    }

    pub(crate) async fn read(&self, key: &CellKey) -> Option<Stored> {
        self.persist(|| self.cells().read(key)).await.unwrap()
    }

    pub(crate) async fn value(&self, key: &CellKey) -> Option<Vec<u8>> {
        self.read(key).await.map(|stored| stored.value)
    }

    /// Swaps. The values of one case are all different: so a value that is there although the reply was
    /// lost tells that it was swapped in.
    async fn swap(
        &self,
        key: &CellKey,
        expected: Option<Version>,
        value: &[u8],
        expiry: Expiry,
    ) -> Swapped {
        let swap = Swap::new(expected, value.to_vec(), expiry);
        match self.persist(|| self.cells().swap(key, &swap)).await.unwrap() {
            Swapped::Conflict(Some(found)) if self.injects_faults && found.value == value => {
                Swapped::Done(found.version)
            }
            swapped => swapped,
        }
    }

    /// A swap that must take place.
    async fn put(
        &self,
        key: &CellKey,
        expected: Option<Version>,
        value: &[u8],
        expiry: Expiry,
    ) -> Version {
        match self.swap(key, expected, value, expiry).await {
            Swapped::Done(version) => version,
            conflict => panic!("{key:?} should have the version {expected:?}: {conflict:?}"),
        }
    }

    /// Swaps in a value that must be taken, for good.
    pub(crate) async fn write(&self, key: &CellKey, expected: Option<Version>, value: &[u8]) {
        self.put(key, expected, value, Expiry::Never).await;
    }

    async fn persist<T, C: Future<Output = Result<T>>>(&self, call: impl Fn() -> C) -> Result<T> {
        for _ in 1..TRIES {
            match call().await {
                Err(fault) if fault.is_transient() => {
                    assert!(self.injects_faults, "a store without injected faults failed: {fault}");
                }
                answer => return answer,
            }
        }
        call().await
    }
}

/// A value that was swapped in is read back byte for byte, on other connections too; each swap yields a
/// version that a read shows.
pub async fn a_cell_has_the_value_that_was_swapped_in(fixture: &dyn Fixture) {
    let Some(ours) = raw_cells(fixture).await else { return };
    let Some(theirs) = raw_cells(fixture).await else { return };
    let key = key("cell");
    assert_eq!(ours.read(&key).await, None);
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut version = None;
    for value in [&b"first"[..], b"", &every_byte, b"\r\n\0", &[0xff; 5_000]] {
        version = Some(ours.put(&key, version, value, Expiry::Never).await);
        let read = theirs.read(&key).await.unwrap();
        assert_eq!((read.value.as_slice(), Some(read.version)), (value, version));
    }
}

/// A swap on a version that the cell has no more, or on an absent cell, changes nothing and shows what
/// is there.
pub async fn a_swap_on_another_version_changes_nothing(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let key = key("cell-conflict");
    let made_up = Some(Version::new(7));
    assert_eq!(raw.swap(&key, made_up, b"x", Expiry::Never).await, Swapped::Conflict(None));
    assert_eq!(raw.read(&key).await, None);
    let first = raw.put(&key, None, b"first", Expiry::Never).await;
    let second = raw.put(&key, Some(first), b"second", Expiry::Never).await;
    let there = Some(Stored::new(b"second".to_vec(), second));
    for expected in [None, Some(first), Some(Version::new(second.get().wrapping_add(1)))] {
        let refused = raw.swap(&key, expected, b"third", Expiry::Never).await;
        assert_eq!(refused, Swapped::Conflict(there.clone()), "{expected:?}");
        assert_eq!(raw.read(&key).await, there);
    }
}

/// Of many clients that create a cell at once, one succeeds.
pub async fn a_cell_is_created_by_one(fixture: &dyn Fixture) {
    let key = key("cell-created");
    let mut creators = tokio::task::JoinSet::new();
    for creator in 0..8 {
        let Some(raw) = raw_cells(fixture).await else { return };
        let key = key.clone();
        creators.spawn(async move {
            let value = format!("creator {creator}");
            let swapped = raw.swap(&key, None, value.as_bytes(), Expiry::Never).await;
            (value, swapped)
        });
    }
    let outcomes = creators.join_all().await;
    let won = |(value, swapped): &(String, Swapped)| {
        matches!(swapped, Swapped::Done(_)).then(|| value.clone().into_bytes())
    };
    let winners: Vec<_> = outcomes.iter().filter_map(won).collect();
    let Some(raw) = raw_cells(fixture).await else { return };
    assert_eq!(winners, [raw.value(&key).await.unwrap()]);
}

/// No version of a cell is used twice, also after the cell has expired.
pub async fn versions_never_repeat(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let key = key("cell-versions");
    let mut versions = HashSet::new();
    for round in 0..2 {
        let mut version = None;
        for step in 0..20 {
            let value = format!("{round} {step}");
            let last = step == 19 && round == 0;
            let expiry = if last { Expiry::After(SHORT) } else { Expiry::Never };
            let next = raw.put(&key, version, value.as_bytes(), expiry).await;
            assert!(versions.insert(next), "{next:?} came twice");
            version = Some(next);
        }
        if round == 0 {
            let gone = || async { raw.read(&key).await.is_none() };
            assert!(eventually(GENEROUS, gone).await, "the cell never expired");
            let old = raw.swap(&key, version, b"late", Expiry::Never).await;
            assert_eq!(old, Swapped::Conflict(None), "an expired cell has no version");
        }
    }
}

/// The shortest expiry that engines do well: one counts whole seconds.
const SHORT: Duration = Duration::from_secs(1);

/// A cell expires, and not before its time. The next swap creates it anew.
pub async fn a_cell_expires_and_not_before_its_time(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let (expiring, lasting) = (key("cell-expiry"), key("cell-lasting"));
    raw.put(&lasting, None, b"stays", Expiry::After(LONG)).await;
    let sent = now();
    raw.put(&expiring, None, b"goes", Expiry::After(SHORT)).await;
    let gone = || async { raw.read(&expiring).await.is_none() };
    assert!(eventually(GENEROUS, gone).await, "the cell never expired");
    assert!(now().since(sent) >= SHORT, "it expired after {:?}", now().since(sent));
    assert_eq!(raw.value(&lasting).await.unwrap(), b"stays");
    raw.put(&expiring, None, b"anew", Expiry::Never).await;
    assert_eq!(raw.value(&expiring).await.unwrap(), b"anew");
}

/// An expiry that is too short or too long is replaced by the shortest or longest that the store has.
pub async fn an_expiry_of_zero_or_of_centuries_is_accepted(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let (short, long) = (key("cell-no-time"), key("cell-centuries"));
    raw.put(&long, None, b"stays", Expiry::After(Duration::MAX)).await;
    raw.put(&short, None, b"goes", Expiry::After(Duration::ZERO)).await;
    let gone = || async { raw.read(&short).await.is_none() };
    assert!(eventually(GENEROUS, gone).await, "the cell never expired");
    assert_eq!(raw.value(&long).await.unwrap(), b"stays");
}

/// A swap that keeps the expiry does not prolong it, one with an expiry begins it anew, and one without
/// lifts it.
pub async fn a_swap_keeps_renews_or_lifts_the_expiry(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let (kept, renewed, lifted) = (key("cell-kept"), key("cell-renewed"), key("cell-lifted"));
    let mut versions = Vec::new();
    for key in [&kept, &renewed, &lifted] {
        versions.push(raw.put(key, None, b"first", Expiry::After(SHORT)).await);
    }
    // The last one expires after all that it is compared with.
    raw.put(&lifted, Some(versions[2]), b"second", Expiry::Never).await;
    raw.put(&renewed, Some(versions[1]), b"second", Expiry::After(LONG)).await;
    let mut version = versions[0];
    for step in 0.. {
        let value = format!("kept {step}");
        match raw.swap(&kept, Some(version), value.as_bytes(), Expiry::Keep).await {
            Swapped::Done(next) => version = next,
            Swapped::Conflict(None) => break,
            other => panic!("{other:?}"),
        }
        assert!(step < 1_000, "swaps that keep the expiry prolong it");
        tokio::time::sleep(SHORT / 20).await;
    }
    for key in [&renewed, &lifted] {
        assert_eq!(raw.value(key).await.unwrap(), b"second", "{key:?}");
    }
}

/// A change ends a wait, whether it comes before or after the wait begins.
pub async fn a_change_ends_a_wait(fixture: &dyn Fixture) {
    let Some(ours) = raw_cells(fixture).await else { return };
    let Some(theirs) = raw_cells(fixture).await else { return };
    // Where messages are lost, waiters poll.
    if fixture.injects_faults() {
        return;
    }
    let key = key("cell-wait");
    let heard = async |seen| {
        let wait = tokio::time::timeout(GENEROUS, ours.cells().changed(&key, seen));
        wait.await.expect("a change is heard").unwrap();
    };
    // Before the wait.
    let first = theirs.put(&key, None, b"first", Expiry::Never).await;
    heard(None).await;
    // During it.
    for step in 0..3 {
        let seen = ours.read(&key).await.map(|stored| stored.version);
        let value = format!("step {step}");
        let change = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            theirs.put(&key, seen, value.as_bytes(), Expiry::Never).await
        };
        let (version, ()) = tokio::join!(change, heard(seen));
        assert_eq!(ours.read(&key).await.map(|stored| stored.version), Some(version));
    }
    heard(Some(first)).await;
}

/// A value of the longest size is kept; one byte more is refused, and nothing is changed.
pub async fn a_value_over_the_limit_is_refused(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let key = key("cell-limit");
    let limit = raw.cells().max_value_bytes();
    let longest = vec![7; limit];
    let version = raw.put(&key, None, &longest, Expiry::Never).await;
    let swap = Swap::new(Some(version), vec![8; limit + 1], Expiry::Never);
    let refused = raw.persist(|| raw.cells().swap(&key, &swap)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(raw.read(&key).await, Some(Stored::new(longest, version)));
    // The same for users.
    let client = client(fixture).await;
    let cell = client.cell::<Vec<u8>>(key.name.as_str()).unwrap();
    let other = client.cell::<Vec<u8>>(name("cell-limit").as_str()).unwrap();
    other.set(&b"small".to_vec()).await.unwrap();
    let refused = other.set(&vec![8; limit]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(other.get().await.unwrap().unwrap(), b"small");
    // Bytes that tenure did not write are not taken for a value.
    assert_eq!(cell.get().await.unwrap_err().kind(), ErrorKind::Damaged);
}

/// Odd names are cells of their own; no cell is a lock, and no lock is a cell.
pub async fn odd_names_are_cells_of_their_own(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let tag = name("odd");
    let odd = ["", "/", "/..", "/.", "%2F", "%", " ", "é", "锁", "🔒", "*", "a:b", ":cell", "?x#y"];
    let mut names: Vec<LockName> =
        odd.iter().map(|odd| format!("{tag}{odd}").parse().unwrap()).collect();
    let used = tag.as_str().len();
    let (long, twin) = ("x".repeat(200 - used), format!("{}y", "x".repeat(199 - used)));
    names.extend([long, twin].map(|rest| format!("{tag}{rest}").parse().unwrap()));
    let in_each_space = |name: &LockName| {
        CellSpace::ALL.iter().map(|space| CellKey::new(*space, name.clone())).collect()
    };
    let keys: Vec<Vec<CellKey>> = names.iter().map(in_each_space).collect();
    let keys = keys.concat();
    for key in &keys {
        raw.put(key, None, format!("{key:?}").as_bytes(), Expiry::After(LONG)).await;
    }
    for key in &keys {
        assert_eq!(raw.value(key).await.unwrap(), format!("{key:?}").as_bytes());
    }
    let locks = crate::fixture::raw(fixture).await;
    assert_eq!(locks.list(tag.as_str()).await, [], "a cell is no lock");
    let hold = claim(&names[0], Mode::Exclusive);
    locks.hold(&hold).await;
    assert_eq!(locks.list(tag.as_str()).await, [names[0].clone()]);
    locks.release(&hold).await;
    for key in &keys {
        assert_eq!(raw.value(key).await.unwrap(), format!("{key:?}").as_bytes());
    }
}

/// Updates of many clients at once each count exactly once, also where replies are lost.
pub async fn updates_are_counted_exactly_once_under_load(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    const CLIENTS: u64 = 4;
    const UPDATES: u64 = 25;
    let name = name("cell-load");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let client = client(fixture).await;
        let cell = client.cell::<u64>(name.as_str()).unwrap();
        tasks.spawn(async move {
            let mut seen = HashSet::new();
            for _ in 0..UPDATES {
                let updated = cell.update(|count| count.unwrap_or(0) + 1).await.unwrap();
                seen.insert(updated.value);
            }
            drop(client);
            seen
        });
    }
    let seen = tasks.join_all().await;
    let all: HashSet<u64> = seen.iter().flatten().copied().collect();
    assert_eq!(all.len() as u64, CLIENTS * UPDATES, "two updates wrote the same value");
    let client = client(fixture).await;
    let count = client.cell::<u64>(name.as_str()).unwrap().get().await.unwrap();
    assert_eq!(count, Some(CLIENTS * UPDATES));
}

/// A change that is refused on an outdated view of the cell is tried again on the present value.
pub async fn an_update_is_refused_on_the_present_value_only(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    let name = name("cell-refused");
    let (ours, theirs) = (client(fixture).await, client(fixture).await);
    let ours = ours.cell::<u64>(name.as_str()).unwrap();
    let theirs = theirs.cell::<u64>(name.as_str()).unwrap();
    ours.set(&0).await.unwrap();
    let take = |stock: Option<u64>| {
        let sold_out = || tenure_core::Error::new(ErrorKind::Full, "buy", "sold out");
        stock.unwrap_or(0).checked_sub(1).ok_or_else(sold_out)
    };
    assert_eq!(ours.try_update(take).await.unwrap_err().kind(), ErrorKind::Full);
    theirs.set(&5).await.unwrap();
    assert_eq!(ours.try_update(take).await.unwrap().value, 4);
    theirs.remove().await.unwrap();
    assert_eq!(ours.get().await.unwrap(), None);
    assert_eq!(ours.update(|value| value.unwrap_or(40) + 2).await.unwrap().value, 42);
    let met = theirs.wait_until(|value| value == Some(&42)).await.unwrap();
    assert_eq!(met, Some(42));
}
