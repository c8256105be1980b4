//! The algorithms: specimens, which are here to break, and tenure's locks.

use std::io;
use std::time::Duration;

use crate::client::Options;
use crate::real::Tenure;
use crate::specimens::{
    Algorithm, Bench, OneNode, PutIfAbsent, RedisKind, RedisSpecimen, TextbookRedlock,
};

/// The servers that an algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// One Redis server.
    Redis,
    /// A Redis Cluster.
    Cluster,
    /// A Redis master and replicas with Sentinels.
    Sentinel,
    /// Five independent Redis servers.
    Redlock,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
    /// None: a directory.
    Local,
}

impl Family {
    /// Which program its servers lack on this machine, and which Debian package has it. `None` if they can be
    /// started.
    pub fn missing(self) -> Option<String> {
        let (programs, package): (&[&str], _) = match self {
            Self::Redis | Self::Cluster | Self::Sentinel | Self::Redlock => {
                (&["redis-server"], "redis-server")
            }
            Self::Etcd => (&["etcd"], "etcd-server"),
            Self::ZooKeeper => {
                (&["java", "/usr/share/java/zookeeper.jar"], "zookeeper and default-jre-headless")
            }
            Self::Local => return None,
        };
        let program = programs.iter().find(|program| !tenure_testkit::is_installed(program))?;
        Some(format!("{program} is not installed: Debian has it in {package}"))
    }

    /// Whether the lock is one key on one Redis server.
    pub(crate) fn is_one_redis(self) -> bool {
        self == Self::Redis
    }

    /// A TTL that ends soon, and that the servers keep.
    pub(crate) fn short_ttl(self) -> Duration {
        match self {
            Self::Etcd | Self::ZooKeeper => Duration::from_secs(2),
            _ => Duration::from_secs(1),
        }
    }
}

/// How an algorithm learns that the lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It asks again and again.
    Polls,
    /// It stands in line, and asks again and again.
    Line,
    /// It is told, with all others.
    Watches,
    /// It is told when it is its turn.
    Queues,
    /// It asks again and again, beside the news that it gets.
    Hints,
}

/// An algorithm.
#[derive(Debug)]
pub struct Info {
    /// Its name on the command line.
    pub id: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The servers that it needs.
    pub family: Family,
    /// Whether it is here to break.
    pub is_specimen: bool,
    pub(crate) has_tokens: bool,
    pub(crate) waiting: Waiting,
    /// Points at which a client can be held: `between` the commands of an acquire, `checked` in a release.
    pub(crate) points: &'static [&'static str],
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Redis(RedisKind),
    Redlock { at_once: bool, with_tokens: bool },
    PutIfAbsent,
    OneNode,
    Tenure { scheme: &'static str, query: &'static str },
}

impl Info {
    /// A client of the algorithm.
    pub(crate) async fn client(
        &self,
        bench: &Bench,
        options: &Options,
    ) -> io::Result<Box<dyn Algorithm>> {
        Ok(match self.make {
            Make::Redis(kind) => Box::new(RedisSpecimen::new(kind, bench)),
            Make::Redlock { at_once, with_tokens } => {
                Box::new(TextbookRedlock::new(bench, at_once, with_tokens))
            }
            Make::PutIfAbsent => Box::new(PutIfAbsent::new(bench)),
            Make::OneNode => Box::new(OneNode::new(bench)),
            Make::Tenure { .. } => {
                let url = self.url(&bench.servers, &options.url).unwrap_or_default();
                let tenure = Tenure::connect(&url, self.has_tokens, bench.steps.client()).await?;
                match options.max_hold {
                    Some(limit) => Box::new(tenure.with_max_hold(Duration::from_millis(limit))),
                    None => Box::new(tenure),
                }
            }
        })
    }

    /// The URL of its store on these servers, with more options. `None` for a specimen.
    pub(crate) fn url(&self, servers: &[String], options: &str) -> Option<String> {
        let Make::Tenure { scheme, query } = self.make else { return None };
        let path = if self.family == Family::Sentinel { "/main" } else { "" };
        let query: Vec<&str> = [query, options].into_iter().filter(|it| !it.is_empty()).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        Some(format!("{scheme}{}{path}{mark}{}", servers.join(","), query.join("&")))
    }

    /// Whether its holder renews the lock.
    pub(crate) fn renews(&self) -> bool {
        !self.is_specimen
            || matches!(self.make, Make::Redis(RedisKind::Watchdog | RedisKind::Redisson))
    }

    /// Whether it calls scripts by their hash.
    pub(crate) fn uses_scripts(&self) -> bool {
        matches!(self.make, Make::Redis(RedisKind::Script))
            || (!self.is_specimen
                && !matches!(self.family, Family::Etcd | Family::ZooKeeper | Family::Local))
    }

    /// Whether a grant waits for replicas.
    pub(crate) fn waits_for_replicas(&self) -> bool {
        matches!(self.make, Make::Tenure { query, .. } if query.contains("replicas="))
    }
}

/// All algorithms.
pub fn all() -> &'static [Info] {
    ALL
}

/// The algorithm of this name.
pub fn find(id: &str) -> Option<&'static Info> {
    ALL.iter().find(|info| info.id == id)
}

const fn redis(id: &'static str, title: &'static str, kind: RedisKind) -> Info {
    let points: &[&str] = match kind {
        RedisKind::SetnxExpire | RedisKind::Incr => &["between"],
        RedisKind::GetSet => &["between", "checked"],
        RedisKind::Watch => &["between", "checked", "last"],
        RedisKind::GetDel => &["checked"],
        RedisKind::List => &["between", "last"],
        RedisKind::Script | RedisKind::BlindDel | RedisKind::Watchdog | RedisKind::Redisson => &[],
    };
    Info {
        id,
        title,
        family: Family::Redis,
        is_specimen: true,
        has_tokens: false,
        waiting: if matches!(kind, RedisKind::List) { Waiting::Line } else { Waiting::Polls },
        points,
        make: Make::Redis(kind),
    }
}

const fn redlock(id: &'static str, title: &'static str, at_once: bool, with_tokens: bool) -> Info {
    Info {
        id,
        title,
        family: Family::Redlock,
        is_specimen: true,
        has_tokens: with_tokens,
        waiting: Waiting::Polls,
        points: if at_once { &[] } else { &["between"] },
        make: Make::Redlock { at_once, with_tokens },
    }
}

const fn watcher(id: &'static str, title: &'static str, family: Family, make: Make) -> Info {
    let waiting = Waiting::Watches;
    let points: &[&str] = match family {
        Family::Etcd => &["between", "last"],
        _ => &["between"],
    };
    Info { id, title, family, is_specimen: true, has_tokens: false, waiting, points, make }
}

const fn tenure(
    id: &'static str,
    title: &'static str,
    family: Family,
    scheme: &'static str,
    query: &'static str,
) -> Info {
    let waiting = match family {
        Family::Redlock => Waiting::Hints,
        _ => Waiting::Queues,
    };
    let make = Make::Tenure { scheme, query };
    Info { id, title, family, is_specimen: false, has_tokens: true, waiting, points: &[], make }
}

const UNFENCED: Info = Info {
    has_tokens: false,
    ..tenure(
        "redis-unfenced",
        "tenure, Redis, fencing=off",
        Family::Redis,
        "redis://",
        "fencing=off",
    )
};

const REDISSON: Info = Info {
    waiting: Waiting::Watches,
    ..tenure(
        "redis-redisson",
        "tenure, Redis, dialect=redisson",
        Family::Redis,
        "redis://",
        "dialect=redisson",
    )
};

static ALL: &[Info] = &[
    redis("setnx-expire", "SETNX, then EXPIRE", RedisKind::SetnxExpire),
    redis("script", "SETNX and PEXPIRE in a script", RedisKind::Script),
    redis("getset", "GETSET of a timestamp", RedisKind::GetSet),
    redis("blind-del", "SET NX PX, DEL", RedisKind::BlindDel),
    redis("get-del", "SET NX PX, GET, DEL", RedisKind::GetDel),
    redis("incr", "INCR", RedisKind::Incr),
    redis("watch", "WATCH, MULTI, EXEC", RedisKind::Watch),
    redis("watchdog", "SET NX PX, with a watchdog", RedisKind::Watchdog),
    redis("redisson", "Redisson's plain lock", RedisKind::Redisson),
    redis("list", "a list as queue", RedisKind::List),
    redlock("redlock-sequential", "textbook Redlock, one by one", false, false),
    redlock("redlock-parallel", "textbook Redlock, in parallel", true, false),
    redlock("redlock-incr", "textbook Redlock, largest INCR as token", true, true),
    watcher("zk-one-node", "ZooKeeper, one node", Family::ZooKeeper, Make::OneNode),
    watcher("etcd-put-if-absent", "etcd, put if absent", Family::Etcd, Make::PutIfAbsent),
    tenure("redis", "tenure, Redis", Family::Redis, "redis://", ""),
    UNFENCED,
    tenure("redis-replicas", "tenure, Redis, replicas=1", Family::Redis, "redis://", "replicas=1"),
    REDISSON,
    tenure("cluster", "tenure, Redis Cluster", Family::Cluster, "redis+cluster://", ""),
    tenure("sentinel", "tenure, Redis Sentinel", Family::Sentinel, "redis+sentinel://", ""),
    tenure("redlock", "tenure, Redlock", Family::Redlock, "redlock://", ""),
    tenure("etcd", "tenure, etcd", Family::Etcd, "etcd://", ""),
    tenure("zookeeper", "tenure, ZooKeeper", Family::ZooKeeper, "zk://", ""),
    tenure("local", "tenure, local", Family::Local, "local:", ""),
];
