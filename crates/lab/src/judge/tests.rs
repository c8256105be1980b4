//! Hand-made histories, and mutants of the judge.

use super::*;
use crate::history::{Expectation, Wakeups};

/// A grant of client `id` from `held` until its release, invoked just before.
fn grant(id: &str, held: Stamp, released: Stamp, token: u64) -> Grant {
    Grant {
        id: id.into(),
        client: id.into(),
        lock: "a".into(),
        invoked: held - 5,
        held,
        released: Some(released),
        token: (token > 0).then_some(token),
        ..Grant::default()
    }
}

fn access(at: Stamp, grant: &Grant, kind: Kind, accepted: bool) -> Access {
    let (grant, lock, token) = (grant.id.clone(), grant.lock.clone(), grant.token);
    Access { at, grant, lock, kind, token, accepted }
}

fn history(grants: &[Grant], accesses: &[Access]) -> History {
    History { grants: grants.to_vec(), accesses: accesses.to_vec(), ..History::default() }
}

use Kind::{Read, Write};

/// A history, its verdict, and how many findings of each kind it has, by the name of the kind.
struct Case(&'static str, History, Verdict, &'static [&'static str]);

fn kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::Overlap { .. } => "overlap",
        Finding::StaleAccepted(_) => "accepted",
        Finding::StaleRejected(_) => "rejected",
        Finding::HolderRefused(_) => "refused",
        Finding::TokenOrder { .. } => "order",
        Finding::Stuck(_) => "stuck",
        Finding::Herd { .. } => "herd",
    }
}

/// Beliefs of A and B overlap; both read, then A writes, then B.
fn overlap(tokens: (u64, u64), second_read: bool, stale_write: bool) -> History {
    let (a, b) = (grant("A", 10, 50, tokens.0), grant("B", 30, 60, tokens.1));
    let accesses = [
        access(11, &a, Read, true),
        access(31, &b, Read, second_read),
        access(40, &a, Write, stale_write),
        access(45, &b, Write, second_read),
    ];
    history(&[a, b], &accesses)
}

fn cases() -> Vec<Case> {
    let turn = |held: Stamp, id: &str, token: u64| {
        let grant = grant(id, held, held + 10, token);
        let accesses =
            [access(held + 1, &grant, Read, true), access(held + 2, &grant, Write, true)];
        (grant, accesses)
    };
    let ((a, of_a), (b, of_b)) = (turn(10, "A", 1), turn(30, "B", 2));
    let in_turn = history(&[a.clone(), b.clone()], &[of_a.clone(), of_b].concat());

    // B asks while A still holds, and is granted when A has released.
    let mut waited = in_turn.clone();
    waited.grants[1].invoked = 12;

    let ended_by = |end: fn(&mut Grant)| {
        let mut history = in_turn.clone();
        history.grants[0].released = None;
        end(&mut history.grants[0]);
        history
    };
    let mut other_lock = overlap((1, 2), true, true);
    other_lock.grants[1].lock = "b".into();
    for access in other_lock.accesses.iter_mut().filter(|access| access.grant == "B") {
        access.lock = "b".into();
    }
    // A holds throughout; B comes and goes; C comes after B has gone.
    let long = [grant("A", 10, 100, 1), grant("B", 20, 30, 2), grant("C", 40, 50, 3)];
    let late_writes = [
        access(41, &long[2], Read, true),
        access(45, &long[0], Write, false),
        access(46, &long[1], Write, false),
    ];
    let beyond = history(&long, &late_writes);
    // No beliefs overlap, but a write of A arrives after B has read.
    let b_reads = access(31, &b, Read, true);
    let delayed = |accepted| {
        let late = access(35, &a, Write, accepted);
        history(&[a.clone(), b.clone()], &[of_a[0].clone(), b_reads.clone(), late])
    };
    let b_refused = access(31, &b, Read, false);
    let refused = history(&[a.clone(), b.clone()], &[b_refused, access(32, &b, Write, false)]);
    // A's token went to B again, or to no client: then the resource takes a smaller one than before.
    let orders =
        |first, second| history(&[grant("A", 10, 20, first), grant("B", 30, 40, second)], &[]);
    let mut crossing = orders(2, 1);
    crossing.grants[1].invoked = 8;
    let mut same_at_once = orders(1, 1);
    same_at_once.grants[1].invoked = 8;
    let mut lax = in_turn.clone();
    lax.grants[0].token = Some(7);
    lax.grants[1].invoked = 8;
    lax.accesses[..2].iter_mut().for_each(|access| access.token = Some(7));
    // A rejected access of a later grant must not make an earlier grant stale.
    let (mut a5, b1) = (grant("A", 10, 35, 5), grant("B", 30, 40, 1));
    a5.deadline = Some(25);
    let regress =
        [access(11, &a5, Read, true), access(31, &b1, Read, false), access(32, &a5, Write, true)];
    let regress = history(&[a5, b1], &regress);
    let expecting = |met| {
        let what = "B holds the lock".into();
        History { expectations: vec![Expectation { what, at: 50, met }], ..in_turn.clone() }
    };
    let waking =
        |requests| History { wakeups: Some(Wakeups { waiters: 20, requests }), ..in_turn.clone() };
    let idle = history(&[grant("A", 10, 50, 1), grant("B", 30, 60, 2)], &[]);
    use Verdict::{Broken, Fenced, Safe, Void};
    vec![
        Case("turns", in_turn.clone(), Safe, &[]),
        Case("a wait", waited, Safe, &[]),
        Case("a lease that ends", ended_by(|a| a.deadline = Some(20)), Safe, &[]),
        Case("a loss that is noticed", ended_by(|a| a.lost = Some(20)), Safe, &[]),
        Case("a belief without end", ended_by(|_| {}), Void, &["overlap"]),
        Case("two locks", other_lock, Safe, &[]),
        Case("an overlap, fenced", overlap((1, 2), true, false), Fenced, &["overlap", "rejected"]),
        Case("an overlap, unfenced", overlap((0, 0), true, true), Broken, &["overlap", "accepted"]),
        Case(
            "two overlaps with one grant",
            beyond,
            Fenced,
            &["overlap", "overlap", "rejected", "rejected"],
        ),
        Case("a late write, accepted", delayed(true), Broken, &["accepted"]),
        Case("a late write, rejected", delayed(false), Fenced, &["rejected"]),
        Case("a holder that is refused", refused, Broken, &["refused", "refused"]),
        Case("tokens that fall", orders(2, 1), Broken, &["order"]),
        Case("a token given twice", orders(1, 1), Broken, &["order"]),
        Case("tokens of acquires that cross", crossing, Safe, &[]),
        Case("a token given twice at once", same_at_once, Broken, &["order"]),
        Case("a resource that takes a smaller token", lax, Broken, &["accepted", "accepted"]),
        Case("a token that fell, and its refusal", regress, Broken, &["order", "refused"]),
        Case("what had to happen did", expecting(true), Safe, &[]),
        Case("what had to happen did not", expecting(false), Broken, &["stuck"]),
        Case("one waiter woken", waking(3), Safe, &[]),
        Case("a herd", waking(20), Broken, &["herd"]),
        Case("an overlap without damage", idle, Void, &["overlap"]),
    ]
}

/// Whether the judge that these rules make gives each history its verdict, for the right reasons.
fn is_right(rules: &Rules, Case(_, history, verdict, kinds): &Case) -> bool {
    let judgement = rules.judge(history);
    let found: Vec<&str> = judgement.findings.iter().map(kind).collect();
    judgement.verdict == *verdict && found == *kinds
}

#[test]
fn each_kind_of_violation_is_found_and_nothing_else() {
    for case in cases() {
        assert!(is_right(&RULES, &case), "{}: {:?}", case.0, RULES.judge(&case.1));
    }
}

#[test]
fn damage_is_what_the_unfenced_twin_accepted() {
    assert_eq!(judge(&overlap((1, 2), true, false)).damage, 1);
    assert_eq!(judge(&overlap((0, 0), true, true)).damage, 1);
    assert_eq!(judge(&cases()[0].1).damage, 0);
}

/// Rules, each broken once.
macro_rules! mutants {
    ($($rule:ident),* $(,)?) => {
        // All fields are named, so a new rule without a mutant does not compile.
        [$((stringify!($rule), Rules { $rule: false, ..RULES })),*]
    };
}

#[test]
fn every_mutant_of_the_judge_is_caught() {
    let Rules {
        belief_begins_when_acquire_returns: _,
        deadline_ends_belief: _,
        release_ends_belief: _,
        loss_ends_belief: _,
        locks_are_separate: _,
        overlaps_beyond_the_next_grant: _,
        stale_accesses: _,
        rejected_accesses_have_no_effect: _,
        reads_count: _,
        running_maximum: _,
        refused_holders: _,
        token_order: _,
        equal_tokens: _,
        concurrent_acquires_are_unordered: _,
        progress: _,
        herd: _,
        needs_damage: _,
    } = RULES;
    let mutants = mutants![
        belief_begins_when_acquire_returns,
        deadline_ends_belief,
        release_ends_belief,
        loss_ends_belief,
        locks_are_separate,
        overlaps_beyond_the_next_grant,
        stale_accesses,
        rejected_accesses_have_no_effect,
        reads_count,
        running_maximum,
        refused_holders,
        token_order,
        equal_tokens,
        concurrent_acquires_are_unordered,
        progress,
        herd,
        needs_damage,
    ];
    for (rule, mutant) in mutants {
        let caught = cases().iter().any(|case| !is_right(&mutant, case));
        assert!(caught, "no history needs the rule {rule}");
    }
}

#[test]
fn a_long_history_is_judged_in_time() {
    let turns = 200_000;
    let mut history = History::default();
    for turn in 1..=turns {
        let grant = grant(&turn.to_string(), turn * 100, turn * 100 + 50, turn);
        history.accesses.push(access(turn * 100 + 1, &grant, Write, true));
        history.grants.push(grant);
    }
    // Quadratic checks would compare forty thousand million pairs.
    assert_eq!(judge(&history).verdict, Verdict::Safe);
}
