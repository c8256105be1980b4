//! No Lua number reaches a command.

use std::collections::BTreeSet;
use std::path::Path;

use tenure_testkit::lacks;

use super::beside::{audit_records, cells, counters, rate_limits};
use super::{Bench, LATER, LEASE, SOURCES, TTL, id, is_error, token};

/// Drives every script over every branch that sends a command.
#[test]
fn no_script_passes_a_lua_number_to_a_command() {
    if lacks("redis-server", "numbers in scripts") {
        return;
    }
    let bench = Bench::single();
    let held = [writers, lone_readers, readers, writers_that_become_readers, locks_together];
    let lost = [queues_that_are_lost, pools_that_are_lost, more, by_force];
    let beside = [audit_records, cells, counters, rate_limits];
    for scene in held.into_iter().chain(lost).chain(beside) {
        scene(&bench);
        bench.clear();
    }
    odd_counters(&bench);
    assert_eq!(bench.missed(), Vec::<String>::new(), "never reached");
    let node = Bench::node();
    for scene in
        [votes, votes_of_readers, votes_that_become_readers, queues_of_dead_waiters, by_force]
    {
        scene(&node);
        node.clear();
    }
    odd_counters(&node);
    // A node reaches fewer of the places that both kinds of server share.
    let missed: Vec<String> =
        node.missed().into_iter().filter(|site| site.starts_with("quorum")).collect();
    assert_eq!(missed, Vec::<String>::new(), "never reached");
}

fn writers(bench: &Bench) {
    let mut ear = bench.listen("inbox");
    token(&bench.take(1));
    assert_eq!(bench.take(1), "ask");
    assert_eq!(bench.take(2), "held");
    assert_eq!(bench.attempt(2, "x 0 0"), "busy");
    let queued = bench.claim(2, "x 0 0", "inbox");
    let again: i64 = queued.split(' ').nth(1).unwrap().parse().unwrap();
    assert!((1..=3_600_000).contains(&again), "{queued}");
    assert!(bench.claim(3, "x 0 0", "inbox").starts_with("queued -1 "));
    bench.command(&["PEXPIRE", "w", "300000"]);
    assert!(bench.claim(4, "x 0 0", "deaf").starts_with("queued -1 "));
    assert!(bench.count("PTTL", "q") > 600_000);
    // A repeated claim keeps its place.
    assert!(bench.claim(2, "x 0 0", "inbox").starts_with("queued "));
    assert!(!bench.claim(2, "x 0 0", "inbox").starts_with("queued -1"));
    // As if a client without fencing had overtaken the queue.
    bench.command(&["SETRANGE", "k", "32", " "]);
    assert!(bench.refresh(&[2, 3, 9]).ends_with(&id(9)));
    assert!(bench.command(&["GET", "k"]).starts_with(&format!("{}!", id(1))));
    assert_eq!(bench.release(1), "1");
    assert!(bench.is_held_by(2));
    ear.on_message(&id(2));
    assert_eq!(bench.claim(2, "x 0 0", "inbox").split(' ').next(), Some("granted"));
    assert_eq!(bench.renew(2), "1");
    assert_eq!(bench.release(3), "0");
    assert_eq!(bench.release(2), "1");
    // The waiter's client does not listen: the grant lasts no longer than the place.
    assert!(bench.is_held_by(4) && bench.count("PTTL", "k") <= 600_000);
    assert_eq!(bench.release(4), "1");
    assert_eq!(bench.count("EXISTS", "k"), 0);
    token(&bench.take(5));
    assert_eq!(bench.renew(5), "1");
    assert_eq!(bench.eval("single_key", &["k"], &[&id(5), TTL]), "1");
    assert_eq!(bench.eval("single_key", &["k"], &[&id(5)]), "1");
    token(&bench.take(6));
    assert_eq!(bench.release(6), "1");
}

/// A reader that is alone is in the lock's value, until another claim looks.
fn lone_readers(bench: &Bench) {
    let mut ear = bench.listen("inbox");
    let alone = || {
        let own = token(&bench.attempt(1, "s 1 0"));
        assert_eq!(bench.command(&["GET", "k"]), format!("{}s{own} - 1 host label", id(1)));
        assert_eq!(bench.command(&["EXISTS", "p", "e", "q", "w"]), "0");
        own
    };
    let pooled = |own: u64| {
        assert_eq!(bench.count("ZCARD", "e"), bench.count("HLEN", "p"));
        let left: u64 =
            bench.command(&["HGET", "p", &id(1)]).split(' ').nth(5).unwrap().parse().unwrap();
        assert!((1..=3_600_000).contains(&left), "the rest of its term: {left}");
        let record = format!("{own} {} s 1 0 {left} 1 host label", own / 1024);
        assert_eq!(bench.command(&["HGET", "p", &id(1)]), record);
        assert!((1..=7_200_000).contains(&bench.count("PTTL", "k")));
    };
    alone();
    assert_eq!(bench.renew(1), "1");
    assert!(bench.count("PTTL", "k") > 3_600_000);
    assert_eq!(bench.eval("single_key", &["k"], &[&id(1), TTL]), "1");
    assert_eq!(bench.eval("single_key", &["k"], &[&id(1)]), "1");
    alone();
    assert_eq!(bench.release(2), "0", "it is another's");
    assert_eq!(bench.command(&["GET", "k"]), "pool s 1");
    assert_eq!(bench.release(1), "1");

    let own = alone();
    assert_eq!(token(&bench.attempt(1, "s 1 0")), own, "it holds already");
    assert_eq!(bench.attempt(2, "x 0 0"), "busy");
    assert_eq!(bench.attempt(2, "p 1 3"), "busy");
    pooled(own);
    assert_eq!(bench.release(1), "1");
    assert_eq!(bench.count("EXISTS", "k"), 0);

    let own = alone();
    token(&bench.attempt(2, "s 1 0"));
    assert_eq!(bench.command(&["GET", "k"]), "pool s 2");
    pooled(own);
    assert!(!bench.claim(3, "x 0 0", "inbox").starts_with("queued -1"));
    assert_eq!((bench.release(1), bench.release(2)), ("1".into(), "1".into()));
    assert!(bench.is_held_by(3), "the writer waited for both");
    ear.on_message(&id(3));
    assert_eq!(bench.release(3), "1");

    let own = alone();
    assert!(!bench.claim(3, "x 0 0", "inbox").starts_with("queued -1"));
    pooled(own);
    assert_eq!(bench.attempt(4, "s 1 0"), "busy", "it would overtake a writer");
    // The reader is lost, and nothing has admitted the writer yet.
    bench.command(&["DEL", "k", "p", "e"]);
    assert_eq!(bench.attempt(4, "s 1 0"), "busy", "it would overtake a writer");
    assert!(bench.is_held_by(3));
    ear.on_message(&id(3));
    assert_eq!(bench.release(3), "1");

    alone();
    assert_eq!(bench.evict(&id(1)), "1");
    alone();
    // By hand: no end.
    bench.command(&["PERSIST", "k"]);
    assert_eq!(
        (bench.attempt(2, "s 1 0"), bench.attempt(2, "x 0 0")),
        ("busy".into(), "busy".into())
    );
    assert_eq!(bench.release(1), "1");
    // Values of another client that look alike, to each script.
    for theirs in ["30s", &format!("{}session 1", id(9)), &format!("{}s a b c d", id(9))] {
        bench.command(&["SET", "k", theirs, "PX", "60000"]);
        for _ in 0..2 {
            assert!(bench.claim(2, "s 1 0", "-").starts_with("queued"), "{theirs}");
        }
        assert_eq!(bench.release(2), "0", "{theirs}");
        assert_eq!(bench.command(&["GET", "k"]), theirs);
        assert_eq!(bench.evict(theirs), "1", "{theirs}");
    }
}

/// Free locks are taken and released together, all or none.
fn locks_together(bench: &Bench) {
    const LOCKS: [&str; 5] = ["t", "k", "q", "k2", "q2"];
    let claims = |owners: [usize; 2]| {
        let [one, other] = owners.map(id);
        let arguments = [&*one, TTL, "1 host label", &*other, LEASE, "1 host other"];
        bench.eval("take", &LOCKS, &arguments)
    };
    let free = |owners: [usize; 2]| {
        let [one, other] = owners.map(id);
        bench.eval("free", &["k", "k2"], &[&one, &other])
    };
    let own = token(&claims([1, 2]));
    assert_eq!(bench.command(&["GET", "k"]), format!("{} {own} - 1 host label", id(1)));
    assert_eq!(bench.command(&["GET", "k2"]), format!("{} {own} - 1 host other", id(2)));
    assert!(bench.count("PTTL", "k2") <= LEASE.parse().unwrap());
    assert!(bench.count("PTTL", "k") > LEASE.parse().unwrap());
    assert_eq!(claims([1, 2]), "ask");
    assert_eq!((free([2, 1]), free([1, 3])), ("0".into(), "0".into()));
    assert!(bench.claim(4, "x 0 0", "-").starts_with("queued"));
    assert_eq!(free([1, 2]), "0", "a claim waits");
    assert_eq!(bench.command(&["EXISTS", "k", "k2"]), "2");
    assert_eq!(bench.release(1), "1");
    assert_eq!(claims([1, 3]), "ask", "one is held");
    assert_eq!(bench.release(4), "1");
    bench.command(&["DEL", "k2"]);
    bench.command(&["ZADD", "q2", "1", &id(9)]);
    assert_eq!(claims([1, 3]), "ask", "a claim waits");
    assert_eq!(bench.command(&["EXISTS", "k", "k2"]), "0");
    bench.command(&["DEL", "q2"]);
    assert!(token(&claims([1, 3])) > own);
    assert_eq!(free([1, 3]), "1");
    assert_eq!(bench.command(&["EXISTS", "k", "k2"]), "0");
    assert_eq!(free([1, 3]), "0");
}

fn readers(bench: &Bench) {
    let mut ear = bench.listen("inbox");
    token(&bench.attempt(1, "s 1 0"));
    token(&bench.attempt(2, "s 1 0"));
    bench.command(&["PEXPIRE", "k", "300000"]);
    token(&bench.attempt(3, "s 1 0"));
    bench.command(&["PEXPIRE", "k", "300000"]);
    token(&bench.attempt(3, "s 1 0"));
    assert_eq!(bench.renew(2), "1");
    assert_eq!(bench.renew(9), "0");
    assert!(!bench.claim(4, "x 0 0", "inbox").starts_with("queued -1"));
    for reader in 5..8 {
        assert!(bench.claim(reader, "s 1 0", "inbox").starts_with("queued -1"));
    }
    assert!(bench.claim(8, "s 1 0", "-").starts_with("queued -1"));
    assert_eq!(bench.attempt(9, "s 1 0"), "busy");
    for reader in 1..4 {
        assert_eq!(bench.release(reader), "1");
    }
    assert!(bench.is_held_by(4));
    ear.on_message(&id(4));
    assert_eq!(bench.release(4), "1");
    assert_eq!(bench.command(&["GET", "k"]), "pool s 4");
    ear.on_message(&id(7));
    for reader in 5..9 {
        assert_eq!(bench.release(reader), "1");
    }
    assert_eq!(bench.count("EXISTS", "k"), 0);
}

fn writers_that_become_readers(bench: &Bench) {
    let mut ear = bench.listen("inbox");
    assert_eq!(bench.downgrade(1), "0");
    let own = token(&bench.take(1));
    for reader in [2, 3] {
        assert!(bench.claim(reader, "s 1 0", "inbox").starts_with("queued"));
    }
    assert!(bench.claim(4, "x 0 0", "inbox").starts_with("queued"));
    assert_eq!(bench.downgrade(2), "0", "it waits");
    // Remains of an earlier pool.
    bench.pool(7..8, LATER, "s 1 0");
    for _ in 0..2 {
        assert_eq!(bench.downgrade(1), own.to_string());
        assert_eq!(bench.command(&["GET", "k"]), "pool s 3");
        assert_eq!((bench.count("HLEN", "p"), bench.count("ZCARD", "e")), (3, 3));
    }
    ear.on_message(&id(3));
    let since = (own / 1024).to_string();
    let record = format!("{own} {since} s 1 0 7200000 1 host label");
    assert_eq!(bench.command(&["HGET", "p", &id(1)]), record);
    assert!(bench.count("PTTL", "k") > 3_600_000, "its term starts anew");
    assert_eq!(bench.renew(1), "1");
    for holder in [2, 1, 3] {
        assert!(!bench.is_held_by(4));
        assert_eq!(bench.release(holder), "1");
    }
    // The value of a holder that was handed the lock has the time in it.
    assert!(bench.is_held_by(4));
    assert_ne!(bench.downgrade(4), "0");
    assert_eq!(bench.release(4), "1");
    assert_eq!(bench.count("EXISTS", "k"), 0);
    token(&bench.attempt(5, "p 1 3"));
    assert_eq!(bench.downgrade(5), "0", "permits are not read holds");
    // Without fencing, a value has neither a token nor a time.
    bench.command(&["SET", "k", &format!("{} - - 1 host label", id(6)), "PX", TTL]);
    assert_eq!(bench.downgrade(6), "-");
    assert_eq!(bench.release(6), "1");
}

fn votes_that_become_readers(node: &Bench) {
    let own = token(&node.vote(1, "x 0 0", &[]));
    let mut ear = node.listen("inbox");
    assert!(node.vote(2, "s 1 0", &[LEASE, "inbox"]).starts_with("held"));
    assert_eq!(node.downgrade(1), own.to_string());
    ear.on_message(&id(2));
    token(&node.vote(2, "s 1 0", &[LEASE, "inbox"]));
    assert!(node.vote(3, "x 0 0", &[]).starts_with("held"));
    assert_eq!(node.command(&["GET", "k"]), "pool s 2");
}

fn queues_that_are_lost(bench: &Bench) {
    token(&bench.take(1));
    bench.claim(2, "x 0 0", "inbox");
    bench.claim(3, "x 0 0", "inbox");
    bench.command(&["ZREM", "q", &id(3)]);
    assert!(bench.refresh(&[2, 3]).ends_with(&id(3)));
    assert!(bench.claim(3, "x 0 0", "inbox").starts_with("queued -1"));
    assert!(!bench.refresh(&[2, 3]).ends_with(&id(3)));
    // The claim holds and waits at once: its place goes with the release.
    let record = bench.command(&["HGET", "w", &id(3)]);
    for (holder, ticket, next) in [(1, "1", 2), (2, "9000000000000000", 3)] {
        bench.command(&["HSET", "w", &id(holder), &record]);
        bench.command(&["ZADD", "q", ticket, &id(holder)]);
        assert_eq!(bench.release(holder), "1");
        assert!(bench.is_held_by(next));
    }
    assert_eq!((bench.count("ZCARD", "q"), bench.count("HLEN", "w")), (0, 0));
}

fn pools_that_are_lost(bench: &Bench) {
    for owner in 1..3 {
        token(&bench.attempt(owner, "p 1 3"));
    }
    bench.command(&["DEL", "p"]);
    token(&bench.attempt(3, "p 1 3"));
    assert_eq!(bench.attempt(4, "p 1 3"), "busy");
    bench.command(&["ZADD", "e", "1", &id(1), "1", &id(2)]);
    token(&bench.attempt(4, "p 1 3"));
    token(&bench.attempt(5, "p 1 3"));
    assert_eq!(bench.attempt(6, "p 1 3"), "busy");
    bench.clear();
    token(&bench.attempt(1, "s 1 0"));
    token(&bench.attempt(2, "s 1 0"));
    bench.command(&["DEL", "p"]);
    assert_eq!(bench.release(1), "0");
    assert_eq!(bench.command(&["GET", "k"]), "pool s 1");
    assert_eq!(bench.release(2), "0");
    assert_eq!(bench.count("EXISTS", "k"), 0);
}

/// If one call does not finish the work, another client is asked to continue.
fn more(bench: &Bench) {
    let mut ear = bench.listen("inbox");
    for (last, heard) in [("inbox", 2_000), ("deaf", 2)] {
        bench.clear();
        token(&bench.take(1));
        bench.claim(1_999, "x 0 0", "inbox");
        bench.queue(2..1_000, LATER, "s 1 0", "inbox");
        bench.queue(2_000..2_001, LATER, "s 1 0", last);
        bench.command(&["ZREM", "q", &id(1_999)]);
        bench.command(&["HDEL", "w", &id(1_999)]);
        assert_eq!(bench.release(1), "1");
        let first = if heard == 2 { bench.command(&["ZRANGE", "q", "0", "0"]) } else { id(heard) };
        ear.on_message(&format!("{first} more"));
    }
    // A claim continues by itself, or is told to call again.
    bench.command(&["DEL", "k"]);
    bench.queue(2..3, LATER, "s 1 0", "inbox");
    assert!(bench.claim(3_000, "x 0 0", "inbox").starts_with("queued 0 "));
    bench.clear();
    bench.queue(2..1_000, "1", "s 1 0", "inbox");
    assert_eq!(bench.attempt(3_000, "s 1 0"), "more");
    // The waiters before it and the holders are dead: it is granted, and other clients continue behind
    // it.
    bench.clear();
    bench.command(&["SET", "k", "pool s 1001"]);
    bench.pool(1..1_001, "1", "s 1 0");
    bench.pool(1_001..1_002, LATER, "s 1 0");
    bench.queue(2_000..2_001, "1", "s 1 0", "inbox");
    token(&bench.claim(3_000, "s 1 0", "inbox"));
}

fn by_force(bench: &Bench) {
    token(&bench.take(1));
    bench.queue(2..3, LATER, "s 1 0", "-");
    bench.queue(3..4, LATER, "x 0 0", "-");
    assert_eq!(bench.evict(&id(3)), "0");
    assert_eq!(bench.evict(&id(1)), "1");
    bench.clear();
    for value in ["theirs", "pool s 2"] {
        bench.command(&["SET", "k", value]);
        assert_eq!(bench.evict(value), "1");
        assert_eq!(bench.count("EXISTS", "k"), 0);
    }
    bench.command(&["SET", "k", "pool s 300"]);
    bench.pool(1..301, LATER, "s 1 0");
    bench.queue(400..700, LATER, "x 0 0", "-");
    assert_eq!(bench.evict(&id(1)), "1");
    assert_eq!(bench.eval("single_key", &["k"], &[&id(2)]), "-1");
    let page = bench.inspect(["0", "-inf"]);
    assert!(page.contains(&id(400)) && !page.contains(&id(699)), "{page}");
    let line = page.lines().last().unwrap().to_owned();
    assert!(bench.inspect(["-", &line]).contains(&id(528)));
}

/// The dialect of Redisson has tests of its own.
#[test]
fn every_script_in_the_folder_is_driven() {
    fn files(folder: &Path, within: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{within}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{name}/"), found);
            } else if let Some(name) = name.strip_suffix(".lua") {
                found.insert(name.to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"), "", &mut found);
    found.retain(|name| !name.starts_with("redisson/"));
    let driven: BTreeSet<String> = SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(driven, found);
}

fn odd_counters(bench: &Bench) {
    for stored in ["9007199254740992", "1e+15", "1e+17", "nonsense"] {
        bench.clear();
        bench.command(&["SET", "t", stored]);
        token(&bench.take(1));
    }
    bench.clear();
    for too_high in ["1e+30", "9223372036854775807"] {
        bench.command(&["SET", "t", too_high]);
        let refused = bench.try_eval("take", &["t", "k", "q"], &[&id(1), "60000", "1 h l"]);
        assert!(is_error(&refused) && !refused.contains("a Lua"), "{refused}");
    }
}

fn votes(node: &Bench) {
    let mut ear = node.listen("inbox");
    token(&node.vote(1, "x 0 0", &[]));
    token(&node.vote(1, "x 0 0", &[]));
    assert!(node.vote(2, "x 0 0", &[]).starts_with("held "));
    for writer in [2, 3, 2] {
        assert!(node.vote(writer, "x 0 0", &[LEASE, "inbox"]).starts_with("held "));
    }
    assert_eq!(node.raise(1, "9000000000000000"), "1");
    assert_eq!(node.raise(2, "9000000000000000"), "0");
    assert_eq!(node.unvote(1, "leave"), "1");
    ear.on_message(&id(2));
    token(&node.vote(2, "x 0 0", &[LEASE, "inbox"]));
    assert_eq!(node.unvote(2, "stay"), "1");
    assert_eq!(node.unvote(2, "leave"), "0");
    ear.on_message(&id(3));
}

fn votes_of_readers(node: &Bench) {
    let _ear = node.listen("inbox");
    token(&node.vote(1, "s 1 0", &[]));
    token(&node.vote(2, "s 1 0", &[]));
    assert_eq!(node.raise(1, "9000000000000000"), "1");
    assert_eq!(node.raise(1, "9000000000000000"), "1");
    node.command(&["PEXPIRE", "k", "300000"]);
    token(&node.vote(1, "s 1 0", &[]));
    assert!(node.vote(3, "x 0 0", &[LEASE, "inbox"]).starts_with("held "));
    assert!(node.vote(4, "s 1 0", &[LEASE, "gone"]).starts_with("held "));
    assert_eq!(node.unvote(1, "leave"), "1");
    assert_eq!(node.unvote(2, "leave"), "1");
}

fn queues_of_dead_waiters(node: &Bench) {
    let mut ear = node.listen("inbox");
    for (ends, inbox) in [("1", "inbox"), (LATER, "gone")] {
        node.clear();
        token(&node.vote(1, "x 0 0", &[]));
        node.command(&["SETRANGE", "k", "32", "!"]);
        node.queue(2..1_000, ends, "s 1 0", inbox);
        node.queue(1_000..1_001, LATER, "x 0 0", "inbox");
        assert_eq!(node.unvote(1, "leave"), "1");
        ear.on_message(&id(1_000));
    }
    node.clear();
    node.queue(1..2, "1", "x 0 0", "inbox");
    node.queue(2..3, LATER, "x 0 0", "inbox");
    assert!(node.vote(3, "s 1 0", &[]).starts_with("held "));
}
