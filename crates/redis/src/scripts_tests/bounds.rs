//! The work of every script has a bound, whatever the length of the queue and the size of the pool.

use tenure_testkit::lacks;

use super::{Bench, LATER, LEASE, id, token};

/// Commands, their arguments and the elements of their replies, in one run: about two milliseconds.
const BOUND: u64 = 6_000;

/// How many claims wait or hold.
const CROWDS: [usize; 2] = [10_000, 50_000];

/// Runs a script's steps until there is no more to do, each within the bound. Returns how many.
fn until_done(bench: &Bench, go_on: impl Fn() -> bool) -> usize {
    for calls in 1..10_000 {
        let more = go_on();
        let work = bench.work();
        assert!(work <= BOUND, "call {calls}: {work}");
        if !more {
            return calls;
        }
    }
    panic!("the work has no end");
}

/// A refresh without owners, as a client sends it to continue unfinished work.
fn go_on(bench: &Bench) -> bool {
    bench.refresh(&[]).lines().next() == Some("0")
}

#[test]
fn a_release_that_admits_any_number_of_readers_is_bounded_and_all_are_let_in_once_in_order() {
    if lacks("redis-server", "readers behind a writer") {
        return;
    }
    let bench = Bench::single();
    let _ear = bench.listen("inbox");
    for readers in CROWDS {
        bench.clear();
        token(&bench.take(1));
        bench.claim(2, "s 1 0", "inbox");
        bench.queue(3..readers + 2, LATER, "s 1 0", "inbox");
        // One writer in the middle, and one more reader behind it.
        bench.claim(readers + 2, "x 0 0", "inbox");
        bench.claim(readers + 3, "s 1 0", "inbox");
        assert_eq!(bench.release(1), "1");
        assert!(bench.work() <= BOUND, "{}", bench.work());
        let mut calls = 0;
        let mut before = bench.count("ZCARD", "q");
        while go_on(&bench) {
            assert!(bench.work() <= BOUND, "{}", bench.work());
            let left = bench.count("ZCARD", "q");
            assert!(left < before, "a call that did nothing");
            (before, calls) = (left, calls + 1);
        }
        assert!(calls >= readers / 300, "{calls}");
        // Only the writer, and the reader behind it, still wait.
        let waiting = bench.command(&["ZRANGE", "q", "0", "-1"]);
        assert_eq!(waiting, [id(readers + 2), id(readers + 3)].join("\n"));
        assert_eq!(bench.count("HLEN", "p"), readers);
        assert_eq!(bench.count("ZCARD", "e"), readers);
        assert_eq!(bench.command(&["GET", "k"]), format!("pool s {readers}"));
    }
}

#[test]
fn a_downgrade_that_admits_any_number_of_readers_is_bounded_and_keeps_the_next_writer_out() {
    if lacks("redis-server", "readers behind a writer that becomes one") {
        return;
    }
    let bench = Bench::single();
    let mut ear = bench.listen("inbox");
    for readers in CROWDS {
        bench.clear();
        let own = token(&bench.take(1));
        bench.claim(2, "s 1 0", "inbox");
        bench.queue(3..readers + 2, LATER, "s 1 0", "inbox");
        bench.claim(readers + 2, "x 0 0", "inbox");
        for _ in 0..2 {
            assert_eq!(bench.downgrade(1), own.to_string());
            assert!(bench.work() <= BOUND, "{}", bench.work());
        }
        ear.on_message(&format!("{} more", id(readers + 2)));
        until_done(&bench, || go_on(&bench));
        assert_eq!(bench.command(&["ZRANGE", "q", "0", "-1"]), id(readers + 2));
        assert_eq!(bench.command(&["GET", "k"]), format!("pool s {}", readers + 1));
        assert_eq!(bench.downgrade(readers + 2), "0", "it waits");
    }
}

#[test]
fn a_release_behind_which_any_number_of_waiters_are_dead_is_bounded() {
    if lacks("redis-server", "dead waiters") {
        return;
    }
    let bench = Bench::single();
    let mut ear = bench.listen("inbox");
    for dead in CROWDS {
        bench.clear();
        token(&bench.take(1));
        bench.queue(10..dead + 10, "1", "x 0 0", "gone");
        bench.claim(2, "x 0 0", "inbox");
        assert_eq!(bench.release(1), "1");
        assert!(bench.work() <= BOUND, "{}", bench.work());
        // The client of the live waiter is asked to continue.
        ear.on_message(&format!("{} more", id(2)));
        until_done(&bench, || go_on(&bench));
        assert!(bench.is_held_by(2));
    }
}

#[test]
fn the_first_waiter_continues_where_the_record_of_the_last_is_lost() {
    if lacks("redis-server", "a lost record") {
        return;
    }
    let bench = Bench::single();
    let mut ear = bench.listen("inbox");
    token(&bench.take(1));
    bench.queue(10..10_010, "1", "x 0 0", "inbox");
    bench.claim(2, "x 0 0", "inbox");
    bench.command(&["HDEL", "w", &id(2)]);
    assert_eq!(bench.release(1), "1");
    let first = bench.command(&["ZRANGE", "q", "0", "0"]);
    ear.on_message(&format!("{first} more"));
}

#[test]
fn any_number_of_holders_whose_terms_ended_are_removed_with_bounded_work() {
    if lacks("redis-server", "ended holders") {
        return;
    }
    let bench = Bench::single();
    for ended in CROWDS {
        // Permits, of which all are taken: what has ended must be counted.
        bench.clear();
        bench.command(&["SET", "k", &format!("pool p {}", ended + 1)]);
        bench.pool(10..ended + 10, "1", "p 1 1");
        bench.pool(1..2, LATER, "p 1 1");
        let kind = format!("p {ended} {}", ended + 1);
        until_done(&bench, || bench.attempt(2, &kind) == "more");
        assert_eq!(bench.renew(2), "1");
        assert_eq!(bench.count("HLEN", "p"), 2);
        // Readers, one of which is left, and a queued writer.
        bench.clear();
        bench.command(&["SET", "k", &format!("pool s {}", ended + 1)]);
        bench.pool(10..ended + 10, "1", "s 1 0");
        bench.pool(1..2, LATER, "s 1 0");
        assert!(bench.claim(2, "x 0 0", "inbox").starts_with("queued 0 "));
        assert!(bench.work() <= BOUND, "{}", bench.work());
        until_done(&bench, || go_on(&bench));
        assert_eq!(bench.release(1), "1");
        assert!(bench.is_held_by(2));
    }
}

/// A holder whose term ended claims again before it was removed: its permits are counted once.
#[test]
fn a_holder_whose_term_ended_and_that_asks_again_is_counted_once() {
    if lacks("redis-server", "an ended holder that asks again") {
        return;
    }
    let (bench, node) = (Bench::single(), Bench::node());
    let asks: [(&Bench, &str, &dyn Fn()); 4] = [
        (&bench, "s 1 0", &|| assert!(token(&bench.claim(999, "s 1 0", "inbox")) > 0)),
        (&bench, "p 1 2000", &|| assert!(token(&bench.attempt(999, "p 1 2000")) > 0)),
        (&bench, "s 1 0", &|| {
            // A writer waits, and so does the reader behind it.
            bench.claim(1, "x 0 0", "inbox");
            assert!(bench.claim(999, "s 1 0", "inbox").starts_with("queued"));
            bench.release(1);
        }),
        (&node, "s 1 0", &|| assert!(token(&node.vote(999, "s 1 0", &[])) > 0)),
    ];
    for (bench, kind, ask) in asks {
        bench.clear();
        bench.command(&["SET", "k", &format!("pool {} 1000", &kind[..1])]);
        bench.pool(0..1000, "1", kind);
        ask();
        for _ in 0..9 {
            bench.release(5000);
        }
        assert_eq!(bench.command(&["GET", "k"]), format!("pool {} 1", &kind[..1]), "{kind}");
        assert_eq!(bench.release(999), "1");
        assert_eq!(bench.count("EXISTS", "k"), 0);
    }
}

#[test]
fn records_that_were_lost_are_counted_with_bounded_work() {
    if lacks("redis-server", "lost records") {
        return;
    }
    let bench = Bench::single();
    for kind in ["s 1 0", "p 1 60000"] {
        for holders in CROWDS {
            bench.clear();
            bench.command(&["SET", "k", &format!("pool {} {holders}", &kind[..1])]);
            bench.pool(10..holders + 10, LATER, kind);
            bench.command(&["HDEL", "p", &id(10)]);
            assert_eq!(bench.release(10), "0");
            assert!(bench.work() <= BOUND, "{}", bench.work());
            bench.command(&["DEL", "p"]);
            assert_eq!(bench.release(11), "0");
            assert!(bench.work() <= BOUND, "{}", bench.work());
        }
    }
}

#[test]
fn a_claim_that_leaves_or_rejoins_a_long_queue_and_an_eviction_are_bounded() {
    if lacks("redis-server", "long queues") {
        return;
    }
    let bench = Bench::single();
    for waiters in CROWDS {
        bench.clear();
        token(&bench.take(1));
        bench.queue(10..waiters + 10, LATER, "s 1 0", "inbox");
        let bounded = |what: &str| assert!(bench.work() < 100, "{what}: {}", bench.work());
        let middle = waiters / 2;
        bench.claim(middle, "s 1 0", "inbox");
        bounded("ask again");
        assert_eq!(bench.release(middle), "0");
        bounded("give up");
        bench.claim(middle, "s 1 0", "inbox");
        bounded("join again");
        assert_eq!(bench.attempt(5, "s 1 0"), "busy");
        bounded("try");
        assert_eq!(bench.evict(&id(middle + 1)), "0");
        bounded("evict a waiter");
        let owners: Vec<usize> = (middle + 2..middle + 258).collect();
        bench.refresh(&owners);
        assert!(bench.work() <= BOUND, "{}", bench.work());
        assert_eq!(bench.count("ZCARD", "q"), waiters - 1);
        assert_eq!(bench.evict(&id(1)), "1");
        assert!(bench.work() <= BOUND, "{}", bench.work());
    }
}

#[test]
fn an_inspection_of_any_size_is_paged_and_misses_nothing_that_stays() {
    if lacks("redis-server", "large inspections") {
        return;
    }
    let bench = Bench::single();
    let many = 10_000;
    bench.command(&["SET", "k", &format!("pool s {many}")]);
    bench.pool(0..many, LATER, "s 1 0");
    bench.queue(many..2 * many, LATER, "x 0 0", "inbox");
    let (mut from, mut seen) =
        (["0".to_owned(), "-inf".to_owned()], std::collections::HashSet::new());
    let mut pages = 0;
    while from.iter().any(|at| at != "-") {
        let page = bench.inspect([&from[0], &from[1]]);
        assert!(bench.work() <= BOUND, "{}", bench.work());
        let lines: Vec<&str> = page.lines().collect();
        seen.extend(lines.iter().filter(|line| line.len() == 32).map(ToString::to_string));
        let [.., in_pool, in_line] = lines[..] else { panic!("{page}") };
        from = [in_pool.to_owned(), in_line.to_owned()];
        // The lock changes meanwhile: some holders leave, and other claims are granted.
        bench.release(2 * many + pages);
        bench.attempt(2 * many + pages + 1, "s 1 0");
        pages += 1;
    }
    let missing = (0..2 * many).filter(|owner| !seen.contains(&id(*owner))).count();
    assert_eq!(missing, 0, "in {pages} pages");
    assert!(pages >= many / 300);
}

#[test]
fn the_scripts_of_a_quorum_node_are_bounded() {
    if lacks("redis-server", "long queues on a quorum") {
        return;
    }
    let node = Bench::node();
    let mut ear = node.listen("inbox");
    for waiters in CROWDS {
        for (ends, inbox) in [(LATER, "inbox"), (LATER, "gone"), ("1", "gone")] {
            node.clear();
            token(&node.vote(1, "x 0 0", &[]));
            node.queue(10..waiters + 10, ends, "s 1 0", inbox);
            let queued = node.vote(2, "s 1 0", &[LEASE, "inbox"]);
            assert!(queued.starts_with("held"), "{queued}");
            assert!(node.work() <= BOUND, "{}", node.work());
            assert_eq!(node.unvote(1, "leave"), "1");
            assert!(node.work() <= BOUND, "{}", node.work());
            // A live waiter is notified.
            ear.on_message(if inbox == "inbox" { "0000" } else { "02" });
            assert_eq!(node.evict(&id(waiters)), "0");
            assert!(node.work() <= BOUND, "{}", node.work());
        }
        node.clear();
        node.command(&["SET", "k", &format!("pool s {waiters}")]);
        node.pool(10..waiters + 10, "1", "s 1 0");
        node.vote(2, "x 0 0", &[]);
        assert!(node.work() <= BOUND, "{}", node.work());
    }
}

/// Tickets come from the server's clock; the order does not.
#[test]
fn a_clock_that_was_set_back_changes_no_order() {
    if lacks("redis-server", "a clock that was set back") {
        return;
    }
    let (bench, node) = (Bench::single(), Bench::node());
    let joins: [(&Bench, &dyn Fn(usize)); 3] = [
        (&bench, &|owner| {
            bench.command(&["SET", "k", "theirs"]);
            bench.claim(owner, "x 0 0", "inbox");
        }),
        (&bench, &|owner| {
            bench.command(&["SET", "k", "pool s 1"]);
            bench.claim(owner, "x 0 0", "inbox");
        }),
        (&node, &|owner| {
            node.command(&["SET", "k", "theirs"]);
            node.vote(owner, "x 0 0", &[LEASE, "inbox"]);
        }),
    ];
    for (bench, join) in joins {
        bench.clear();
        // The first waiter was queued in the year 2255.
        bench.queue(1..2, LATER, "x 0 0", "inbox");
        bench.command(&["ZADD", "q", "9000000000000000", &id(1)]);
        for owner in [9, 2, 5] {
            join(owner);
        }
        let line = bench.command(&["ZRANGE", "q", "0", "-1"]);
        assert_eq!(line, [1, 9, 2, 5].map(id).join("\n"));
    }
}
