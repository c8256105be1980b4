//! The scripts of the dialect on a real server: no Lua number reaches a command, every command is reached, and
//! the work of a call has a bound.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tenure_testkit::{RedisServer, lacks};

use super::scripts::compose;

const GUARD: &str = include_str!("../scripts_tests/guard.lua");
const QUEUE: &str = "redisson_lock_queue:{a}";
const TIMEOUTS: &str = "redisson_lock_timeout:{a}";
const NOTE: &str = "tenure_holder:{a}";
const JAVA: &str = "99999999-0000-0000-0000-000000000000:17";
/// Longer than any test, in ms.
const TTL: &str = "3600000";

struct Bench {
    server: RedisServer,
    sites: RefCell<BTreeSet<String>>,
}

fn holder(number: usize) -> String {
    format!("{number:08x}-0000-0000-0000-000000000000:0")
}

impl Bench {
    fn start() -> Self {
        Self { server: RedisServer::start(&[]).unwrap(), sites: RefCell::default() }
    }

    fn said(&self, words: &[&str]) -> String {
        self.server.command(words).unwrap()
    }

    fn eval(&self, name: &str, keys: &[&str], arguments: &[&str]) -> String {
        let source = match name {
            "take" => include_str!("../../lua/redisson/take.lua"),
            "renew" => include_str!("../../lua/redisson/renew.lua"),
            "release" => include_str!("../../lua/redisson/release.lua"),
            "downgrade" => include_str!("../../lua/redisson/downgrade.lua"),
            "evict" => include_str!("../../lua/redisson/evict.lua"),
            "inspect" => include_str!("../../lua/redisson/inspect.lua"),
            "take permits" => include_str!("../../lua/redisson/permits/take.lua"),
            "renew permits" => include_str!("../../lua/redisson/permits/renew.lua"),
            "release permits" => include_str!("../../lua/redisson/permits/release.lua"),
            "evict permits" => include_str!("../../lua/redisson/permits/evict.lua"),
            _ => include_str!("../../lua/redisson/permits/inspect.lua"),
        };
        let source = compose(source, false);
        let mut parts = source.split("call(");
        let mut marked = parts.next().unwrap().to_owned();
        for part in parts {
            // The text of a call names it: scripts share parts, of which each calls some.
            let line = part.lines().next().unwrap();
            let site = line.replace(|one: char| !one.is_ascii_alphanumeric(), " ");
            marked.push_str(&format!("call('{site}', {part}"));
            self.sites.borrow_mut().insert(site);
        }
        self.said(&["DEL", "work"]);
        let count = keys.len().to_string();
        let source = format!("{GUARD}{marked}");
        let reply = self.said(&[&["EVAL", &source, &count], keys, arguments].concat());
        let is_error = reply.starts_with("-") && !reply.starts_with("-1") || reply.contains("ERR");
        assert!(!is_error, "{name} {arguments:?}: {reply}");
        reply
    }

    /// Asserts that each command of the scripts that were run has been sent.
    fn assert_all_reached(&self) {
        let reached = self.said(&["SMEMBERS", "sites"]);
        let reached: BTreeSet<String> = reached.lines().map(str::to_owned).collect();
        let missed: Vec<_> = self.sites.borrow().difference(&reached).cloned().collect();
        assert!(missed.is_empty(), "never sent: {missed:?}");
    }

    fn work(&self) -> u64 {
        self.said(&["GET", "work"]).parse().unwrap()
    }

    fn take(&self, number: usize, kind: &str) -> String {
        let (holder, timer) = (holder(number), self.timer(number));
        let [token, note] = ["redisson_lock_token:{a}", NOTE];
        let keys = ["a", token, note, &timer, QUEUE, TIMEOUTS, "c"];
        self.eval("take", &keys, &[&holder, TTL, kind, "1 host label", "fenced"])
    }

    fn timer(&self, number: usize) -> String {
        format!("{{a}}:{}:rwlock_timeout:1", holder(number))
    }

    /// As if the time had passed in which the called waiter of a fair lock may come.
    fn pass_grace_of_head(&self) {
        let note = self.said(&["GET", NOTE]);
        let [fair, _, called] = note.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("none is called: {note}")
        };
        self.said(&["SET", NOTE, &format!("{fair} 1 {called}"), "PX", TTL]);
    }

    fn release(&self, number: usize) -> String {
        let (holder, timer) = (holder(number), self.timer(number));
        let keys = ["a", "tenure_holder:{a}", "c", "rwc", QUEUE, &timer];
        self.eval("release", &keys, &[&holder, "{a}:"])
    }

    fn renew(&self, number: usize) -> String {
        let keys = ["a", "tenure_holder:{a}", &self.timer(number)];
        self.eval("renew", &keys, &[&holder(number), "7200000"])
    }

    fn downgrade(&self, number: usize) -> String {
        let keys = ["a", "tenure_holder:{a}", &self.timer(number), "rwc"];
        self.eval("downgrade", &keys, &[&holder(number), "7200000"])
    }

    fn evict(&self, field: &str) -> String {
        let token = "redisson_lock_token:{a}";
        let keys = ["a", "tenure_holder:{a}", "c", "rwc", QUEUE, token, "tenure_audit:{a}"];
        self.eval("evict", &keys, &[field, "{a}:", "record", "fenced"])
    }

    fn inspect(&self) -> String {
        self.eval("inspect", &["a", "tenure_holder:{a}"], &["0", "{a}:"])
    }
}

#[test]
fn every_command_of_the_scripts_is_reached_and_gets_only_text() {
    if lacks("redis-server", "the scripts of the Redisson dialect") {
        return;
    }
    let bench = Bench::start();
    // Alone, again, without the note, and against others.
    assert_eq!(bench.take(1, "x"), "granted 1");
    assert_eq!(bench.take(1, "x"), "granted 1");
    bench.said(&["DEL", "tenure_holder:{a}"]);
    assert_eq!(bench.take(1, "x"), "granted 2");
    assert!(bench.take(2, "s").ends_with(" writer"));
    assert_eq!((bench.renew(1), bench.renew(2)), ("1".into(), "0".into()));
    bench.inspect();
    // Downgraded, joined, renewed, released; one whose timer is gone holds no longer.
    assert_eq!(bench.downgrade(1), "2");
    assert_eq!(bench.downgrade(1), "2");
    assert_eq!(bench.take(2, "s"), "granted 3");
    assert_eq!(bench.take(2, "s"), "granted 3");
    assert_eq!(bench.renew(2), "1");
    bench.said(&["PEXPIRE", "a", "1000"]);
    bench.renew(2);
    bench.said(&["PEXPIRE", "a", "1000"]);
    bench.downgrade(1);
    bench.said(&["PEXPIRE", "a", "1000"]);
    bench.take(3, "s");
    bench.inspect();
    assert_eq!(bench.release(3), "1");
    bench.said(&["DEL", &bench.timer(2)]);
    assert_eq!(bench.renew(2), "0");
    assert_eq!(bench.take(2, "s"), "granted 5");
    assert_eq!((bench.release(2), bench.release(2)), ("1".into(), "0".into()));
    bench.said(&["DEL", &bench.timer(1)]);
    assert_eq!(bench.take(1, "x"), "granted 6", "a reader alone whose term has ended");
    // By force: ours, a reader among others, a writer of Java that reads, too.
    assert_eq!((bench.evict(JAVA), bench.evict(&holder(1))), ("0".into(), "1".into()));
    bench.take(1, "s");
    bench.take(2, "s");
    assert_eq!(bench.evict(&holder(1)), "1");
    assert_eq!(bench.release(2), "1");
    let writer = format!("{JAVA}:write");
    bench.said(&["HSET", "a", "mode", "write", &writer, "1", JAVA, "1"]);
    assert_eq!(bench.evict(&writer), "1");
    assert_eq!(bench.said(&["HGET", "a", "mode"]), "read");
    bench.said(&["DEL", "a"]);
    // A plain lock of theirs, and waiters of a fair one.
    bench.said(&["HSET", "a", JAVA, "2"]);
    assert_eq!(bench.take(1, "x"), "busy -1 lock");
    assert!(bench.inspect().contains(JAVA));
    bench.said(&["RPUSH", QUEUE, "gone", JAVA]);
    assert_eq!(bench.evict(JAVA), "1");
    bench.said(&["ZADD", TIMEOUTS, "1", "gone", "9000000000000", JAVA]);
    assert_eq!(bench.take(1, "x"), "busy 2000 lock");
    bench.pass_grace_of_head();
    assert_eq!(bench.take(1, "x"), "busy 300000 lock", "the first was removed, the second called");
    bench.pass_grace_of_head();
    assert!(bench.take(1, "x").starts_with("granted "), "none is left");
    assert_eq!(bench.said(&["EXISTS", QUEUE, TIMEOUTS]), "0");
    assert_eq!(bench.release(1), "1");
    bench.assert_all_reached();
}

/// Java programs whose clocks are an hour off: their waiters keep their places, and dead ones do not stay for longer.
#[test]
fn a_waiter_of_a_fair_lock_counts_as_gone_by_the_servers_clock_alone() {
    if lacks("redis-server", "waiters of a fair lock with wrong clocks") {
        return;
    }
    const HOUR: i64 = 3_600_000;
    for skew in [-HOUR, 0, HOUR] {
        let bench = Bench::start();
        let seconds = bench.said(&["TIME"]).lines().next().unwrap().parse::<i64>().unwrap();
        let ends = |round: i64| (seconds * 1000 + skew + 300_000 + round).to_string();
        let is_first = || bench.said(&["LINDEX", QUEUE, "0"]) == JAVA;
        let enter = |round| {
            bench.said(&["RPUSH", QUEUE, JAVA]);
            bench.said(&["ZADD", TIMEOUTS, &ends(round), JAVA]);
        };
        enter(0);
        for number in [1, 2] {
            assert!(bench.take(number, "x").starts_with("busy "), "it may still come");
            assert!(is_first());
        }
        // It comes, and waits again behind a holder: what is known of its first wait does not count.
        bench.pass_grace_of_head();
        bench.said(&["DEL", QUEUE, TIMEOUTS]);
        enter(1);
        assert!(bench.take(1, "x").starts_with("busy "));
        assert!(is_first(), "skew {skew}: a live waiter was removed");
        let left: i64 = bench.take(1, "x").split(' ').nth(1).unwrap().parse().unwrap();
        let expected = if skew < 0 { 1..=2_000 } else { 298_000..=300_000 };
        assert!(expected.contains(&left), "skew {skew}: {left} ms");
        // It is dead.
        bench.pass_grace_of_head();
        assert!(bench.take(1, "x").starts_with("granted "), "skew {skew}");
        assert_eq!(bench.said(&["EXISTS", QUEUE, TIMEOUTS]), "0");
    }
}

/// Calls of one semaphore, `p`.
impl Bench {
    fn pool(&self, script: &str, owner: usize, more: [&str; 3], arguments: &[&str]) -> String {
        let owner = format!("{owner:032x}");
        let note = format!("tenure_holder:{{p}}:{owner}");
        let more = more.map(|key| if key == "note" { note.as_str() } else { key });
        let more = more.iter().filter(|key| !key.is_empty()).copied();
        let keys: Vec<&str> = ["p", "{p}:timeout", "sc"].into_iter().chain(more).collect();
        let arguments: Vec<&str> = [&*owner].iter().chain(arguments).copied().collect();
        self.eval(&format!("{script} permits"), &keys, &arguments)
    }

    fn take_permits(&self, owner: usize, count: &str, of: &str) -> String {
        let arguments = [TTL, count, of, "1 host label", "fenced"];
        self.pool("take", owner, ["token", "note", "latches"], &arguments)
    }

    fn renew_permits(&self, owner: usize, count: &str) -> String {
        self.pool("renew", owner, ["note", "", ""], &["7200000", count])
    }

    fn release_permits(&self, owner: usize) -> String {
        self.pool("release", owner, ["note", "", ""], &[])
    }

    fn evict_permits(&self, owner: usize, member: &str) -> String {
        let owner = format!("{owner:032x}");
        let note = format!("tenure_holder:{{p}}:{owner}");
        let keys = ["p", "{p}:timeout", "sc", "token", &note, "audit"];
        self.eval("evict permits", &keys, &[&owner, member, "record", "fenced"])
    }

    fn inspect_permits(&self) -> String {
        let keys = ["p", "{p}:timeout", "sc"];
        self.eval("inspect permits", &keys, &["0", "tenure_holder:{p}:"])
    }

    /// Free permits and those that are held.
    fn assert_size(&self, size: i64) {
        let count = |words: &[&str]| self.said(words).parse::<i64>().unwrap();
        assert_eq!(count(&["GET", "p"]) + count(&["ZCARD", "{p}:timeout"]), size);
    }
}

#[test]
fn permits_are_neither_lost_nor_made_and_every_command_is_reached() {
    if lacks("redis-server", "the semaphores of the Redisson dialect") {
        return;
    }
    let bench = Bench::start();
    assert_eq!(bench.take_permits(1, "2", "4"), "granted 1");
    assert_eq!(bench.take_permits(1, "2", "4"), "granted 1", "asked again");
    assert_eq!(bench.take_permits(2, "1", "2").split(' ').next(), Some("busy"), "by its own size");
    assert_eq!(bench.take_permits(2, "3", "9").split(' ').next(), Some("busy"), "by theirs");
    assert_eq!(bench.take_permits(2, "2", "4"), "granted 2");
    bench.assert_size(4);
    assert_eq!(
        (bench.renew_permits(1, "2"), bench.renew_permits(3, "1")),
        ("1".into(), "0".into())
    );
    // Some of a claim's permits were collected by another client: it holds none.
    let least = format!("{:032x} 0998", 1);
    assert_eq!(bench.said(&["ZREM", "{p}:timeout", &least]), "1");
    bench.said(&["INCR", "p"]);
    assert_eq!(bench.renew_permits(1, "2"), "0");
    assert_eq!(bench.release_permits(1), "0");
    bench.assert_size(4);
    assert_eq!(bench.take_permits(1, "2", "4"), "granted 3");
    bench.said(&["ZREM", "{p}:timeout", &least]);
    bench.said(&["INCR", "p"]);
    assert_eq!(bench.take_permits(1, "2", "4"), "granted 4", "a new claim");
    bench.assert_size(4);
    assert!(bench.inspect_permits().contains("host label"));
    assert_eq!((bench.release_permits(1), bench.release_permits(1)), ("1".into(), "0".into()));
    // One of theirs, which holds no longer; the semaphore expires.
    bench.said(&["ZADD", "{p}:timeout", "5", "0123456789abcdef"]);
    bench.said(&["DECR", "p"]);
    bench.said(&["PEXPIRE", "p", TTL]);
    assert_eq!(bench.take_permits(3, "2", "4"), "granted 5");
    assert_ne!(bench.said(&["PTTL", "{p}:timeout"]), "-1");
    bench.assert_size(4);
    assert_eq!(bench.evict_permits(7, "0123456789abcdef"), "0");
    assert_eq!(bench.evict_permits(3, ""), "1");
    assert_eq!(bench.take_permits(1, "1", "4"), "granted 7", "above that of the evicted one");
    bench.assert_size(4);
    // Something else has the name.
    for write in [&["SET", "p", "text"][..], &["HSET", "p", "a", "b"], &["SET", "{p}:timeout", "1"]]
    {
        bench.said(&["DEL", "p", "{p}:timeout"]);
        bench.said(write);
        assert_eq!(bench.take_permits(1, "1", "4"), "foreign");
        assert_eq!(bench.inspect_permits(), "(nil)");
        let none = (bench.release_permits(1), bench.renew_permits(1, "1"));
        assert_eq!((none, &*bench.evict_permits(1, "")), (("0".into(), "0".into()), "0"));
    }
    bench.assert_all_reached();
}

#[test]
fn permits_are_not_granted_twice_when_the_semaphore_expires_or_is_lost() {
    if lacks("redis-server", "semaphores of the Redisson dialect that end") {
        return;
    }
    let bench = Bench::start();
    let least_left = || {
        let left = |key| bench.said(&["PTTL", key]).parse::<i64>().unwrap();
        left("p").min(left("{p}:timeout"))
    };
    // A Java program lets it expire before the term of the claim ends.
    bench.said(&["SET", "p", "1", "PX", "800"]);
    assert_eq!(bench.take_permits(1, "1", "1"), "granted 1");
    assert!(least_left() > 3_000_000);
    assert_eq!(bench.renew_permits(1, "1"), "1");
    assert!(least_left() > 7_000_000);
    // Its count alone is lost.
    bench.said(&["DEL", "p"]);
    assert_eq!(bench.take_permits(2, "1", "1").split(' ').next(), Some("busy"));
    bench.assert_size(1);
    assert_eq!(bench.release_permits(1), "1");
    bench.assert_size(1);
}

#[test]
fn no_call_grows_with_the_number_of_permits_that_are_held_or_have_ended() {
    if lacks("redis-server", "the bounds of the Redisson dialect's semaphores") {
        return;
    }
    for ends in ["9000000000000", "5"] {
        let bench = Bench::start();
        let fill = "redis.call('SET', 'p', '3')
            for i = 1, 20000 do redis.call('ZADD', KEYS[1], ARGV[1], 'w' .. i) end";
        bench.said(&["EVAL", fill, "1", "{p}:timeout", ends]);
        for step in [
            Bench::inspect_permits,
            |bench: &Bench| bench.take_permits(1, "2", "90000"),
            |bench: &Bench| bench.renew_permits(1, "2"),
            |bench: &Bench| bench.take_permits(2, "9", "90000"),
            |bench: &Bench| bench.evict_permits(77, "x"),
            |bench: &Bench| bench.release_permits(1),
        ] {
            step(&bench);
            assert!(bench.work() < 3_000, "{}", bench.work());
        }
        bench.assert_size(20_003);
    }
}

#[test]
fn no_call_grows_with_the_number_of_readers_or_of_fair_waiters() {
    if lacks("redis-server", "the bounds of the Redisson dialect") {
        return;
    }
    let bench = Bench::start();
    let fill = "for i = 1, 20000 do
        redis.call('HSET', 'a', string.format('%08x-0000-0000-0000-000000000000:0', i), '1')
        redis.call('RPUSH', KEYS[1], 'w' .. i)
        redis.call('ZADD', KEYS[2], '1', 'w' .. i)
    end";
    bench.take(1, "s");
    bench.said(&["EVAL", fill, "2", QUEUE, TIMEOUTS]);
    for step in [
        Bench::inspect,
        |bench: &Bench| bench.renew(1),
        |bench: &Bench| bench.take(2, "s"),
        |bench: &Bench| bench.take(2, "x"),
        |bench: &Bench| bench.downgrade(1),
        |bench: &Bench| bench.evict(&holder(77)),
        |bench: &Bench| bench.release(1),
        |bench: &Bench| bench.said(&["DEL", "a"]),
        |bench: &Bench| bench.take(3, "x"),
    ] {
        step(&bench);
        assert!(bench.work() < 3_000, "{}", bench.work());
    }
}
