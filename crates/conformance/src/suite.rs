//! The list of cases, and the tests made of it.

/// The names of all cases, as `subject::behaviour`.
pub const CASES: &[&str] = crate::suite!(@cases names);

/// Makes one test of every case, for the store that a fixture gives.
///
/// The argument is the path of an `async fn() -> impl Fixture`; each test calls it once. A store
/// that needs a program which not every machine has is named `fixture, needs "program"`, or `fixture,
/// unless |case| …` with what tells that it is missing: then the tests say that they were skipped. The crate that uses it depends on `tokio` with its macros
/// and multi-threaded runtime.
#[macro_export]
macro_rules! suite {
    (@cases $then:ident $($argument:tt)*) => {
        $crate::suite! { @$then [$($argument)*]
            cancel::a_dropped_try_or_bounded_wait_leaves_no_trace,
            cancel::a_dropped_wait_keeps_the_place_in_line,
            cancel::a_release_dropped_halfway_still_happens,
            cancel::an_acquire_dropped_as_its_grant_arrives_leaves_no_trace,
            cancel::an_acquire_dropped_during_the_release_leaves_no_trace,
            cancel::an_acquire_dropped_on_a_free_lock_leaves_no_trace,
            cancel::an_acquire_dropped_on_a_held_lock_leaves_no_trace,
            cells::a_cell_expires_and_not_before_its_time,
            cells::a_cell_has_the_value_that_was_swapped_in,
            cells::a_cell_is_created_by_one,
            cells::a_change_ends_a_wait,
            cells::a_swap_keeps_renews_or_lifts_the_expiry,
            cells::a_swap_on_another_version_changes_nothing,
            cells::a_value_over_the_limit_is_refused,
            cells::an_update_is_refused_on_the_present_value_only,
            cells::odd_names_are_cells_of_their_own,
            cells::updates_are_counted_exactly_once_under_load,
            cells::versions_never_repeat,
            eviction::an_evicted_guard_hears_of_its_loss,
            eviction::an_evicted_guard_is_told_at_once_as_promised,
            eviction::an_evicted_waiter_loses_its_place,
            eviction::an_eviction_hits_the_owner_seen_only,
            exclusion::one_holds_at_a_time_under_parallel_load,
            handover::a_release_makes_the_first_in_line_the_holder,
            handover::a_release_wakes_one_waiter_only,
            handover::a_waiter_hears_of_its_grant,
            handover::news_that_came_between_two_waits_is_found_by_the_second,
            inspection::a_free_lock_looks_free,
            inspection::a_label_with_line_breaks_is_shown_in_one_line,
            inspection::a_list_has_live_locks_with_the_prefix_in_order,
            inspection::a_snapshot_shows_the_holder,
            inspection::a_snapshot_shows_the_waiters_in_order,
            inspection::renewing_a_hold_does_not_make_it_younger,
            lease::a_guard_holds_beyond_several_terms,
            lease::a_hold_without_renewal_expires,
            lease::an_expired_claim_that_asks_again_is_a_new_hold,
            lease::an_expired_hold_is_not_shown,
            lease::the_term_counts_from_the_last_renewal,
            line::a_grant_that_nobody_picks_up_expires,
            line::a_waiter_that_never_asks_again_is_skipped,
            line::asking_again_keeps_the_place_in_line,
            line::nobody_overtakes_those_who_wait,
            line::waiters_are_served_in_the_order_they_came,
            loss::a_holder_that_is_cut_off_knows_before_another_holds,
            loss::a_loss_is_told_while_the_store_is_silent,
            loss::a_renewal_after_danger_saves_the_lease,
            loss::danger_is_told_before_loss,
            loss::max_hold_ends_a_lease_that_is_renewed,
            loss::work_under_a_guard_is_aborted_on_loss,
            names::odd_names_are_locks_of_their_own,
            permits::a_large_take_at_the_head_is_not_starved,
            permits::permits_are_given_out_as_long_as_there_are_some,
            permits::permits_are_never_overdrawn_under_load,
            permits::unsound_numbers_of_permits_are_refused,
            processes::a_killed_holder_lets_the_next_in,
            processes::a_killed_waiter_is_skipped,
            processes::a_process_that_ends_in_order_leaves_nothing,
            processes::a_stopped_holder_loses_its_lock_and_hears_of_it,
            processes::processes_are_served_in_the_order_they_came,
            processes::processes_exclude_each_other,
            processes::tokens_increase_from_process_to_process,
            promises::a_hold_is_shown_with_the_term_it_asked_for,
            promises::a_store_examines_itself,
            promises::modes_are_supported_exactly_as_promised,
            promises::tokens_are_given_exactly_as_promised,
            promises::tokens_increase_whichever_way_a_lock_changes_hands,
            release::a_dropped_guard_is_released_in_the_background,
            release::a_release_goes_by_name_and_owner_alone,
            release::a_repeated_release_changes_nothing,
            release::a_stranger_cannot_release,
            release::claiming_again_is_the_same_hold,
            release::closing_a_client_disturbs_nobody,
            release::closing_a_client_waits_for_its_releases,
            release::releasing_a_waiting_claim_leaves_the_line,
            runtimes::a_client_serves_one_runtime_after_another,
            runtimes::a_lock_is_renewed_while_its_runtime_is_not_polled_and_after_it_has_ended,
            scale::a_crowd_of_one_client_is_served_to_the_last,
            scale::hundreds_of_waiters_are_served_in_order,
            scale::thousands_of_locks_are_held_at_once,
            shared::readers_and_writers_never_meet_under_load,
            shared::readers_hold_together_and_a_writer_alone,
            shared::readers_in_line_go_in_together,
            shared::readers_wait_behind_a_waiting_writer,
            waiting::a_time_out_at_the_moment_of_the_grant_leaves_nothing,
            waiting::a_wait_that_times_out_leaves_the_line,
            waiting::trying_a_held_lock_is_busy_and_leaves_nothing,
            waiting::waiting_for_one_lock_does_not_hold_up_another,
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

/// Whether the case cannot run for want of a program.
#[doc(hidden)]
pub fn lacks(program: &str, case: &str) -> bool {
    tenure_testkit::lacks(program, case)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// A case that is written but not listed would never run.
    #[test]
    fn every_public_function_of_the_cases_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
        let mut written = BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
            let subject = file.file_stem().unwrap().to_str().unwrap().to_owned();
            for line in std::fs::read_to_string(file).unwrap().lines() {
                if let Some(rest) = line.strip_prefix("pub async fn ") {
                    written.insert(format!("{subject}::{}", rest.split('(').next().unwrap()));
                }
            }
        }
        let listed: BTreeSet<_> = CASES.iter().map(|case| (*case).to_owned()).collect();
        assert_eq!(written, listed);
        assert_eq!(listed.len(), CASES.len(), "a case is listed twice");
    }
}
