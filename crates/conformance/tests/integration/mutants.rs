//! Mutation tests of the suite itself: each case must fail on a store that violates its requirement.
//! A case that passes on every store proves nothing.

pub(crate) mod fixture;
mod mutant;
pub(crate) mod verdict;

use std::sync::Arc;

use fixture::MutantFixture;
use mutant::{Mutant, Mutation};
use tenure_conformance::cases;

fn fixture(mutation: Mutation) -> MutantFixture {
    MutantFixture(Arc::new(Mutant::new(mutation)))
}

/// Generates one test per entry: all listed cases must fail on a store with the mutation.
macro_rules! mutants {
    ($($test:ident: $($mutation:ident fails [$($subject:ident::$case:ident),+ $(,)?]),+;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let cases = [$($((
                    stringify!($case),
                    tokio::spawn(async {
                        cases::$subject::$case(&fixture(Mutation::$mutation)).await;
                    }),
                )),+),+];
                let deadline = verdict::deadline();
                for (name, case) in cases {
                    assert!(verdict::fails(case, deadline).await, "{name} passes on a faulty store");
                }
            }
        )*

        /// The same cases pass on the same store without a mutation.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn every_case_passes_on_a_store_without_a_mutation() {
            let mut cases = tokio::task::JoinSet::new();
            $($($(cases.spawn(async {
                cases::$subject::$case(&fixture(Mutation::None)).await;
            });)+)+)*
            cases.join_all().await;
        }
    };
}

mutants! {
    // In one test, so that they run at the same time: each of these cases fails by a long timeout.
    stores_that_omit_an_effect_are_caught: NeverWakes fails [
        handover::a_waiter_is_notified_of_its_grant,
        handover::a_grant_between_two_waits_ends_the_second_wait,
    ], NeverExpires fails [
        lease::a_hold_without_renewal_expires_after_its_ttl,
        queue::a_grant_to_a_dead_waiter_expires_after_its_ttl,
        downgrade::a_downgraded_hold_is_renewed_and_ends_as_any_other,
    ], DeadWaitersStay fails [
        queue::a_waiter_that_stops_claiming_is_skipped,
    ], DoesNotReportLosses fails [
        eviction::an_evicted_guard_is_notified_at_once_if_the_store_reports_losses,
    ], IgnoresEvictions fails [
        eviction::an_evicted_guard_is_lost_at_its_next_renewal,
        eviction::an_evicted_waiter_leaves_the_queue,
        reentrant::an_evicted_hold_is_lost_to_all_its_guards,
        multi::losing_one_of_several_locks_loses_the_hold,
        election::a_late_write_of_an_old_leader_is_refused,
        barrier::a_party_that_lost_its_lease_gets_an_error_and_may_wait_again,
    ], AgeIsAlwaysZero fails [
        inspection::renewing_a_hold_does_not_reset_its_age,
    ], ShowsReleasedHolds fails [
        lease::inspect_and_list_omit_expired_holds,
        inspection::a_free_lock_has_no_holders_and_no_waiters,
        inspection::list_returns_live_locks_with_the_prefix_sorted_by_name,
    ], IgnoresReleases fails [
        release::a_dropped_guard_is_released_in_the_background,
        loss::max_hold_ends_a_renewed_lease,
        reentrant::a_holder_enters_again_and_the_last_guard_releases,
        multi::several_locks_are_held_together_or_not_at_all,
        multi::dropping_a_wait_for_several_locks_leaves_all_free,
        multi::dropping_an_attempt_or_a_release_of_several_locks_leaves_all_free,
        once::a_run_that_was_dropped_is_done_by_the_next,
        election::observers_see_leaders_their_values_and_that_there_is_none,
        barrier::a_party_that_leaves_breaks_the_barrier_for_the_others,
        latch::a_party_that_dies_or_leaves_breaks_the_latch,
    ];
    a_store_that_always_grants_is_caught: AlwaysGrants fails [
        exclusion::at_most_one_task_holds_a_mutex_under_load,
        waiting::try_acquire_on_a_held_lock_is_busy_and_leaves_no_waiter,
        lease::a_guard_is_renewed_beyond_several_ttls,
        shared::readers_and_writers_exclude_each_other_under_load,
        permits::no_more_permits_are_held_than_exist_under_load,
        reentrant::a_holder_enters_again_and_the_last_guard_releases,
        multi::several_locks_are_held_together_or_not_at_all,
        multi::locks_named_in_any_order_do_not_deadlock_under_load,
        election::candidates_lead_one_after_the_other,
    ];
    a_store_that_repeats_tokens_is_caught: RepeatsTokens fails [
        capabilities::tokens_increase_however_the_lock_changes_hands,
        handover::a_release_makes_the_first_waiter_the_holder,
        lease::claiming_again_after_expiry_is_a_new_hold_with_a_higher_token,
        exclusion::at_most_one_task_holds_a_mutex_under_load,
        scale::concurrent_tasks_of_one_client_are_all_granted,
        election::candidates_lead_one_after_the_other,
    ];
    a_store_that_issues_a_token_per_call_is_caught: NewTokenPerCall fails [
        release::claiming_again_returns_the_same_hold,
        handover::a_release_makes_the_first_waiter_the_holder,
    ];
    a_store_that_releases_held_locks_on_close_is_caught: CloseReleasesHolds fails [
        release::closing_a_client_keeps_its_holds_and_waiters,
    ];
    a_store_that_releases_for_any_owner_is_caught: ReleaseIgnoresOwner fails [
        release::only_the_owner_can_release,
        release::a_repeated_release_is_a_no_op,
        loss::a_partitioned_holder_is_invalid_before_the_next_grant,
    ];
    a_store_that_serves_the_last_waiter_first_is_caught: LastInFirstOut fails [
        queue::waiters_are_granted_in_arrival_order,
        handover::a_release_makes_the_first_waiter_the_holder,
    ];
    a_store_that_lets_newcomers_overtake_is_caught: NewcomersOvertake fails [
        queue::a_newcomer_does_not_overtake_waiters,
        shared::readers_wait_behind_a_waiting_writer,
        permits::a_claim_for_many_permits_is_not_starved,
    ];
    a_store_that_wakes_waiters_without_a_grant_is_caught: WakesWithoutGranting fails [
        handover::a_release_makes_the_first_waiter_the_holder,
        queue::a_newcomer_does_not_overtake_waiters,
        shared::queued_readers_are_granted_together,
    ];
    a_store_whose_holds_expire_early_is_caught: ExpiresEarly fails [
        lease::a_hold_without_renewal_expires_after_its_ttl,
        lease::a_hold_lasts_one_ttl_from_its_last_renewal,
        loss::a_partitioned_holder_is_invalid_before_the_next_grant,
        capabilities::expires_in_follows_the_requested_ttl,
    ];
    a_store_whose_renewals_have_no_effect_is_caught: RenewalHasNoEffect fails [
        lease::a_guard_is_renewed_beyond_several_ttls,
        lease::a_hold_without_renewal_expires_after_its_ttl,
        release::a_lock_stays_taken_for_at_least_its_time,
        reentrant::a_hold_is_renewed_as_long_as_a_guard_of_it_exists,
        eviction::an_eviction_removes_only_the_named_owner,
    ];
    a_store_that_issues_undeclared_tokens_is_caught: UndeclaredTokens fails [
        capabilities::tokens_are_issued_exactly_as_declared,
        capabilities::tokens_increase_however_the_lock_changes_hands,
    ];
    a_store_that_grants_undeclared_modes_is_caught: UndeclaredModes fails [
        capabilities::modes_are_supported_exactly_as_declared,
        shared::readers_share_the_lock_and_a_writer_holds_it_alone,
        permits::permits_are_granted_while_enough_are_free,
    ];
    a_store_that_wrongly_declares_cross_process_is_caught: DeclaresCrossProcess fails [
        processes::at_most_one_process_holds_a_mutex,
        processes::the_next_waiter_is_granted_after_the_holder_process_is_killed,
    ];
    a_store_that_keeps_released_waiters_queued_is_caught: ReleaseKeepsWaiters fails [
        release::releasing_a_waiting_claim_leaves_the_queue,
        waiting::a_wait_that_times_out_leaves_the_queue,
        cancel::dropping_acquire_on_a_held_lock_leaves_no_waiter,
    ];
    a_store_that_ignores_releases_is_caught: IgnoresReleases fails [
        cancel::dropping_acquire_on_a_free_lock_leaves_the_lock_free,
        cancel::dropping_acquire_during_a_release_leaves_the_lock_free,
        cancel::dropping_acquire_as_its_grant_arrives_leaves_the_lock_free,
        cancel::dropping_try_acquire_or_acquire_within_leaves_the_lock_free,
        cancel::a_dropped_release_completes_in_the_background,
        waiting::a_timeout_during_the_grant_leaves_the_lock_free,
        release::closing_a_client_waits_for_its_releases,
        scale::one_client_holds_thousands_of_locks,
        inspection::a_free_lock_has_no_holders_and_no_waiters,
    ];
    a_store_that_queues_claims_without_waiting_is_caught: QueuesNoWaitClaims fails [
        waiting::try_acquire_on_a_held_lock_is_busy_and_leaves_no_waiter,
    ];
    a_store_whose_waiters_lose_their_position_is_caught: ClaimingAgainLosesPosition fails [
        queue::claiming_again_keeps_the_queue_position,
    ];
    a_store_that_evicts_any_owner_is_caught: EvictionIgnoresOwner fails [
        eviction::an_eviction_removes_only_the_named_owner,
    ];
    a_store_that_normalizes_names_is_caught: TrimsNames fails [
        names::unusual_names_are_distinct_locks,
    ];
    a_store_with_an_unsorted_list_is_caught: UnsortedList fails [
        inspection::list_returns_live_locks_with_the_prefix_sorted_by_name,
    ];
    a_store_that_shows_a_wrong_label_is_caught: ShowsWrongLabel fails [
        inspection::inspect_shows_every_attribute_of_the_holder,
        inspection::inspect_shows_the_waiters_in_queue_order,
    ];
    a_store_that_hides_holders_is_caught: HidesHolders fails [
        inspection::holders_are_those_that_inspect_shows,
    ];
    a_store_whose_inspect_always_fails_is_caught: InspectAlwaysFails fails [
        inspection::a_free_lock_has_no_holders_and_no_waiters,
    ];
    a_store_whose_wait_leaves_the_queue_is_caught: WaitLeavesQueue fails [
        cancel::dropping_a_wait_call_keeps_the_queue_position,
    ];
    a_store_that_grants_repeated_claims_is_caught: GrantsRepeatedClaims fails [
        handover::a_release_wakes_exactly_one_waiter,
        queue::claiming_again_keeps_the_queue_position,
        scale::hundreds_of_waiters_are_granted_in_arrival_order,
    ];
    a_store_that_releases_expired_holds_is_caught: ReleasesExpiredHolds fails [
        lease::inspect_and_list_omit_expired_holds,
        lease::a_hold_without_renewal_expires_after_its_ttl,
        release::a_repeated_release_is_a_no_op,
    ];
    a_store_that_compares_the_mode_on_release_is_caught: ReleaseComparesMode fails [
        release::a_release_matches_name_and_owner_only,
    ];
    a_store_that_grants_invalid_permit_counts_is_caught: GrantsInvalidPermits fails [
        permits::invalid_permit_counts_are_refused,
    ];
    a_store_that_releases_to_downgrade_is_caught: DowngradeReleases fails [
        downgrade::the_readers_behind_a_downgraded_writer_join_it,
        downgrade::no_writer_gets_in_between_under_load,
    ];
    a_store_whose_downgrade_has_no_effect_is_caught: DowngradeHasNoEffect fails [
        downgrade::downgrades_are_supported_exactly_as_declared,
        downgrade::the_readers_behind_a_downgraded_writer_join_it,
        downgrade::waiting_readers_are_notified_of_a_downgrade,
    ];
    a_store_that_downgrades_any_claim_is_caught: DowngradesAnyClaim fails [
        downgrade::only_a_hold_is_downgraded,
    ];
    a_store_that_downgrades_undeclared_is_caught: UndeclaredDowngrades fails [
        downgrade::downgrades_are_supported_exactly_as_declared,
    ];
    a_store_that_loses_downgraded_holds_is_caught: IgnoresReleases fails [
        downgrade::dropping_a_downgrade_leaves_the_lock_free,
    ];
    a_store_that_forgets_evictions_is_caught: ForgetsEvictions fails [
        revocation::evictions_and_revocations_are_recorded_as_declared,
    ];
    a_store_that_reports_no_remedy_is_caught: FindingWithoutRemedy fails [
        capabilities::diagnose_returns_findings_with_remedies,
    ];
}
