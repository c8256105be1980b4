//! The list of cases, and the macro that generates one test per case.

/// The names of all cases, as `subject::requirement`.
pub const CASES: &[&str] = crate::suite!(@cases names);

/// Generates one test per case, for the store of a fixture.
///
/// The argument is the path of an `async fn() -> impl Fixture`, which each test calls once. Two
/// forms skip the tests where something is missing on the machine, and print that they did:
/// `suite!(fixture, needs "program")`, and `suite!(fixture, unless |case| …)` with a function that
/// returns `true` if the case cannot run.
///
/// The calling crate must depend on `tokio` with its macros and multi-threaded runtime.
#[macro_export]
macro_rules! suite {
    (@cases $then:ident $($argument:tt)*) => {
        $crate::suite! { @$then [$($argument)*]
            cancel::dropping_try_acquire_or_acquire_within_leaves_the_lock_free,
            cancel::dropping_a_wait_call_keeps_the_queue_position,
            cancel::a_dropped_release_completes_in_the_background,
            cancel::dropping_acquire_as_its_grant_arrives_leaves_the_lock_free,
            cancel::dropping_acquire_during_a_release_leaves_the_lock_free,
            cancel::dropping_acquire_on_a_free_lock_leaves_the_lock_free,
            cancel::dropping_acquire_on_a_held_lock_leaves_no_waiter,
            cells::a_cell_has_the_value_that_was_swapped_in,
            cells::a_swap_on_another_version_changes_nothing,
            cells::a_cell_is_created_by_one,
            cells::versions_never_repeat,
            cells::a_cell_expires_and_not_before_its_time,
            cells::a_swap_keeps_renews_or_lifts_the_expiry,
            cells::an_expiry_of_zero_or_of_centuries_is_accepted,
            cells::a_change_ends_a_wait,
            cells::a_value_over_the_limit_is_refused,
            cells::odd_names_are_cells_of_their_own,
            cells::updates_are_counted_exactly_once_under_load,
            cells::an_update_is_refused_on_the_present_value_only,
            counters::additions_are_counted_exactly_once_under_load,
            counters::a_counter_is_never_below_its_floor,
            counters::a_counter_refuses_what_is_out_of_range,
            counters::a_counter_expires_after_its_first_change,
            counters::a_counter_that_holds_no_number_is_damaged,
            limits::no_more_than_the_limit_is_let_through_under_load,
            limits::a_decision_contains_what_is_left_and_when_to_try_again,
            limits::a_limit_lets_through_again_after_its_time,
            once::work_is_done_by_one_and_replayed_to_all,
            once::work_in_progress_is_waited_for_or_not,
            once::an_abandoned_run_is_taken_over_and_its_late_result_is_refused,
            once::a_run_that_was_dropped_is_done_by_the_next,
            downgrade::downgrades_are_supported_exactly_as_declared,
            downgrade::the_readers_behind_a_downgraded_writer_join_it,
            downgrade::waiting_readers_are_notified_of_a_downgrade,
            downgrade::no_writer_gets_in_between_under_load,
            downgrade::dropping_a_downgrade_leaves_the_lock_free,
            downgrade::only_a_hold_is_downgraded,
            downgrade::a_downgraded_hold_is_renewed_and_ends_as_any_other,
            downgrade::a_killed_process_leaves_nothing_of_its_downgraded_hold,
            once::a_killed_runner_process_is_replaced,
            once::a_stopped_runner_process_is_replaced_and_its_result_refused,
            election::candidates_lead_one_after_the_other,
            election::observers_see_leaders_their_values_and_that_there_is_none,
            election::a_late_write_of_an_old_leader_is_refused,
            election::a_value_over_the_limit_elects_no_leader,
            election::a_dropped_campaign_leaves_no_candidate,
            election::a_killed_leader_process_is_replaced,
            election::a_stopped_leader_process_is_replaced_and_hears_of_it,
            latch::a_latch_opens_when_the_last_party_has_counted_down,
            latch::counting_below_zero_is_refused_and_nothing_is_lost,
            latch::a_latch_that_expires_ends_the_wait,
            latch::a_party_that_dies_or_leaves_breaks_the_latch,
            latch::a_killed_party_process_breaks_the_latch,
            barrier::parties_pass_one_generation_after_the_other,
            barrier::a_party_that_leaves_breaks_the_barrier_for_the_others,
            barrier::a_killed_party_process_breaks_the_barrier,
            barrier::a_wait_that_was_dropped_is_continued,
            barrier::a_party_that_lost_its_lease_gets_an_error_and_may_wait_again,
            barrier::numbers_of_parties_that_make_no_sense_are_refused,
            blocking::calls_block_a_thread_with_and_without_a_runtime,
            eviction::an_evicted_guard_is_lost_at_its_next_renewal,
            eviction::an_evicted_guard_is_notified_at_once_if_the_store_reports_losses,
            eviction::an_evicted_waiter_leaves_the_queue,
            eviction::an_eviction_removes_only_the_named_owner,
            exclusion::at_most_one_task_holds_a_mutex_under_load,
            handover::a_release_makes_the_first_waiter_the_holder,
            handover::a_release_wakes_exactly_one_waiter,
            handover::a_waiter_is_notified_of_its_grant,
            handover::a_grant_between_two_waits_ends_the_second_wait,
            inspection::a_free_lock_has_no_holders_and_no_waiters,
            inspection::line_breaks_in_a_label_are_escaped,
            inspection::list_returns_live_locks_with_the_prefix_sorted_by_name,
            inspection::inspect_shows_every_attribute_of_the_holder,
            inspection::holders_are_those_that_inspect_shows,
            inspection::inspect_shows_the_waiters_in_queue_order,
            inspection::renewing_a_hold_does_not_reset_its_age,
            lease::a_guard_is_renewed_beyond_several_ttls,
            lease::a_hold_without_renewal_expires_after_its_ttl,
            lease::claiming_again_after_expiry_is_a_new_hold_with_a_higher_token,
            lease::inspect_and_list_omit_expired_holds,
            lease::a_hold_lasts_one_ttl_from_its_last_renewal,
            queue::a_grant_to_a_dead_waiter_expires_after_its_ttl,
            queue::a_waiter_that_stops_claiming_is_skipped,
            queue::claiming_again_keeps_the_queue_position,
            queue::a_newcomer_does_not_overtake_waiters,
            queue::waiters_are_granted_in_arrival_order,
            loss::a_partitioned_holder_is_invalid_before_the_next_grant,
            loss::a_loss_is_reported_while_the_store_does_not_answer,
            loss::a_renewal_after_danger_keeps_the_lease,
            loss::danger_is_reported_before_loss,
            loss::max_hold_ends_a_renewed_lease,
            loss::work_under_a_guard_is_aborted_on_loss,
            multi::several_locks_are_held_together_or_not_at_all,
            multi::locks_named_in_any_order_do_not_deadlock_under_load,
            multi::losing_one_of_several_locks_loses_the_hold,
            multi::dropping_a_wait_for_several_locks_leaves_all_free,
            multi::dropping_an_attempt_or_a_release_of_several_locks_leaves_all_free,
            names::unusual_names_are_distinct_locks,
            permits::a_claim_for_many_permits_is_not_starved,
            permits::permits_are_granted_while_enough_are_free,
            permits::a_mutex_keeps_permits_of_its_name_out,
            permits::no_more_permits_are_held_than_exist_under_load,
            permits::invalid_permit_counts_are_refused,
            processes::the_next_waiter_is_granted_after_the_holder_process_is_killed,
            processes::a_killed_waiter_process_is_skipped,
            processes::a_process_that_exits_cleanly_leaves_the_lock_free,
            processes::a_stopped_holder_process_loses_its_lock_and_is_notified,
            processes::waiting_processes_are_granted_in_arrival_order,
            processes::at_most_one_process_holds_a_mutex,
            processes::tokens_increase_across_processes,
            capabilities::expires_in_follows_the_requested_ttl,
            capabilities::diagnose_returns_findings_with_remedies,
            capabilities::modes_are_supported_exactly_as_declared,
            capabilities::tokens_are_issued_exactly_as_declared,
            capabilities::tokens_increase_however_the_lock_changes_hands,
            reentrant::a_holder_enters_again_and_the_last_guard_releases,
            reentrant::a_hold_is_renewed_as_long_as_a_guard_of_it_exists,
            reentrant::an_evicted_hold_is_lost_to_all_its_guards,
            release::a_dropped_guard_is_released_in_the_background,
            release::a_release_matches_name_and_owner_only,
            release::a_repeated_release_is_a_no_op,
            release::only_the_owner_can_release,
            release::claiming_again_returns_the_same_hold,
            release::a_lock_stays_taken_for_at_least_its_time,
            release::an_evicted_hold_with_a_minimum_time_is_lost,
            release::closing_a_client_keeps_its_holds_and_waiters,
            release::closing_a_client_waits_for_its_releases,
            release::releasing_a_waiting_claim_leaves_the_queue,
            revocation::a_revoked_holder_hears_the_request_and_keeps_the_lock_until_it_releases,
            revocation::a_holder_that_stays_is_evicted_after_the_grace,
            revocation::a_downgrade_does_not_answer_a_request,
            revocation::a_request_does_not_reach_a_later_holder,
            revocation::all_holders_of_a_shared_lock_are_asked,
            revocation::evictions_and_revocations_are_recorded_as_declared,
            runtimes::a_client_works_across_successive_runtimes,
            runtimes::a_lock_is_renewed_while_its_runtime_is_idle_or_dropped,
            scale::concurrent_tasks_of_one_client_are_all_granted,
            scale::hundreds_of_waiters_are_granted_in_arrival_order,
            scale::one_client_holds_thousands_of_locks,
            shared::readers_and_writers_exclude_each_other_under_load,
            shared::readers_share_the_lock_and_a_writer_holds_it_alone,
            shared::queued_readers_are_granted_together,
            shared::readers_wait_behind_a_waiting_writer,
            waiting::a_timeout_during_the_grant_leaves_the_lock_free,
            waiting::a_wait_that_times_out_leaves_the_queue,
            waiting::try_acquire_on_a_held_lock_is_busy_and_leaves_no_waiter,
            waiting::waiting_for_one_lock_does_not_block_another,
        }
    };
    (@names [] $($subject:ident::$case:ident,)*) => {
        &[$(concat!(stringify!($subject), "::", stringify!($case))),*]
    };
    (@tests [$fixture:path, $missing:expr] $($subject:ident::$case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let is_missing: fn(&str) -> bool = $missing;
                if is_missing(stringify!($case)) {
                    return;
                }
                $crate::cases::$subject::$case(&$fixture().await).await;
            }
        )*
    };
    ($fixture:path) => {
        $crate::suite! { @cases tests $fixture, |_| false }
    };
    ($fixture:path, needs $program:literal) => {
        $crate::suite! { @cases tests $fixture, |case| $crate::lacks($program, case) }
    };
    ($fixture:path, unless $missing:expr) => {
        $crate::suite! { @cases tests $fixture, $missing }
    };
}

/// Whether `program` is not installed; prints that `case` is skipped in that case.
#[doc(hidden)]
pub fn lacks(program: &str, case: &str) -> bool {
    tenure_testkit::lacks(program, case)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// A case that is not in the list would never run.
    #[test]
    fn the_list_contains_every_public_function_of_the_case_modules() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
        let mut defined = BTreeSet::new();
        for file in std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()) {
            let subject = file.file_stem().unwrap().to_str().unwrap().to_owned();
            for line in std::fs::read_to_string(file).unwrap().lines() {
                if let Some(rest) = line.strip_prefix("pub async fn ") {
                    defined.insert(format!("{subject}::{}", rest.split('(').next().unwrap()));
                }
            }
        }
        let listed: BTreeSet<_> = CASES.iter().map(|case| (*case).to_owned()).collect();
        assert_eq!(defined, listed);
        assert_eq!(listed.len(), CASES.len(), "a case is listed twice");
    }
}
