//! Locks on one Redis server.

use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::task::JoinHandle;

use super::redis_link::{Link, Reply};
use super::{Algorithm, Bench, Held, Hold, client_of, owner_id, poll};
use crate::steps::Steps;

/// Which of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `SETNX`, then `EXPIRE`; released by a script that compares the owner.
    SetnxExpire,
    /// Acquired and released by scripts that are called by their hash alone.
    Script,
    /// The lock's value is the time when it ends, by the clock of its client; `GETSET` takes over.
    GetSet,
    /// `SET NX PX`, released by `DEL`.
    BlindDel,
    /// `SET NX PX`, released by `GET`, a comparison in the client, and `DEL`.
    GetDel,
    /// `INCR`: the client that gets 1 holds the lock.
    Incr,
    /// `WATCH`, `GET`, `MULTI`, `SET PX`, `EXEC`, and the same for the release.
    Watch,
    /// `SET NX PX`, renewed by a watchdog for as long as the process lives.
    Watchdog,
    /// Redisson's plain lock: a hash with a count for its owner, taken, renewed by a watchdog and released by the
    /// scripts of Redisson. The owner is the client, so that it may take the lock again. A waiter asks again and again
    /// here, and does not listen for the message of a release.
    Redisson,
    /// A list: the client whose id is its first element holds the lock.
    List,
}

const TAKE: &str = "if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then \
    redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end return 0";

const GIVE_BACK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const REDISSON_TAKE: &str = "if ((redis.call('exists', KEYS[1]) == 0) or \
    (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then redis.call('hincrby', KEYS[1], ARGV[2], 1); \
    redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; return redis.call('pttl', KEYS[1]);";

const REDISSON_RENEW: &str = "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then \
    redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;";

const REDISSON_GIVE_BACK: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); if (counter > 0) then \
    redis.call('pexpire', KEYS[1], ARGV[2]); return 0; else redis.call('del', KEYS[1]); \
    redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;";

/// A client of one of the algorithms.
pub(crate) struct RedisSpecimen(Rc<Inner>);

struct Inner {
    kind: Kind,
    link: Link,
    steps: Rc<Steps>,
    /// The hashes of the scripts to take and to give back, loaded once.
    scripts: tokio::sync::OnceCell<[String; 2]>,
    /// The id that all attempts of the client have, in a list and in Redisson's hash.
    fixed_id: std::cell::OnceCell<String>,
}

struct RedisHold {
    inner: Rc<Inner>,
    lock: String,
    value: String,
    watchdog: Option<JoinHandle<()>>,
}

impl RedisSpecimen {
    pub(crate) fn new(kind: Kind, bench: &Bench) -> Self {
        let link = Link::to(bench.servers.first().map_or("", String::as_str));
        let steps = Rc::clone(&bench.steps);
        let (scripts, fixed_id) = (tokio::sync::OnceCell::new(), std::cell::OnceCell::new());
        Self(Rc::new(Inner { kind, link, steps, scripts, fixed_id }))
    }
}

#[async_trait(?Send)]
impl Algorithm for RedisSpecimen {
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>> {
        poll(wait, async || {
            let value = self.0.attempt(lock, ttl).await?;
            let hold = |value| {
                let (inner, lock) = (Rc::clone(&self.0), lock.to_owned());
                let mut hold = RedisHold { inner, lock, value, watchdog: None };
                if matches!(hold.inner.kind, Kind::Watchdog | Kind::Redisson) {
                    hold.watchdog = Some(tokio::task::spawn_local(hold.renewal(ttl)));
                }
                Box::new(hold) as Hold
            };
            Ok(value.map(hold))
        })
        .await
    }

    async fn holder(&self, lock: &str) -> io::Result<Option<String>> {
        let Inner { kind, link, .. } = &*self.0;
        let value = match kind {
            Kind::List => link.call(&["LINDEX", lock, "0"]).await?,
            Kind::Redisson => match link.call(&["HKEYS", lock]).await? {
                Reply::Many(owners) => owners.into_iter().next().unwrap_or(Reply::Nil),
                other => other,
            },
            _ => link.call(&["GET", lock]).await?,
        };
        Ok(value.text().map(|value| match kind {
            Kind::GetSet | Kind::Incr => String::new(),
            _ => client_of(&value),
        }))
    }
}

impl RedisHold {
    /// A watchdog. Redisson's renews the lock of its owner, the other one that of any client.
    fn renewal(&self, ttl: Duration) -> impl Future<Output = ()> + use<> {
        let (inner, lock, owner) = (Rc::clone(&self.inner), self.lock.clone(), self.value.clone());
        async move {
            let millis = ttl.as_millis().to_string();
            loop {
                tokio::time::sleep(ttl / 3).await;
                let renewal: &[&str] = match inner.kind {
                    Kind::Redisson => &["EVAL", REDISSON_RENEW, "1", &lock, &millis, &owner],
                    _ => &["PEXPIRE", &lock, &millis],
                };
                let _late = inner.link.call(renewal).await;
            }
        }
    }
}

impl Inner {
    /// One attempt. Returns the value that the lock has now, if it is held.
    async fn attempt(&self, lock: &str, ttl: Duration) -> io::Result<Option<String>> {
        let (millis, mine) = (ttl.as_millis().to_string(), owner_id(&self.steps));
        let got = match self.kind {
            Kind::SetnxExpire => {
                let got = self.link.call(&["SETNX", lock, &mine]).await?.int() == 1;
                if got {
                    self.steps.reach("between").await;
                    self.link.call(&["PEXPIRE", lock, &millis]).await?;
                }
                got
            }
            Kind::Script => {
                let [take, _] = self.scripts().await?;
                self.link.call(&["EVALSHA", take, "1", lock, &mine, &millis]).await?.int() == 1
            }
            Kind::BlindDel | Kind::GetDel | Kind::Watchdog => {
                self.link.call(&["SET", lock, &mine, "NX", "PX", &millis]).await?.is_ok()
            }
            Kind::Incr => {
                let got = self.link.call(&["INCR", lock]).await?.int() == 1;
                if got {
                    self.steps.reach("between").await;
                    self.link.call(&["PEXPIRE", lock, &millis]).await?;
                }
                got
            }
            Kind::Watch => {
                self.swap(lock, &Reply::Nil, &["SET", lock, &mine, "PX", &millis]).await?
            }
            Kind::Redisson => {
                let mine = self.fixed_id.get_or_init(|| mine);
                let call = ["EVAL", REDISSON_TAKE, "1", lock, &millis, mine];
                return Ok((self.link.call(&call).await? == Reply::Nil).then(|| mine.clone()));
            }
            Kind::GetSet => return self.attempt_getset(lock, ttl).await,
            Kind::List => {
                let mine = self.fixed_id.get_or_init(|| mine);
                let place = self.link.call(&["LPOS", lock, mine]).await?;
                if place == Reply::Nil {
                    self.link.call(&["RPUSH", lock, mine]).await?;
                    self.steps.reach("between").await;
                    self.steps.reach("last").await;
                }
                let first = self.link.call(&["LINDEX", lock, "0"]).await?;
                return Ok((first.text().as_ref() == Some(mine)).then(|| mine.clone()));
            }
        };
        Ok(got.then_some(mine))
    }

    /// The five steps: `SETNX` with the time when the lock ends; if it is taken, `GET`; if that time is over,
    /// `GETSET`; if it returns the same time, the lock is mine; if not, another was faster.
    async fn attempt_getset(&self, lock: &str, ttl: Duration) -> io::Result<Option<String>> {
        let millis =
            |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let (start, ttl) = (millis(SystemTime::now()), ttl.as_millis());
        let end = (start + ttl).to_string();
        if self.link.call(&["SETNX", lock, &end]).await?.int() == 1 {
            self.steps.reach("between").await;
            return Ok(Some(end));
        }
        let Some(before) = self.link.call(&["GET", lock]).await?.text() else { return Ok(None) };
        if before.parse::<u128>().is_ok_and(|ends| ends > millis(SystemTime::now())) {
            return Ok(None);
        }
        let replaced = self.link.call(&["GETSET", lock, &end]).await?.text();
        Ok((replaced.as_ref() == Some(&before)).then_some(end))
    }

    /// Runs `change` if the lock's value is `expected` and does not change meanwhile.
    async fn swap(&self, lock: &str, expected: &Reply, change: &[&str]) -> io::Result<bool> {
        self.link.call(&["WATCH", lock]).await?;
        if self.link.call(&["GET", lock]).await? != *expected {
            self.link.call(&["UNWATCH"]).await?;
            return Ok(false);
        }
        self.steps.reach(if *expected == Reply::Nil { "between" } else { "checked" }).await;
        self.link.call(&["MULTI"]).await?;
        self.link.call(change).await?;
        self.steps.reach("last").await;
        Ok(self.link.call(&["EXEC"]).await? != Reply::Nil)
    }

    async fn scripts(&self) -> io::Result<&[String; 2]> {
        let load = async |script| {
            let hash = self.link.call(&["SCRIPT", "LOAD", script]).await?.text();
            hash.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        self.scripts.get_or_try_init(async || Ok([load(TAKE).await?, load(GIVE_BACK).await?])).await
    }
}

#[async_trait(?Send)]
impl Held for RedisHold {
    async fn release(self: Box<Self>) -> io::Result<bool> {
        let Self { inner, lock, value, watchdog } = *self;
        if let Some(watchdog) = watchdog {
            watchdog.abort();
        }
        let (link, lock) = (&inner.link, &*lock);
        let mine = Reply::Text(value.clone());
        match inner.kind {
            Kind::SetnxExpire | Kind::Watchdog => {
                Ok(link.call(&["EVAL", GIVE_BACK, "1", lock, &value]).await?.int() == 1)
            }
            Kind::Script => {
                let [_, give_back] = inner.scripts().await?;
                Ok(link.call(&["EVALSHA", give_back, "1", lock, &value]).await?.int() == 1)
            }
            Kind::Redisson => {
                let channel = format!("redisson_lock__channel:{{{lock}}}");
                let call = ["EVAL", REDISSON_GIVE_BACK, "2", lock, &channel, "0", "30000", &value];
                Ok(link.call(&call).await?.int() == 1)
            }
            Kind::BlindDel | Kind::Incr => Ok(link.call(&["DEL", lock]).await?.int() == 1),
            Kind::GetDel | Kind::GetSet => {
                if link.call(&["GET", lock]).await? != mine {
                    return Ok(false);
                }
                inner.steps.reach("checked").await;
                Ok(link.call(&["DEL", lock]).await?.int() == 1)
            }
            Kind::Watch => inner.swap(lock, &mine, &["DEL", lock]).await,
            Kind::List => Ok(link.call(&["LREM", lock, "1", &value]).await?.int() == 1),
        }
    }
}
