//! The guarantees of renewals and repairs while nodes lose their data.

use std::io::Write;

use tenure_model::{BrokenHold, Holds, Report, search};

const MOST: usize = 5_000_000;

fn look(what: &str, mut holds: Holds) -> Report {
    let report = search(&mut holds, MOST);
    assert!(holds.rival_won, "a search in which the rival cannot win shows nothing");
    let _ = writeln!(std::io::stdout(), "model, {what}: {report}");
    report
}

fn breaks(what: &str, holds: Holds, fault: &str) {
    let trace = look(what, holds).counterexample.expect("a mistake that is found");
    assert!(trace.last().is_some_and(|line| line.contains(fault)));
}

/// All nodes voted for the token.
const IN_STEP: [Option<u8>; 3] = [Some(1), Some(1), Some(1)];
/// One voted below it, too late to be raised.
const BEHIND: [Option<u8>; 3] = [Some(1), Some(1), Some(0)];
/// One did not vote.
const MISSING: [Option<u8>; 3] = [Some(1), Some(1), None];

/// All nodes may forget, one after the other, as long as repairs keep up.
fn one_after_the_other() -> Holds {
    let votes = vec![IN_STEP, BEHIND, MISSING];
    Holds { votes, forgets: 4, remembered: true, ..Holds::default() }
}

/// Any nodes forget at any time, also those that the holder cannot spare.
fn any() -> Holds {
    Holds { votes: vec![IN_STEP, BEHIND, MISSING], forgets: 3, ..Holds::default() }
}

#[test]
fn nodes_that_lose_data_one_after_the_other_do_not_lower_the_token() {
    let report = look("repairs, four nodes forget in turn", one_after_the_other());
    assert!(report.counterexample.is_none());
}

#[test]
fn nodes_that_lose_data_admit_no_second_holder() {
    let report = look("quarantine, any three nodes forget", any());
    assert!(report.counterexample.is_none());
}

#[test]
fn a_repaired_node_that_is_not_raised_repeats_a_token() {
    let broken = Some(BrokenHold::NeverRaised);
    let holds = Holds { broken, votes: vec![IN_STEP], ..one_after_the_other() };
    breaks("BROKEN: a repaired node counts with its counter behind", holds, "not above");
}

#[test]
fn a_renewed_node_that_is_not_raised_repeats_a_token() {
    let broken = Some(BrokenHold::NeverRaised);
    let holds = Holds { broken, votes: vec![BEHIND], ..one_after_the_other() };
    breaks("BROKEN: a renewed node counts with its counter behind", holds, "not above");
}

#[test]
fn without_quarantine_a_rival_holds_beside_the_holder() {
    let holds = Holds { broken: Some(BrokenHold::NoQuarantine), ..any() };
    breaks("BROKEN: a node counts as soon as it is back", holds, "beside the holder");
}
