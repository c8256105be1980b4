//! What the servers report.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::{LockName, Result};

use crate::engine::ZooKeeperEngine;
use crate::four_letter_words::{Answer, Asker};
use crate::names::numbers_given;
use crate::session::ZooKeeperSession;
use crate::wire::{Acl, Exists, GetAcl, GetChildren, GetData, address};

/// What is known of the ensemble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What each server that the store knows answers.
    pub(crate) servers: Vec<(String, Answer)>,
    /// How many servers vote; `None` if the user may not read it.
    pub(crate) voters: Option<usize>,
    /// How long the session for the default TTL lasts.
    pub(crate) life: Duration,
    /// The strictest of all servers'.
    pub(crate) settings: Option<Settings>,
    /// Whether some servers let a session last longer than others.
    pub(crate) uneven: bool,
    /// Whether every client may delete the locks; `None` if there are none yet.
    pub(crate) open: Option<bool>,
    pub(crate) logs_in: bool,
    pub(crate) encrypted: bool,
    /// The lock that has used most numbers, and how many.
    pub(crate) numbers: Option<(String, i64)>,
}

/// The configured times of a server.
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

/// The node that lists the voting servers.
const VOTERS: &str = "/zookeeper/config";

const DIAGNOSE: &str = "diagnose ZooKeeper";

pub(crate) async fn collect(engine: &ZooKeeperEngine) -> Result<Facts> {
    let session = engine.sessions.any(DIAGNOSE).await?;
    let config = &engine.config;
    let asker = Asker::new(config, config.timeout)?;
    let (mut servers, mut settings) = (Vec::new(), Vec::new());
    for server in &config.servers {
        let answer = asker.state(server).await;
        if let Answer::Serves { .. } = answer {
            settings.extend(asker.ask(server, "conf").await.ok().and_then(|said| times(&said)));
        }
        servers.push((address(server), answer));
    }
    let text = session.wire.send(GetData::new(VOTERS)).await.ok();
    let voters = text.map(|(text, _)| voters(&String::from_utf8_lossy(&text)));
    Ok(Facts {
        servers,
        // A server that is alone names no voters.
        voters: voters.map(|voters| voters.max(1)),
        life: session.wire.life(),
        uneven: settings.iter().any(|one| one.longest != settings[0].longest),
        settings: settings.into_iter().reduce(Settings::stricter),
        open: is_open(engine, &session).await,
        logs_in: config.username.is_some(),
        encrypted: config.tls.is_some(),
        numbers: numbers(engine, &session).await,
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

async fn is_open(engine: &ZooKeeperEngine, session: &ZooKeeperSession) -> Option<bool> {
    let path = engine.layout.folder().to_owned();
    let (acl, _) = session.wire.send(GetAcl { path }).await.ok()?;
    let mut world = acl.iter().filter(|one| one.scheme == "world");
    Some(world.any(|one| one.permissions & Acl::DELETE != 0))
}

/// The lock that has used the most numbers.
async fn numbers(engine: &ZooKeeperEngine, session: &ZooKeeperSession) -> Option<(String, i64)> {
    let folder = engine.layout.folder();
    let (children, _) = session.wire.send(GetChildren::new(folder)).await.ok()?;
    let known = children.iter().filter_map(|child| engine.layout.lock_of(child));
    let known: Vec<LockName> = known.take(LOCKS).collect();
    let look = |name: LockName| async move {
        let stat = session.wire.send(Exists::new(engine.layout.lock(&name))).await;
        stat.ok().flatten().map(|stat| (name.to_string(), i64::from(numbers_given(&stat))))
    };
    let looks = stream::iter(known).map(look).buffer_unordered(64);
    let all: Vec<Option<(String, i64)>> = looks.collect().await;
    all.into_iter().flatten().max_by_key(|(_, given)| *given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_voters_are_read() {
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
