//! What the servers say of themselves.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::{LockName, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Permission, Stat};

use crate::connect::address;
use crate::inner::Inner;
use crate::session::Session;

/// What is known of the ensemble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What each server that the store knows answers.
    pub(crate) servers: Vec<(String, Answer)>,
    /// How many servers vote; `None` if nobody may know.
    pub(crate) voters: Option<usize>,
    /// How long the session for the default TTL lasts.
    pub(crate) life: Duration,
    pub(crate) settings: Option<Settings>,
    /// Whether everybody may delete the locks; `None` if there are none yet.
    pub(crate) open: Option<bool>,
    pub(crate) logs_in: bool,
    pub(crate) encrypted: bool,
    /// The lock that has used most numbers, and how many.
    pub(crate) numbers: Option<(String, i64)>,
}

/// What one server answers, or why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Serves {
        version: String,
        mode: String,
    },
    /// It is there, and has no quorum.
    Idle,
    /// It is there, and does not say how it is.
    Mute,
    Silence(String),
}

/// Times, as a server is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

/// How many locks' numbers are looked at.
const LOCKS: usize = 2_000;

const EXAMINE: &str = "examine ZooKeeper";

pub(crate) async fn collect(inner: &Inner) -> Result<Facts> {
    let session = inner.sessions.any(EXAMINE).await?;
    let (mut servers, mut settings) = (Vec::new(), None);
    for server in &inner.config.servers {
        let address = address(server);
        let word = |word| ask(&address, word, inner.config.timeout);
        let answer = match inner.config.tls {
            // A port with TLS knows no words.
            Some(_) => Answer::Mute,
            None => word("srvr").await.map_or_else(Answer::Silence, |said| state(&said)),
        };
        if settings.is_none() && matches!(answer, Answer::Serves { .. }) {
            settings = word("conf").await.ok().and_then(|said| times(&said));
        }
        servers.push((address, answer));
    }
    let config = session.answer(session.zk.get_config()).await.ok();
    let voters = config.map(|(text, _)| voters(&String::from_utf8_lossy(&text)));
    Ok(Facts {
        servers,
        // One that is alone names nobody.
        voters: voters.map(|voters| voters.max(1)),
        life: session.life(),
        settings,
        open: is_open(inner, &session).await,
        logs_in: inner.config.username.is_some(),
        encrypted: inner.config.tls.is_some(),
        numbers: numbers(inner, &session).await,
    })
}

/// What a server answers to a four-letter word.
async fn ask(address: &str, word: &str, limit: Duration) -> Result<String, String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut said = Vec::new();
        // Whoever answers more than this is no ZooKeeper.
        stream.take(65_536).read_to_end(&mut said).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&said).into_owned())
    };
    match tokio::time::timeout(limit, asked).await {
        Ok(said) => said.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no reply within {limit:?}")),
    }
}

fn state(said: &str) -> Answer {
    let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    if said.contains("not currently serving") {
        return Answer::Idle;
    }
    let Some(mode) = field("Mode: ") else { return Answer::Mute };
    let version = field("Zookeeper version: ").unwrap_or_default();
    let version = version.split(['-', ',', ' ']).next().unwrap_or_default();
    Answer::Serves { version: version.into(), mode: mode.into() }
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
    fn words_are_understood() {
        let said = "Zookeeper version: 3.8.0-1, built on 2022\nZxid: 0x3\nMode: follower\n";
        let serves = Answer::Serves { version: "3.8.0".into(), mode: "follower".into() };
        assert_eq!(state(said), serves);
        let idle = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(state(idle), Answer::Idle);
        let off = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(state(off), Answer::Mute);
        let conf = "clientPort=1\ntickTime=200\nminSessionTimeout=400\nmaxSessionTimeout=4000\n";
        let settings = times(conf).unwrap();
        assert_eq!((settings.tick.as_millis(), settings.longest.as_secs()), (200, 4));
        assert_eq!(times("conf is not executed"), None);
        let config = "server.1=h:1:2:participant;0.0.0.0:3\nserver.2=h:4:5:observer\nversion=0";
        assert_eq!(voters(config), 1);
    }
}
