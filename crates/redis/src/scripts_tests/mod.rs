//! Every script, call by call: which commands it sends, with what, and how many.
//!
//! The scripts run on a real server with `redis.call` wrapped: a Lua number among the arguments of a
//! command is an error (see `mint.lua`), each place in the sources that sends a command is recorded
//! when it does, and so is how much work a run is for the server.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;

use tenure_testkit::{GENEROUS, RedisServer};

use super::assemble;

mod beside;
mod bounds;
mod numbers;
mod tokens;

const KEYS: [&str; 7] = ["k", "q", "w", "p", "e", "t", "audit"];
const GUARD: &str = include_str!("guard.lua");

macro_rules! sources {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../lua/", $name, ".lua")))),*]
    };
}

/// All but those of the dialect of Redisson.
pub(crate) const SOURCES: &[(&str, &str)] = sources!(
    "take" "free" "claim" "refresh" "release" "renew" "downgrade" "single_key" "evict" "inspect" "record"
    "audit" "mint" "engine" "line" "quorum/claim" "quorum/renew" "quorum/line" "cells/add" "cells/swap" "cells/take"
);

/// A server, and the scripts as they run on it. Claims and holders are numbers.
struct Bench {
    server: RedisServer,
    line: &'static str,
    sites: RefCell<BTreeSet<String>>,
}

impl Bench {
    /// One server by itself.
    fn single() -> Self {
        Self::start("line")
    }

    /// One of a quorum.
    fn node() -> Self {
        Self::start("quorum/line")
    }

    fn start(line: &'static str) -> Self {
        let server = RedisServer::start(&[]).unwrap();
        Self { server, line, sites: RefCell::default() }
    }

    fn command(&self, words: &[&str]) -> String {
        self.server.command(words).unwrap()
    }

    /// A source in which every place that sends a command has a name.
    fn marked(&self, name: &str) -> String {
        let (_, source) = SOURCES.iter().find(|(other, _)| *other == name).unwrap();
        let mut parts = source.split("call(");
        let mut marked = parts.next().unwrap().to_owned();
        for (place, part) in parts.enumerate() {
            let command = part.split([',', ')']).next().unwrap().replace('\'', "");
            let site = format!("{name} {} {command}", place + 1);
            marked.push_str(&format!("call('{site}', {part}"));
            self.sites.borrow_mut().insert(site);
        }
        marked
    }

    fn try_eval(&self, script: &str, keys: &[&str], arguments: &[&str]) -> String {
        let parts = ["mint", "engine", self.line, "audit"].map(|part| self.marked(part));
        let parts = parts.each_ref().map(String::as_str);
        let source = format!("{GUARD}{}", assemble(&self.marked(script), "PUBLISH", parts));
        let count = keys.len().to_string();
        self.command(&["DEL", "work"]);
        self.command(&[&["EVAL", &source, &count], keys, arguments].concat())
    }

    fn eval(&self, script: &str, keys: &[&str], arguments: &[&str]) -> String {
        let reply = self.try_eval(script, keys, arguments);
        assert!(!is_error(&reply), "{script} {arguments:?}: {reply}");
        reply
    }

    /// How much the last script was for the server: commands, their arguments and what they returned.
    fn work(&self) -> u64 {
        self.command(&["GET", "work"]).parse().unwrap()
    }

    /// The places that send a command and were not reached so far.
    fn missed(&self) -> Vec<String> {
        let reached = self.command(&["SMEMBERS", "sites"]);
        let reached: BTreeSet<String> = reached.lines().map(str::to_owned).collect();
        self.sites.borrow().difference(&reached).cloned().collect()
    }

    fn take(&self, owner: usize) -> String {
        self.eval("take", &["t", "k", "q"], &[&id(owner), TTL, "1 host label"])
    }

    /// Asks for a lock; queues if there is no room.
    fn claim(&self, owner: usize, kind: &str, inbox: &str) -> String {
        let arguments = [&*id(owner), kind, TTL, "1 host label", LEASE, inbox];
        self.eval("claim", &KEYS[..6], &arguments)
    }

    /// Asks for a lock without queueing.
    fn attempt(&self, owner: usize, kind: &str) -> String {
        self.eval("claim", &KEYS[..6], &[&id(owner), kind, TTL, "1 host label"])
    }

    fn refresh(&self, owners: &[usize]) -> String {
        let owners: Vec<String> = owners.iter().copied().map(id).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        self.eval("refresh", &KEYS[..6], &[&[LEASE], &owners[..]].concat())
    }

    fn release(&self, owner: usize) -> String {
        self.eval("release", &KEYS[..6], &[&id(owner)])
    }

    fn renew(&self, owner: usize) -> String {
        self.eval("renew", &["k", "p", "e"], &[&id(owner), LONGER])
    }

    fn downgrade(&self, owner: usize) -> String {
        self.eval("downgrade", &KEYS[..6], &[&id(owner), LONGER])
    }

    fn evict(&self, owner: &str) -> String {
        self.eval("evict", &KEYS, &[owner, "a record", owner])
    }

    fn record(&self) {
        assert_eq!(self.eval("record", &["audit"], &["a record"]), "1");
    }

    fn inspect(&self, from: [&str; 2]) -> String {
        self.eval("inspect", &KEYS[..5], &from)
    }

    /// Asks a quorum's node for its vote; with `queue`, which has the place's lease and the channel, joins the queue.
    fn vote(&self, owner: usize, kind: &str, queue: &[&str]) -> String {
        let owner = id(owner);
        let arguments = [&[&*owner, kind, TTL, "1 host label", "1"], queue].concat();
        self.eval("quorum/claim", &KEYS[..6], &arguments)
    }

    /// Gives up a node's vote; `place` is `stay` or `leave`.
    fn unvote(&self, owner: usize, place: &str) -> String {
        self.eval("release", &KEYS[..6], &[&id(owner), place])
    }

    fn raise(&self, owner: usize, token: &str) -> String {
        let arguments = [&*id(owner), LONGER, token];
        self.eval("quorum/renew", &["k", "p", "e", "t"], &arguments)
    }

    /// Empties the server but for what was recorded.
    fn clear(&self) {
        self.command(&[&["DEL"], &KEYS[..]].concat());
    }

    /// Queues claims whose places end at `ends`, in ms.
    fn queue(&self, owners: Range<usize>, ends: &str, kind: &str, inbox: &str) {
        let record = format!("{ends} 1 {kind} 60000 {inbox} 1 host label");
        self.many(owners, ["q", "w"], "", &record);
    }

    /// Puts holders into the pool whose terms end at `ends`, in ms.
    fn pool(&self, owners: Range<usize>, ends: &str, kind: &str) {
        let record = format!("1 1 {kind} 60000 1 host label");
        self.many(owners, ["e", "p"], ends, &record);
    }

    /// With `score` empty, the owner's number is its score.
    fn many(&self, owners: Range<usize>, [zset, hash]: [&str; 2], score: &str, record: &str) {
        let script = "for i = ARGV[1], ARGV[2] do
            local owner = string.format('%032x', i)
            redis.call('ZADD', KEYS[1], ARGV[3] == '' and tostring(i) or ARGV[3], owner)
            redis.call('HSET', KEYS[2], owner, ARGV[4])
        end";
        let (first, last) = (owners.start.to_string(), (owners.end - 1).to_string());
        let arguments = [&*first, &*last, score, record];
        let said = self.command(&[&["EVAL", script, "2", zset, hash], &arguments[..]].concat());
        assert_eq!(said, "(nil)");
    }

    fn is_held_by(&self, owner: usize) -> bool {
        self.command(&["GET", "k"]).starts_with(&id(owner))
    }

    fn count(&self, command: &str, key: &str) -> usize {
        self.command(&[command, key]).parse().unwrap()
    }

    /// Listens to a channel until it is dropped.
    fn listen(&self, channel: &str) -> Subscriber {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port())).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        write!(&stream, "SUBSCRIBE {channel}\r\n").unwrap();
        let mut ear = Subscriber(BufReader::new(stream));
        ear.on_message(":1");
        ear
    }
}

struct Subscriber(BufReader<TcpStream>);

impl Subscriber {
    /// Returns when a line with these words is heard.
    fn on_message(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "{words:?} was not heard");
        }
    }
}

/// Whether a reply is an error, and not a negative number.
fn is_error(reply: &str) -> bool {
    reply.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
}

/// Owner ids have 32 digits.
fn id(number: usize) -> String {
    format!("{number:032x}")
}

fn token(reply: &str) -> u64 {
    let word = reply.strip_prefix("granted ").and_then(|rest| rest.split(' ').next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("not granted: {reply}"))
}

/// Terms and places outlast any test, in ms.
const TTL: &str = "3600000";
const LONGER: &str = "7200000";
const LEASE: &str = "600000";

/// Far in the future, in ms.
const LATER: &str = "9000000000000";
