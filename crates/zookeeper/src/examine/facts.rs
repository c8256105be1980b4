//! What the servers say of themselves.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::{LockName, Result};
use zookeeper_client::{Permission, Stat};

use crate::connect::address;
use crate::inner::Inner;
use crate::session::Session;
use crate::words::{Answer, Asker};

/// What is known of the ensemble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What each server that the store knows answers.
    pub(crate) servers: Vec<(String, Answer)>,
    /// How many servers vote; `None` if nobody may know.
    pub(crate) voters: Option<usize>,
    /// How long the session for the default TTL lasts.
    pub(crate) life: Duration,
    /// The strictest of all servers'.
    pub(crate) settings: Option<Settings>,
    /// Whether some servers let a session last longer than others.
    pub(crate) uneven: bool,
    /// Whether everybody may delete the locks; `None` if there are none yet.
    pub(crate) open: Option<bool>,
    pub(crate) logs_in: bool,
    pub(crate) encrypted: bool,
    /// The lock that has used most numbers, and how many.
    pub(crate) numbers: Option<(String, i64)>,
}

/// Times, as a server is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

impl Settings {
    /// What holds on both of two servers.
    fn stricter(self, other: Self) -> Self {
        Self {
            tick: self.tick.max(other.tick),
            shortest: self.shortest.max(other.shortest),
            longest: self.longest.min(other.longest),
        }
    }
}

/// How many locks' numbers are looked at.
const LOCKS: usize = 2_000;

const EXAMINE: &str = "examine ZooKeeper";

pub(crate) async fn collect(inner: &Inner) -> Result<Facts> {
    let session = inner.sessions.any(EXAMINE).await?;
    let asker = Asker::new(&inner.config, inner.config.timeout)?;
    let (mut servers, mut settings) = (Vec::new(), Vec::new());
    for server in &inner.config.servers {
        let answer = asker.state(server).await;
        if let Answer::Serves { .. } = answer {
            settings.extend(asker.ask(server, "conf").await.ok().and_then(|said| times(&said)));
        }
        servers.push((address(server), answer));
    }
    let config = session.answer(session.zk.get_config()).await.ok();
    let voters = config.map(|(text, _)| voters(&String::from_utf8_lossy(&text)));
    Ok(Facts {
        servers,
        // One that is alone names nobody.
        voters: voters.map(|voters| voters.max(1)),
        life: session.life(),
        uneven: settings.iter().any(|one| one.longest != settings[0].longest),
        settings: settings.into_iter().reduce(Settings::stricter),
        open: is_open(inner, &session).await,
        logs_in: inner.config.username.is_some(),
        encrypted: inner.config.tls.is_some(),
        numbers: numbers(inner, &session).await,
    })
}

fn times(said: &str) -> Option<Settings> {
    let field = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.trim().parse().ok()).map(Duration::from_millis)
    };
    let (shortest, longest) = (field("minSessionTimeout")?, field("maxSessionTimeout")?);
    Some(Settings { tick: field("tickTime")?, shortest, longest })
}

fn voters(config: &str) -> usize {
    let servers = config.lines().filter(|line| line.starts_with("server."));
    servers.filter(|line| !line.contains(":observer")).count()
}

async fn is_open(inner: &Inner, session: &Session) -> Option<bool> {
    let acl = session.answer(session.zk.get_acl(inner.keyring.folder())).await;
    let (acl, _) = acl.ok()?;
    let anybody = acl.iter().filter(|one| one.scheme() == "world");
    Some(anybody.into_iter().any(|one| one.permission().has(Permission::DELETE)))
}

async fn numbers(inner: &Inner, session: &Session) -> Option<(String, i64)> {
    let folder = inner.keyring.folder();
    let children = session.answer(session.zk.list_children(folder)).await.ok()?;
    let known = children.iter().filter_map(|child| inner.keyring.lock_of(child));
    let known: Vec<LockName> = known.take(LOCKS).collect();
    let look = |name: LockName| async move {
        let stat = session.answer(session.zk.check_stat(&inner.keyring.lock(&name))).await;
        stat.ok().flatten().map(|stat| (name.to_string(), given(&stat)))
    };
    let looks = stream::iter(known).map(look).buffer_unordered(64);
    let all: Vec<Option<(String, i64)>> = looks.collect().await;
    all.into_iter().flatten().max_by_key(|(_, given)| *given)
}

/// How many numbers a node has given to its children: the server counts every child that comes and
/// every one that goes, and those who are there have not gone.
const fn given(stat: &Stat) -> i64 {
    (stat.cversion as i64 + stat.num_children as i64) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let conf = "clientPort=1\ntickTime=200\nminSessionTimeout=400\nmaxSessionTimeout=4000\n";
        let settings = times(conf).unwrap();
        assert_eq!((settings.tick.as_millis(), settings.longest.as_secs()), (200, 4));
        assert_eq!(times("conf is not executed"), None);
        let other = Settings { longest: settings.longest / 2, ..settings };
        assert_eq!(settings.stricter(other).longest.as_secs(), 2);
        let config = "server.1=h:1:2:participant;0.0.0.0:3\nserver.2=h:4:5:observer\nversion=0";
        assert_eq!(voters(config), 1);
    }
}
