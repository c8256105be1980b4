//! Every script, call by call: which commands it sends, and with what.
//!
//! The scripts run on a real server with `redis.call` wrapped: a Lua number among the arguments of a
//! command is an error (see `mint.lua`), each place in the sources that sends a command is recorded
//! when it does, and so is how much work a run is for the server.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tenure_testkit::{RedisServer, lacks};

use super::assemble;

const KEYS: [&str; 7] = ["k", "q", "w", "p", "e", "t", "audit"];

/// A server, and the scripts as they run on it.
struct Bench {
    server: RedisServer,
    line: &'static str,
    sites: RefCell<BTreeSet<String>>,
}

const GUARD: &str = "
local real = redis
local function guarded(how)
  return function(site, ...)
    local words = {...}
    for _, word in ipairs(words) do
      if type(word) ~= 'string' then
        error('a Lua ' .. type(word) .. ' among the arguments of ' .. words[1] .. ' at ' .. site, 0)
      end
    end
    local reply = real[how](...)
    real.call('SADD', 'sites', site)
    real.call('INCRBY', 'work', tostring(#words + (type(reply) == 'table' and #reply or 0)))
    return reply
  end
end
local redis = { call = guarded('call'), pcall = guarded('pcall') }
";

macro_rules! sources {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../lua/", $name, ".lua")))),*]
    };
}

const SINGLE: [(&str, &str); 11] = sources!(
    "take" "claim" "refresh" "release" "renew" "alone" "evict" "inspect" "mint" "engine" "line"
);
const QUORUM: [(&str, &str); 8] = sources!(
    "quorum/claim" "quorum/renew" "release" "evict" "inspect" "mint" "engine" "quorum/line"
);

impl Bench {
    fn start(line: &'static str) -> Self {
        let server = RedisServer::start(&[]).unwrap();
        Self { server, line, sites: RefCell::default() }
    }

    /// A source in which every place that sends a command has a name.
    fn marked(&self, name: &str) -> String {
        let (_, source) = SINGLE.iter().chain(&QUORUM).find(|(other, _)| *other == name).unwrap();
        let mut parts = source.split("call(");
        let mut marked = parts.next().unwrap().to_owned();
        for (place, part) in parts.enumerate() {
            let site = format!("{name}:{}", place + 1);
            marked.push_str(&format!("call('{site}', {part}"));
            self.sites.borrow_mut().insert(site);
        }
        marked
    }

    fn eval(&self, script: &str, keys: &[&str], arguments: &[&str]) -> String {
        let parts = ["mint", "engine", self.line].map(|part| self.marked(part));
        let parts = [&*parts[0], &*parts[1], &*parts[2]];
        let source = format!("{GUARD}{}", assemble(&self.marked(script), "PUBLISH", parts));
        let count = keys.len().to_string();
        let reply =
            self.command(&[&["EVAL", &source, &count], keys, arguments].concat());
        assert!(!reply.starts_with('-'), "{script} {arguments:?}: {reply}");
        reply
    }

    fn command(&self, words: &[&str]) -> String {
        self.server.command(words).unwrap()
    }

    fn take(&self, owner: &str) -> String {
        self.eval("take", &["k", "q", "t"], &[owner, "60000", "1 host label"])
    }

    /// Queues if there is no room; `inbox` may have a listener or not.
    fn claim(&self, owner: &str, kind: &str, lease: &str) -> String {
        let arguments = [owner, kind, "60000", "1 host label", lease, "inbox"];
        self.eval("claim", &KEYS[..6], &arguments)
    }

    fn attempt(&self, owner: &str, kind: &str) -> String {
        self.eval("claim", &KEYS[..6], &[owner, kind, "60000", "1 host label"])
    }

    fn refresh(&self, owners: &[&str]) -> String {
        self.eval("refresh", &KEYS[..6], &[&["5000"], owners].concat())
    }

    fn release(&self, owner: &str) -> String {
        self.eval("release", &KEYS[..6], &[owner])
    }

    fn renew(&self, owner: &str) -> String {
        self.eval("renew", &["k", "p", "e"], &[owner, "90000"])
    }

    fn alone(&self, arguments: &[&str]) -> String {
        self.eval("alone", &["k"], arguments)
    }

    fn evict(&self, owner: &str) -> String {
        self.eval("evict", &KEYS, &[owner, "a record", owner])
    }

    fn inspect(&self) -> String {
        self.eval("inspect", &KEYS[..5], &[])
    }

    /// Empties the server but for what was recorded.
    fn clear(&self) {
        self.command(&[&["DEL"], &KEYS[..]].concat());
    }

    fn missed(&self) -> Vec<String> {
        let reached = self.command(&["SMEMBERS", "sites"]);
        let reached: BTreeSet<String> = reached.lines().map(str::to_owned).collect();
        self.sites.borrow().difference(&reached).cloned().collect()
    }
}

/// Owner ids have 32 digits.
fn id(number: usize) -> String {
    format!("{number:032x}")
}

fn token(reply: &str) -> u64 {
    let word = reply.strip_prefix("granted ").and_then(|rest| rest.split(' ').next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("not granted: {reply}"))
}

/// As a server of those versions left it: eight zeros at its end.
#[test]
fn a_damaged_counter_is_healed_and_tokens_rise_across_it() {
    if lacks("redis-server", "damaged counters") {
        return;
    }
    let bench = Bench::start("line");
    let quorum = Bench::start("quorum/line");
    let vote = |owner: &str, kind: &str| {
        let arguments = [owner, kind, "60000", "1 host label", "1"];
        quorum.eval("quorum/claim", &KEYS[..6], &arguments)
    };
    let takes: [(&Bench, &dyn Fn(&str) -> String); 4] = [
        (&bench, &|owner| bench.take(owner)),
        (&bench, &|owner| bench.attempt(owner, "s 1 0")),
        (&quorum, &|owner| vote(owner, "x 0 0")),
        (&quorum, &|owner| vote(owner, "s 1 0")),
    ];
    for (bench, take) in takes {
        for (stored, above) in [
            ("1.8379184e+15", 1_837_918_400_000_000),
            ("9e+15", 9_000_000_000_000_000),
            ("9007199254740992.0", 9_007_199_254_740_992),
            ("1e+18", 1_000_000_000_000_000_000),
            // Nothing can be read of it: the server's time is above what it may have been.
            ("nonsense", 1_700_000_000_000 * 1024),
            ("", 1_700_000_000_000 * 1024),
        ] {
            bench.clear();
            bench.command(&["SET", "t", stored]);
            let first = token(&take(&id(1)));
            assert!(first > above, "{first} after {stored}");
            bench.command(&["DEL", "k", "p", "e"]);
            let second = token(&take(&id(2)));
            assert!(second > first, "{second} after {first}, after {stored}");
        }
    }
}

/// A Lua number is exact up to 2^53 only; the counter goes on to 2^63.
#[test]
fn tokens_rise_strictly_above_what_a_lua_number_holds() {
    if lacks("redis-server", "tokens above 2^53") {
        return;
    }
    let bench = Bench::start("line");
    for start in [9_007_199_254_740_990_u64, 9_007_199_254_740_992, 1 << 62] {
        bench.clear();
        bench.command(&["SET", "t", &start.to_string()]);
        for number in 1..5 {
            assert_eq!(token(&bench.take(&id(number as usize))), start + number);
            bench.command(&["DEL", "k"]);
        }
    }
}

/// A quorum's renewal raises the node's counter to the holder's token, and never lowers it.
#[test]
fn a_quorum_renewal_raises_exactly_and_passes_a_damaged_counter() {
    if lacks("redis-server", "renewals on damaged counters") {
        return;
    }
    let quorum = Bench::start("quorum/line");
    let renew = |token: &str| {
        let arguments = [&*id(1), "60000", token];
        quorum.eval("quorum/renew", &["k", "p", "e", "t"], &arguments)
    };
    for (stored, raised) in [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740994", "9007199254740994"),
        ("1.8379184e+15", "9007199254740993"),
        ("nonsense", "9007199254740993"),
        ("1e+18", "1e+18"),
    ] {
        quorum.command(&["SET", "t", stored]);
        quorum.command(&["SET", "k", &format!("{} 1 1 1 host label", id(1))]);
        assert_eq!(renew("9007199254740993"), "1");
        assert_eq!(quorum.command(&["GET", "t"]), raised);
    }
}
