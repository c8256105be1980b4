//! The guarantees of claims, and the mistakes that break them.

use std::io::Write;

use tenure_model::{Broken, Claims, Report, search};

/// A few times the largest search here, and well below two gigabytes.
const MOST: usize = 12_000_000;

/// Searches, and shows what was found past the capture of the test's output.
fn look(what: &str, claims: &mut Claims) -> Report {
    let report = search(claims, MOST);
    let _ = writeln!(std::io::stdout(), "model, {what}: {report}");
    report
}

fn holds(what: &str, mut claims: Claims) {
    assert!(look(what, &mut claims).counterexample.is_none());
    let winners = claims.wins.iter().map(|wins| wins.iter().flatten().count()).max();
    assert_eq!(winners, Some(claims.clients), "a search in which not all can win shows little");
}

fn breaks(what: &str, mut claims: Claims, fault: &str) {
    let trace = look(what, &mut claims).counterexample.expect("a mistake that is found");
    assert!(trace.last().is_some_and(|line| line.contains(fault)));
}

fn writers(clients: usize) -> Claims {
    let (counters, taken) = (vec![[0, 0, 0]], vec![0]);
    Claims { clients, counters, taken, ..Claims::default() }
}

/// All counters up to two, but for the names of the nodes.
fn on_any_counters(claims: Claims) -> Claims {
    let all = (0..27u8).map(|n| [n / 9, n / 3 % 3, n % 3]);
    Claims { counters: all.filter(|c| c.is_sorted()).collect(), ..claims }
}

#[test]
fn three_writers_win_with_tokens_in_order() {
    holds("three writers", Claims { lean: true, ..writers(3) });
}

/// The lean search is compared with the whole one, so that what others like it find can be trusted.
#[test]
fn two_writers_win_with_tokens_in_order_on_any_counters_whatever_is_left_out() {
    let mut whole = on_any_counters(writers(2));
    let mut lean = on_any_counters(Claims { lean: true, ..writers(2) });
    assert!(look("two writers, any counters", &mut whole).counterexample.is_none());
    assert!(look("two writers, any counters, lean", &mut lean).counterexample.is_none());
    assert_eq!(whole.wins, lean.wins);
    assert!(lean.wins.len() > 100, "only {} ways to win", lean.wins.len());
}

#[test]
fn a_floor_in_one_writers_claims_keeps_the_order() {
    let claims = Claims { floors: [0, 3, 0], ..writers(2) };
    holds("two writers, one with a floor", on_any_counters(claims));
}

#[test]
fn a_writer_among_readers_wins_with_a_token_between_theirs() {
    let claims = Claims { lean: true, readers: 0b011, ..writers(3) };
    holds("two readers and a writer", claims);
}

#[test]
fn a_client_that_gives_up_leaves_nothing_behind_whatever_is_late_or_lost() {
    let claims = Claims { troubles: 9, taken: (0..8).collect(), ..writers(1) };
    holds("one writer, any trouble", on_any_counters(claims));
}

#[test]
fn two_writers_that_release_or_are_late_keep_order_and_leave_nothing_behind() {
    holds("two writers, one trouble", Claims { troubles: 1, ..writers(2) });
}

#[test]
fn the_maximum_of_the_counters_alone_is_no_token() {
    let broken = Some(Broken::MaximumOnly);
    let claims = Claims { lean: true, broken, ..writers(3) };
    breaks("BROKEN: no node is raised to the token", claims, "won with");
}

#[test]
fn a_vote_above_the_token_must_not_count() {
    let broken = Some(Broken::VotesAboveTheToken);
    let claims = on_any_counters(Claims { broken, ..writers(2) });
    breaks("BROKEN: a vote above the token counts", claims, "won with");
}

#[test]
fn a_raise_without_the_owner_breaks_the_order() {
    let broken = Some(Broken::RaiseWithoutOwner);
    let claims = on_any_counters(Claims { broken, ..writers(2) });
    breaks("BROKEN: a node is raised for a client that does not hold it", claims, "won with");
}

#[test]
fn a_release_that_overtakes_its_claim_leaves_an_orphan() {
    let broken = Some(Broken::ReleaseOvertakes);
    let claims = Claims { broken, troubles: 9, ..writers(1) };
    breaks("BROKEN: a release overtakes its claim", claims, "nothing will ever release");
}

#[test]
#[should_panic(expected = "more than 1000 states: the search is not finished")]
fn a_search_that_is_cut_short_fails() {
    search(&mut writers(2), 1000);
}
