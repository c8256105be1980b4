//! The scripts of the dialect on a real server: no Lua number reaches a command, every command is reached, and
//! the work of a call has a bound.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tenure_testkit::{RedisServer, lacks};

use super::scripts::compose;

const GUARD: &str = include_str!("../scripts_tests/guard.lua");
const QUEUE: &str = "redisson_lock_queue:{a}";
const TIMEOUTS: &str = "redisson_lock_timeout:{a}";
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
            _ => include_str!("../../lua/redisson/inspect.lua"),
        };
        let source = compose(source, false);
        let mut parts = source.split("call(");
        let mut marked = parts.next().unwrap().to_owned();
        for (place, part) in parts.enumerate() {
            let command = part.split([',', ')']).next().unwrap().replace('\'', "");
            let site = format!("{name} {place} {command}");
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

    fn work(&self) -> u64 {
        self.said(&["GET", "work"]).parse().unwrap()
    }

    fn take(&self, number: usize, kind: &str) -> String {
        let (holder, timer) = (holder(number), self.timer(number));
        let keys = ["a", "redisson_lock_token:{a}", "tenure_holder:{a}", &timer, QUEUE, TIMEOUTS];
        self.eval("take", &keys, &[&holder, TTL, kind, "1 host label", "fenced"])
    }

    fn timer(&self, number: usize) -> String {
        format!("{{a}}:{}:rwlock_timeout:1", holder(number))
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
    assert!(bench.take(2, "s").ends_with(" rwlock"));
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
    assert!(bench.take(1, "x").starts_with("busy "));
    assert_eq!(bench.said(&["LLEN", QUEUE]), "1");
    bench.said(&["LPUSH", QUEUE, &holder(1)]);
    assert!(bench.take(1, "x").starts_with("granted "), "its own turn");
    assert_eq!(bench.release(1), "1");
    let reached = bench.said(&["SMEMBERS", "sites"]);
    let reached: BTreeSet<String> = reached.lines().map(str::to_owned).collect();
    let missed: Vec<_> = bench.sites.borrow().difference(&reached).cloned().collect();
    assert!(missed.is_empty(), "never sent: {missed:?}");
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
