//! Servers that compare and delete by themselves (Valkey 9, Redis 8.4), and servers that do not.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::servers::{Moving, addresses, client, hand_over_by_push, said, single};
use parking_lot::Mutex;
use tenure_core::Client;
use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, Store, WaitPolicy};
use tenure_redis::{ACL, ACL_DELIFEQ, RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, RedisCluster, RedisServer, VALKEY_9, eventually};
use tenure_trials::claim;

const TTL: Duration = Duration::from_secs(60);

fn valkey(arguments: &[&str], test: &str) -> Option<RedisServer> {
    let start = || RedisServer::start_other(&VALKEY_9, arguments).unwrap();
    (!VALKEY_9.is_missing(test)).then(start)
}

/// How often the server was asked for a command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let figures = server.command(&["INFO", "commandstats"]).unwrap();
    let line = figures.lines().find_map(|line| {
        line.trim().strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")
    });
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

async fn hold(store: &RedisStore) -> Claim {
    let held = claim("a", TTL);
    assert!(matches!(
        store.claim(&held, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    held
}

/// Renews until the renewal has a connection of its own. Copies of it on the connection of all other calls
/// have been carried out by then.
async fn renewed(store: &RedisStore, held: &Claim, by_command: impl Fn() -> bool) {
    let over_its_own = || async {
        assert_eq!(store.renew(held).await.unwrap(), Renewal::Renewed);
        by_command()
    };
    assert!(eventually(GENEROUS, over_its_own).await, "no renewal by a command");
    // A reply on that connection follows all that was sent before.
    assert_eq!(store.release(&claim("a", TTL)).await.unwrap(), Released::NotHeld);
}

fn unfenced(mut config: RedisConfig) -> RedisConfig {
    config.fencing = false;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_9_releases_and_renews_a_free_lock_without_a_script() {
    let Some(server) = valkey(&[], "a free lock without a script") else { return };
    let config = single(server.port());
    for config in [config.clone(), unfenced(config)] {
        let store = RedisStore::connect(config).await.unwrap();
        let held = hold(&store).await;
        let by_set = || calls(&server, "set");
        let before = by_set();
        server.command(&["PEXPIRE", "tenure:a", "20000"]).unwrap();
        renewed(&store, &held, || by_set() > before).await;
        let left: u64 = said(&server, &["PTTL", "tenure:a"]).parse().unwrap();
        assert!(left > 20_000, "the term was not extended: {left}");
        let (deletes, scripts) = (calls(&server, "delifeq"), calls(&server, "evalsha"));
        assert_eq!(store.release(&held).await.unwrap(), Released::Released);
        assert_eq!(said(&server, &["EXISTS", "tenure:a"]), "0");
        assert_eq!(calls(&server, "delifeq"), deletes + 1);
        assert_eq!(calls(&server, "evalsha"), scripts);
        // What is not held is not renewed, nor made anew.
        assert_eq!(store.renew(&held).await.unwrap(), Renewal::Lost);
        assert_eq!(store.release(&held).await.unwrap(), Released::NotHeld);
        assert_eq!(said(&server, &["EXISTS", "tenure:a"]), "0");
    }
}

/// Where the holder's key is when the holder renews and releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Still at the node that gives the slot away.
    AtTheSource,
    /// At the node that takes the slot in: the source answers `ASK`.
    AtTheTarget,
    /// The slot has moved for good: the source answers `MOVED`.
    Moved,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_of_valkey_9_moves_a_lock_is_renewed_and_released_without_a_script() {
    if VALKEY_9.is_missing("a slot of Valkey 9 that moves") {
        return;
    }
    let cluster = RedisCluster::start_other(&VALKEY_9).unwrap();
    let config = RedisConfig::new(Topology::Cluster { nodes: addresses(&cluster.addresses()) });
    let sum = |command: &str| -> u64 { cluster.nodes().iter().map(|it| calls(it, command)).sum() };
    for stage in [Stage::AtTheSource, Stage::AtTheTarget, Stage::Moved] {
        let store = RedisStore::connect(config.clone()).await.unwrap();
        let held = hold(&store).await;
        let before = sum("set");
        renewed(&store, &held, || sum("set") > before).await;
        let mut moving = Some(Moving::start(&cluster, "tenure:a"));
        if stage != Stage::AtTheSource {
            assert!(moving.as_ref().unwrap().left_behind() > 0);
        }
        if stage == Stage::Moved {
            moving.take().unwrap().finish().await;
        }
        let (scripts, renewals, deletes) = (sum("evalsha"), sum("set"), sum("delifeq"));
        assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed, "{stage:?}");
        assert!(sum("set") > renewals, "{stage:?}: not renewed by SET");
        assert_eq!(store.release(&held).await.unwrap(), Released::Released, "{stage:?}");
        assert!(sum("delifeq") > deletes, "{stage:?}: not released by DELIFEQ");
        assert_eq!(sum("evalsha"), scripts, "{stage:?}");
        if let Some(moving) = moving {
            moving.finish().await;
        }
        // Neither node has kept it.
        let next = hold(&store).await;
        assert_eq!(store.release(&next).await.unwrap(), Released::Released, "{stage:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_valkey_9_get_renewals_and_releases_made_without_a_script() {
    let arguments = ["--repl-diskless-sync-delay", "0"];
    let Some(master) = valkey(&arguments, "replicas of Valkey 9") else { return };
    let port = master.port().to_string();
    let replica = valkey(&["--replicaof", "127.0.0.1", &port], "replicas of Valkey 9").unwrap();
    let online = || async { said(&master, &["INFO", "replication"]).contains("state=online") };
    assert!(eventually(GENEROUS, online).await);
    let mut config = single(master.port());
    config.replicas = 1;
    let store = RedisStore::connect(config).await.unwrap();
    let held = hold(&store).await;
    let before = calls(&master, "set");
    renewed(&store, &held, || calls(&master, "set") > before).await;
    said(&master, &["PEXPIRE", "tenure:a", "20000"]);
    let waits = calls(&master, "wait");
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
    assert_eq!(calls(&master, "wait"), waits + 1, "the renewal was not confirmed");
    // A renewal that counts has reached the replica.
    let left: u64 = said(&replica, &["PTTL", "tenure:a"]).parse().unwrap();
    assert!(left > 20_000, "{left}");
    let deletes = calls(&master, "delifeq");
    assert_eq!(store.release(&held).await.unwrap(), Released::Released);
    assert_eq!(calls(&master, "delifeq"), deletes + 1);
    let gone = || async { said(&replica, &["EXISTS", "tenure:a"]) == "0" };
    assert!(eventually(GENEROUS, gone).await, "the replica has kept the lock");
}

/// A waiter's mark changes the value, so the script hands the lock over.
async fn contended(one: &Client, other: &Client) {
    hand_over_by_push(one, other, "contended").await;
    hand_over_by_push(one, one, "contended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_valkey_9_a_waiter_gets_the_lock_that_is_released() {
    let Some(server) = valkey(&[], "a waiter on Valkey 9") else { return };
    let config = single(server.port());
    contended(&client(&config).await, &client(&config).await).await;
    let waiting = claim("a", TTL);
    let [store, other] = [(); 2].map(|()| RedisStore::connect(config.clone()));
    let (store, other) = (store.await.unwrap(), other.await.unwrap());
    let held = hold(&store).await;
    // The claim's script has set it, too.
    let before = calls(&server, "set");
    renewed(&store, &held, || calls(&server, "set") > before).await;
    let queued = other.claim(&waiting, WaitPolicy::queue(TTL)).await.unwrap();
    let ClaimOutcome::Queued(place) = queued else { panic!("{queued:?}") };
    // A renewal must not wipe out the mark.
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
    assert_eq!(store.release(&held).await.unwrap(), Released::Released);
    let outcome = tokio::time::timeout(GENEROUS, other.wait(&waiting, &place)).await.unwrap();
    assert!(matches!(outcome.unwrap(), ClaimOutcome::Granted(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_evicted_is_neither_renewed_nor_released() {
    let Some(server) = valkey(&[], "an eviction on Valkey 9") else { return };
    let store = RedisStore::connect(single(server.port())).await.unwrap();
    let held = hold(&store).await;
    // The claim's script has set it, too.
    let before = calls(&server, "set");
    renewed(&store, &held, || calls(&server, "set") > before).await;
    said(&server, &["SET", "tenure:a", "theirs"]);
    assert_eq!(store.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&held).await.unwrap(), Released::NotHeld);
    assert_eq!(said(&server, &["GET", "tenure:a"]), "theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_right_to_delete_by_value_releases_by_script() {
    let Some(server) = valkey(&[], "rights on Valkey 9") else { return };
    let mut config = single(server.port());
    (config.username, config.password) = (Some("locker".into()), Some("secret".into()));
    for (rights, native) in [(ACL.to_owned(), 0), (format!("{ACL} {ACL_DELIFEQ}"), 1)] {
        let words = ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter();
        let words: Vec<&str> = words.chain(rights.split_whitespace()).collect();
        assert_eq!(said(&server, &words), "OK");
        let store = RedisStore::connect(config.clone()).await.unwrap();
        for _ in 0..3 {
            let held = hold(&store).await;
            assert_eq!(store.release(&held).await.unwrap(), Released::Released);
            assert_eq!(said(&server, &["EXISTS", "tenure:a"]), "0");
        }
        assert_eq!(calls(&server, "delifeq"), native * 3);
    }
}

/// After a server of Debian 12 has refused these commands once, it is sent the same commands as before
/// they existed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_these_commands_is_asked_for_each_only_once() {
    if tenure_testkit::lacks("redis-server", "a server without these commands") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let between = Between::start(server.port(), |command| command);
    let store = RedisStore::connect(single(between.port)).await.unwrap();
    for _ in 0..2 {
        let held = hold(&store).await;
        assert_eq!(store.release(&held).await.unwrap(), Released::Released);
    }
    assert_eq!(between.take().matches("DELIFEQ").count(), 1);
    for _ in 0..5 {
        let held = hold(&store).await;
        renewed(&store, &held, || true).await;
        assert_eq!(store.release(&held).await.unwrap(), Released::Released);
    }
    let said = between.take();
    let words = |word: &str| said.split(' ').filter(|it| *it == word).count();
    assert_eq!((words("DELIFEQ"), words("DELEX"), words("SET")), (0, 0, 0), "{said}");
}

/// Redis 8.4 is not available here. This stub accepts its documented spelling, and has a server of
/// version 7.0 do the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stub_with_the_spelling_of_redis_8_4_releases_and_renews_without_our_scripts() {
    if tenure_testkit::lacks("redis-server", "the spelling of Redis 8.4") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let between = Between::start(server.port(), |command| {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let rewritten = match words[..] {
            ["DELEX", key, "IFEQ", value] => {
                let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                              return redis.call('DEL', KEYS[1]) end return 0";
                vec!["EVAL", script, "1", key, value]
            }
            ["SET", key, value, "IFEQ", old, "PX", ttl] => {
                let script = "if redis.call('GET', KEYS[1]) == ARGV[2] then \
                              return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end \
                              return false";
                vec!["EVAL", script, "1", key, value, old, ttl]
            }
            _ => return command,
        };
        rewritten.into_iter().map(str::to_owned).collect()
    });
    let config = single(between.port);
    for config in [config.clone(), unfenced(config.clone())] {
        let store = RedisStore::connect(config).await.unwrap();
        // The first refusal is of Valkey's spelling.
        let first = hold(&store).await;
        assert_eq!(store.release(&first).await.unwrap(), Released::Released);
        let held = hold(&store).await;
        renewed(&store, &held, || between.take().contains("SET")).await;
        between.take();
        assert_eq!(store.release(&held).await.unwrap(), Released::Released);
        let said = between.take();
        assert!(said.contains("DELEX") && !said.contains("EVALSHA"), "{said}");
        assert_eq!(server.command(&["EXISTS", "tenure:a"]).unwrap(), "0");
        assert_eq!(store.release(&held).await.unwrap(), Released::NotHeld);
    }
    contended(&client(&config).await, &client(&config).await).await;
}

type Rewrite = fn(Vec<String>) -> Vec<String>;

/// A proxy that records the commands of a client and rewrites some. Its threads end with the connections.
struct Between {
    port: u16,
    noted: Arc<Mutex<String>>,
}

impl Between {
    fn start(server: u16, rewrite: Rewrite) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, noted) = (listener.local_addr().unwrap().port(), Arc::default());
        let notes = Arc::clone(&noted);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The server may have ended with the test.
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
                let (mut replies, mut back) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ended = std::io::copy(&mut replies, &mut back);
                    let _ended = back.shutdown(Shutdown::Both);
                });
                let notes = Arc::clone(&notes);
                std::thread::spawn(move || pass(&client, server, rewrite, &notes));
            }
        });
        Self { port, noted }
    }

    /// The commands since the last call, each by the words that are in capitals.
    fn take(&self) -> String {
        std::mem::take(&mut *self.noted.lock())
    }
}

fn pass(client: &TcpStream, mut server: TcpStream, rewrite: Rewrite, notes: &Mutex<String>) {
    let mut client = BufReader::new(client);
    while let Some(command) = read_command(&mut client) {
        let capitals = |word: &&String| word.bytes().all(|byte| byte.is_ascii_uppercase());
        for word in command.iter().filter(capitals).filter(|word| !word.is_empty()) {
            *notes.lock() += &format!("{word} ");
        }
        let command = rewrite(command);
        let mut bytes = format!("*{}\r\n", command.len());
        for word in &command {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        if server.write_all(bytes.as_bytes()).is_err() {
            break;
        }
    }
    let _ended = server.shutdown(Shutdown::Both);
}

fn read_command(client: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |kind: char, client: &mut dyn BufRead| {
        let mut line = String::new();
        client.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(kind)?.parse::<usize>().ok()
    };
    let words = number('*', client)?;
    let mut command = Vec::new();
    for _ in 0..words {
        let length = number('$', client)?;
        let mut word = vec![0; length + 2];
        client.read_exact(&mut word).ok()?;
        word.truncate(length);
        command.push(String::from_utf8(word).unwrap());
    }
    Some(command)
}
