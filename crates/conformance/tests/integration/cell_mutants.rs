//! Mutation tests of the cases about values: each case must fail on a store that violates its
//! requirement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::mutants::fixture::MutantFixture;
use async_trait::async_trait;
use tenure_conformance::cases;
use tenure_core::store::{
    Capabilities, CellClock, CellKey, CellSpace, Cells, Claim, ClaimOutcome, Eviction, Expiry,
    LossListener, QueueTicket, Released, Renewal, Store, Stored, Swap, Swapped, Version,
    WaitPolicy,
};
use tenure_core::{
    AuditRecord, Error, ErrorKind, Finding, LockName, LockState, MemoryStore, Result,
};

/// What is wrong with a store's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    None,
    LosesRequests,
    IgnoresVersions,
    NeverExpires,
    ExpiresEarly,
    KeepLiftsExpiry,
    MissesChanges,
    ExceedsItsLimit,
    MixesSpaces,
    ClockRuns,
    RefusesWithoutReason,
}

/// The memory store with one mutation of its values.
#[derive(Debug)]
struct Mutant {
    store: MemoryStore,
    mutation: Mutation,
    /// By how many days the clock is ahead.
    days: AtomicU32,
}

impl Mutant {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn key(&self, key: &CellKey) -> CellKey {
        match self.mutation {
            Mutation::MixesSpaces => CellKey::new(CellSpace::Cell, key.name.clone()),
            _ => key.clone(),
        }
    }

    fn sound(&self) -> &dyn Cells {
        self.store.cells().unwrap()
    }
}

#[async_trait]
impl Cells for Mutant {
    fn max_value_bytes(&self) -> usize {
        if self.is(Mutation::ExceedsItsLimit) { 1_000 } else { self.sound().max_value_bytes() }
    }

    fn clock(&self) -> CellClock {
        self.sound().clock()
    }

    async fn time(&self) -> Result<Duration> {
        let days = if self.is(Mutation::ClockRuns) { 1 } else { 0 };
        let days = self.days.fetch_add(days, Ordering::Relaxed);
        Ok(self.sound().time().await? + days * Duration::from_secs(86_400))
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        self.sound().read(&self.key(key)).await
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        if self.is(Mutation::LosesRequests) && key.space == CellSpace::Revocation {
            return Ok(Swapped::Done(Version::new(1)));
        }
        let (key, mut swap) = (self.key(key), swap.clone());
        match (self.mutation, swap.expiry) {
            (Mutation::IgnoresVersions, _) => {
                // Two swaps that read at the same time both write.
                tokio::time::sleep(Duration::from_millis(3)).await;
                swap.expected = self.sound().read(&key).await?.map(|stored| stored.version);
            }
            (Mutation::NeverExpires, _) | (Mutation::KeepLiftsExpiry, Expiry::Keep) => {
                swap.expiry = Expiry::Never;
            }
            (Mutation::ExpiresEarly, Expiry::After(ttl)) => swap.expiry = Expiry::After(ttl / 3),
            _ => {}
        }
        self.sound().swap(&key, &swap).await
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        if self.is(Mutation::MissesChanges) {
            std::future::pending::<()>().await;
        }
        self.sound().changed(&self.key(key), seen).await
    }
}

#[async_trait]
impl Store for Mutant {
    fn cells(&self) -> Result<&dyn Cells> {
        if self.is(Mutation::RefusesWithoutReason) {
            return Err(Error::new(ErrorKind::Internal, "keep values", "no"));
        }
        Ok(self)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.store.claim(claim, policy).await
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.store.wait(claim, ticket).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.store.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.store.release(claim).await
    }

    fn subscribe_losses(&self, listener: LossListener) {
        self.store.subscribe_losses(listener);
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.store.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.store.list(prefix).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.store.evict(eviction).await
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        self.store.audit(name).await
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        self.store.add_audit_record(name, record).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.store.diagnose().await
    }
}

fn fixture(mutation: Mutation) -> MutantFixture {
    MutantFixture(Arc::new(Mutant { store: MemoryStore::new(), mutation, days: AtomicU32::new(0) }))
}

macro_rules! mutants {
    ($($mutation:ident fails [$($subject:ident::$case:ident),+ $(,)?];)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn every_case_fails_on_a_store_that_violates_its_requirement() {
            let cases = [$($((
                concat!(stringify!($case), " on ", stringify!($mutation)),
                tokio::spawn(async {
                    cases::$subject::$case(&fixture(Mutation::$mutation)).await;
                }),
            )),+),+];
            let deadline = crate::mutants::verdict::deadline();
            for (name, case) in cases {
                assert!(crate::mutants::verdict::fails(case, deadline).await, "{name} passes");
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn every_case_passes_on_a_store_without_a_mutation() {
            let mut cases = tokio::task::JoinSet::new();
            $($(cases.spawn(async {
                cases::$subject::$case(&fixture(Mutation::None)).await;
            });)+)*
            cases.join_all().await;
        }
    };
}

mutants! {
    IgnoresVersions fails [
        cells::a_swap_on_another_version_changes_nothing,
        cells::a_cell_is_created_by_one,
        cells::updates_are_counted_exactly_once_under_load,
        counters::additions_are_counted_exactly_once_under_load,
        latch::a_latch_opens_when_the_last_party_has_counted_down,
        barrier::parties_pass_one_generation_after_the_other,
    ];
    NeverExpires fails [
        cells::a_cell_expires_and_not_before_its_time,
        cells::an_expiry_of_zero_or_of_centuries_is_accepted,
        cells::versions_never_repeat,
        counters::a_counter_expires_after_its_first_change,
        latch::a_latch_that_expires_ends_the_wait,
        once::a_run_that_was_dropped_is_done_by_the_next,
    ];
    ExpiresEarly fails [
        cells::a_cell_expires_and_not_before_its_time,
        counters::a_counter_expires_after_its_first_change,
    ];
    KeepLiftsExpiry fails [
        cells::a_swap_keeps_renews_or_lifts_the_expiry,
        counters::a_counter_expires_after_its_first_change,
    ];
    LosesRequests fails [
        revocation::a_revoked_holder_hears_the_request_and_keeps_the_lock_until_it_releases,
        revocation::a_request_does_not_reach_a_later_holder,
        revocation::all_holders_of_a_shared_lock_are_asked,
    ];
    MissesChanges fails [cells::a_change_ends_a_wait];
    ExceedsItsLimit fails [cells::a_value_over_the_limit_is_refused];
    MixesSpaces fails [
        cells::odd_names_are_cells_of_their_own,
        latch::counting_below_zero_is_refused_and_nothing_is_lost,
    ];
    ClockRuns fails [
        limits::no_more_than_the_limit_is_let_through_under_load,
        limits::a_decision_contains_what_is_left_and_when_to_try_again,
    ];
    RefusesWithoutReason fails [cells::a_cell_has_the_value_that_was_swapped_in];
}
