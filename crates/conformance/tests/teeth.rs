//! The judge is judged: each case named here fails on a store that is broken in the way the case
//! is there to find. A case that passes on everything proves nothing.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

#[path = "teeth/broken.rs"]
mod broken;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use broken::{Broken, Fault};
use tenure_conformance::{Fixture, cases};
use tenure_core::store::Store;

struct Fake(Arc<Broken>);

impl Fake {
    fn with(fault: Fault) -> Self {
        Self(Arc::new(Broken::new(fault)))
    }
}

#[async_trait]
impl Fixture for Fake {
    async fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn faithful(&self) -> bool {
        true
    }
}

/// One test for one or more faults: the cases named must all fail on them.
macro_rules! teeth {
    ($($test:ident: $($fault:ident fails [$($subject:ident::$case:ident),+ $(,)?]),+;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let cases = [$($((
                    stringify!($case),
                    tokio::spawn(async {
                        cases::$subject::$case(&Fake::with(Fault::$fault)).await;
                    }),
                )),+),+];
                for (name, case) in cases {
                    let failed = case.await.is_err_and(|error| error.is_panic());
                    assert!(failed, "{name} passes on a broken store");
                }
            }
        )*

        /// The same cases pass on the same store without its fault.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn without_a_fault_every_case_named_here_passes() {
            let mut cases = tokio::task::JoinSet::new();
            $($($(cases.spawn(async {
                cases::$subject::$case(&Fake::with(Fault::None)).await;
            });)+)+)*
            cases.join_all().await;
        }
    };
}

teeth! {
    // Together, because each case waits for as long as it can before it fails.
    stores_that_leave_things_undone: NeverWakes fails [
        handover::a_waiter_hears_of_its_grant,
        handover::news_that_came_between_two_waits_is_found_by_the_second,
    ], NeverExpires fails [
        lease::a_hold_without_renewal_expires,
        line::a_grant_that_nobody_picks_up_expires,
    ], WaitersStay fails [
        line::a_waiter_that_never_asks_again_is_skipped,
    ], TellsNobody fails [
        eviction::an_evicted_guard_is_told_at_once_as_promised,
    ], EvictsNobody fails [
        eviction::an_evicted_guard_hears_of_its_loss,
        eviction::an_evicted_waiter_loses_its_place,
    ], ForgetsAges fails [
        inspection::renewing_a_hold_does_not_make_it_younger,
    ], ShowsTheGone fails [
        lease::an_expired_hold_is_not_shown,
        inspection::a_free_lock_looks_free,
        inspection::a_list_has_live_locks_with_the_prefix_in_order,
    ], ForgetsReleases fails [
        release::a_dropped_guard_is_released_in_the_background,
        loss::max_hold_ends_a_lease_that_is_renewed,
    ];
    a_store_that_always_grants: GrantsAlways fails [
        exclusion::one_holds_at_a_time_under_parallel_load,
        waiting::trying_a_held_lock_is_busy_and_leaves_nothing,
        lease::a_guard_holds_beyond_several_terms,
        shared::readers_and_writers_never_meet_under_load,
        permits::permits_are_never_overdrawn_under_load,
    ];
    a_store_whose_tokens_repeat: TokensRepeat fails [
        promises::tokens_increase_whichever_way_a_lock_changes_hands,
        handover::a_release_makes_the_first_in_line_the_holder,
        lease::an_expired_claim_that_asks_again_is_a_new_hold,
        exclusion::one_holds_at_a_time_under_parallel_load,
        scale::a_crowd_of_one_client_is_served_to_the_last,
    ];
    a_store_with_a_new_token_for_every_call: TokenPerCall fails [
        release::claiming_again_is_the_same_hold,
        handover::a_release_makes_the_first_in_line_the_holder,
    ];
    a_store_that_gives_back_what_is_in_use: TidiesTooMuch fails [
        release::closing_a_client_disturbs_nobody,
    ];
    a_store_that_does_not_compare_the_owner: ReleasesForAnybody fails [
        release::a_stranger_cannot_release,
        release::a_repeated_release_changes_nothing,
        loss::a_holder_that_is_cut_off_knows_before_another_holds,
    ];
    a_store_that_serves_the_last_first: LastComeFirstServed fails [
        line::waiters_are_served_in_the_order_they_came,
        handover::a_release_makes_the_first_in_line_the_holder,
    ];
    a_store_that_lets_others_overtake: LetsOvertake fails [
        line::nobody_overtakes_those_who_wait,
        shared::readers_wait_behind_a_waiting_writer,
        permits::a_large_take_at_the_head_is_not_starved,
    ];
    a_store_that_wakes_but_does_not_hand_over: WakesOnly fails [
        handover::a_release_makes_the_first_in_line_the_holder,
        line::nobody_overtakes_those_who_wait,
        shared::readers_in_line_go_in_together,
    ];
    a_store_whose_holds_expire_early: ExpiresEarly fails [
        lease::a_hold_without_renewal_expires,
        lease::the_term_counts_from_the_last_renewal,
        loss::a_holder_that_is_cut_off_knows_before_another_holds,
        promises::a_hold_is_shown_with_the_term_it_asked_for,
    ];
    a_store_that_renews_in_words_only: RenewsInWords fails [
        lease::a_guard_holds_beyond_several_terms,
        lease::a_hold_without_renewal_expires,
        eviction::an_eviction_hits_the_owner_seen_only,
    ];
    a_store_without_fencing_that_gives_tokens: HidesFencing fails [
        promises::tokens_are_given_exactly_as_promised,
        promises::tokens_increase_whichever_way_a_lock_changes_hands,
    ];
    a_store_that_grants_modes_it_does_not_promise: HidesModes fails [
        promises::modes_are_supported_exactly_as_promised,
        shared::readers_hold_together_and_a_writer_alone,
        permits::permits_are_given_out_as_long_as_there_are_some,
    ];
    a_store_that_promises_processes_it_cannot_serve: PromisesProcesses fails [
        processes::processes_exclude_each_other,
        processes::a_killed_holder_lets_the_next_in,
    ];
    a_store_that_keeps_waiters_who_gave_up: KeepsWaiters fails [
        release::releasing_a_waiting_claim_leaves_the_line,
        waiting::a_wait_that_times_out_leaves_the_line,
        cancel::an_acquire_dropped_on_a_held_lock_leaves_no_trace,
    ];
    a_store_that_forgets_to_release: ForgetsReleases fails [
        cancel::an_acquire_dropped_on_a_free_lock_leaves_no_trace,
        cancel::an_acquire_dropped_during_the_release_leaves_no_trace,
        cancel::an_acquire_dropped_as_its_grant_arrives_leaves_no_trace,
        cancel::a_dropped_try_or_bounded_wait_leaves_no_trace,
        cancel::a_release_dropped_halfway_still_happens,
        waiting::a_time_out_at_the_moment_of_the_grant_leaves_nothing,
        release::closing_a_client_waits_for_its_releases,
        scale::thousands_of_locks_are_held_at_once,
        inspection::a_free_lock_looks_free,
    ];
    a_store_that_queues_the_impatient: QueuesTheImpatient fails [
        waiting::trying_a_held_lock_is_busy_and_leaves_nothing,
    ];
    a_store_whose_waiters_lose_their_place: LosesPlaces fails [
        line::asking_again_keeps_the_place_in_line,
    ];
    a_store_that_evicts_whoever_holds: EvictsAnybody fails [
        eviction::an_eviction_hits_the_owner_seen_only,
    ];
    a_store_that_takes_names_for_paths: MixesNames fails [
        names::odd_names_are_locks_of_their_own,
    ];
    a_store_whose_list_is_a_mess: ListsAnyhow fails [
        inspection::a_list_has_live_locks_with_the_prefix_in_order,
    ];
    a_store_that_shows_the_wrong_holder: ShowsAnybody fails [
        inspection::a_snapshot_shows_the_holder,
        inspection::a_snapshot_shows_the_waiters_in_order,
    ];
    a_store_whose_faults_never_end: AlwaysFails fails [
        inspection::a_free_lock_looks_free,
    ];
    a_store_that_forgets_who_waits: ForgetsWhoWaits fails [
        cancel::a_dropped_wait_keeps_the_place_in_line,
    ];
    a_store_that_grants_to_all_who_ask_again: GrantsWhoWaits fails [
        handover::a_release_wakes_one_waiter_only,
        line::asking_again_keeps_the_place_in_line,
        scale::hundreds_of_waiters_are_served_in_order,
    ];
    a_store_that_releases_what_has_expired: ReleasesTheExpired fails [
        lease::an_expired_hold_is_not_shown,
        lease::a_hold_without_renewal_expires,
        release::a_repeated_release_changes_nothing,
    ];
    a_store_that_compares_more_than_the_owner: ReleasesByMode fails [
        release::a_release_goes_by_name_and_owner_alone,
    ];
    a_store_that_admits_unsound_claims: AdmitsTheUnsound fails [
        permits::unsound_numbers_of_permits_are_refused,
    ];
    a_store_that_finds_fault_and_no_remedy: FindsFaultInSilence fails [
        promises::a_store_examines_itself,
    ];
}
