use super::*;
use crate::history::{Access, Fault, Grant, History, Kind, Stored, Truth};
use crate::judge::judge;

const SECOND: u64 = 1_000_000_000;

fn grant(id: &str, held: u64, deadline: u64, token: u64) -> Grant {
    Grant {
        id: id.into(),
        client: id[..1].into(),
        lock: "a".into(),
        invoked: held - SECOND / 10,
        held,
        token: Some(token),
        deadline: Some(deadline),
        ..Grant::default()
    }
}

fn write(grant: &str, at: u64, token: u64, accepted: bool) -> Access {
    let (grant, lock, kind) = (grant.into(), "a".into(), Kind::Write);
    Access { at, grant, lock, kind, token: Some(token), accepted }
}

/// B gets the lock while A believes to hold it, and the write of A comes late.
fn history(is_fenced: bool) -> History {
    let truth = [
        (SECOND, Stored::Held("A".into())),
        (2 * SECOND, Stored::Silent),
        (3 * SECOND, Stored::Held(String::new())),
        (6 * SECOND, Stored::Free),
    ];
    History {
        grants: vec![grant("A1", SECOND, 8 * SECOND, 1), grant("B1", 3 * SECOND, 6 * SECOND, 2)],
        accesses: vec![write("B1", 4 * SECOND, 2, true), write("A1", 5 * SECOND, 1, !is_fenced)],
        faults: vec![Fault { at: 2 * SECOND, what: "<the server> restarts & forgets".into() }],
        truth: truth.map(|(at, state)| Truth { at, state }).into(),
        end: 9 * SECOND,
        ..History::default()
    }
}

fn result(history: History) -> Result {
    let judgement = judge(&history);
    let outcome = Outcome::Played { judgement, history };
    Result { hazard: "restart-empty", algorithm: "redis", outcome, seconds: 1.0 }
}

#[test]
fn a_timeline_has_a_lane_for_each_client_the_servers_and_the_resource() {
    let picture = picture(&result(history(true))).expect("it was played");
    for lane in [
        ">A</text><line class=\"lane\"",
        ">B</text><line",
        ">servers</text><line",
        ">resource</text><line",
    ] {
        assert!(picture.contains(lane), "{lane}: {picture}");
    }
    assert_eq!(picture.matches("class=\"belief\"").count(), 2);
    assert_eq!(picture.matches("class=\"fault\"").count(), 1);
}

#[test]
fn what_the_servers_say_is_shown_from_each_answer_to_the_next() {
    let picture = picture(&result(history(true))).expect("it was played");
    assert_eq!(picture.matches("class=\"stored\"").count(), 2, "{picture}");
    assert_eq!(picture.matches("class=\"silent\"").count(), 1, "{picture}");
    for told in [
        "the servers say that A holds the lock",
        "the servers do not answer",
        "the servers say that the lock is taken",
    ] {
        assert!(picture.contains(told), "{told}: {picture}");
    }
    let without = History { truth: Vec::new(), ..history(true) };
    let other = super::picture(&result(without)).expect("it was played");
    assert!(!other.contains("class=\"stored\"") && !other.contains("class=\"silent\""));
}

#[test]
fn overlaps_are_red_a_rejected_write_is_blue_and_an_accepted_stale_one_red() {
    let fenced = picture(&result(history(true))).expect("it was played");
    assert_eq!(fenced.matches("class=\"overlap\"").count(), 2, "one bar for each client");
    assert_eq!(fenced.matches("class=\"rejected\"").count(), 1);
    assert_eq!(fenced.matches("class=\"accepted\"").count(), 1);
    assert!(!fenced.contains("class=\"stale\""));
    let broken = picture(&result(history(false))).expect("it was played");
    assert_eq!(broken.matches("class=\"stale\"").count(), 1);
    assert!(!broken.contains("class=\"rejected\""));
}

#[test]
fn every_mark_tells_what_happened_on_hover_and_on_focus() {
    let picture = picture(&result(history(true))).expect("it was played");
    let marks = picture.matches("tabindex=\"0\"").count();
    // Two beliefs, three answers of the servers, an overlap, two writes, and a fault.
    assert_eq!(marks, 9, "{picture}");
    for part in ["data-tell=\"", "aria-label=\"", "<title>"] {
        let more = usize::from(part == "aria-label=\"");
        assert_eq!(picture.matches(part).count(), marks + more, "{part}");
    }
}

#[test]
fn the_page_shows_a_cell_and_a_section_for_each_experiment_and_no_markup_of_a_fault() {
    let missing = Outcome::Missing("etcd is not installed".into());
    let missing = Result { algorithm: "etcd", outcome: missing, ..result(history(true)) };
    let page = page(&[result(history(true)), missing]);
    assert!(page.contains("<td class=\"fenced\"><a href=\"#restart-empty.redis\""), "{page}");
    assert!(page.contains("<section id=\"restart-empty.redis\""), "{page}");
    assert!(page.contains("<td class=\"none\" title=\"etcd is not installed\">"), "{page}");
    assert!(page.contains("&lt;the server&gt; restarts &amp; forgets"), "{page}");
    assert!(!page.contains("<the server>"), "{page}");
}
