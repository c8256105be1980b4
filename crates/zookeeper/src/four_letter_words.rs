//! Four-letter words: what a server reports without a session.

use std::io;
use std::time::Duration;

use tenure_core::Result;
use tenure_tls::{Tls, TlsConnector, distrust, secure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::ZooKeeperConfig;
use crate::wire::address;

/// The state of one server, as far as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Serves {
        version: String,
        mode: String,
    },
    /// It is there, and has no quorum.
    Idle,
    /// It answers, but not this word.
    Mute,
    /// It takes connections, and answers nothing.
    Stuck,
    /// It takes connections, and ends them.
    HangsUp,
    /// It is there, and one side does not trust the other.
    Distrust(String),
    /// It cannot be reached.
    Silence(String),
}

impl Answer {
    /// Why the server opens no session, where that is known.
    pub(crate) fn fault(&self) -> Option<&str> {
        match self {
            Self::Serves { .. } | Self::Mute => None,
            Self::Idle => Some("it has no quorum"),
            Self::Stuck => Some("it takes connections, but does not answer"),
            Self::HangsUp => Some("it hangs up"),
            Self::Distrust(why) | Self::Silence(why) => Some(why),
        }
    }
}

/// Asks servers for words.
pub(crate) struct Asker {
    tls: Option<TlsConnector>,
    limit: Duration,
}

impl Asker {
    /// Waits for each server for at most `limit`.
    pub(crate) fn new(config: &ZooKeeperConfig, limit: Duration) -> Result<Self> {
        let tls = config.tls.as_ref().map(Tls::connector).transpose()?;
        Ok(Self { tls, limit })
    }

    /// The state of a server.
    pub(crate) async fn state(&self, server: &(String, u16)) -> Answer {
        self.ask(server, "srvr").await.map_or_else(|answer| answer, |said| state(&said))
    }

    /// What a server answers to a word, or why it does not.
    pub(crate) async fn ask(&self, server: &(String, u16), word: &str) -> Result<String, Answer> {
        let reached = tokio::time::timeout(self.limit, TcpStream::connect(address(server))).await;
        let socket = match reached {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(Answer::Silence(error.to_string())),
            Err(_) => return Err(Answer::Silence("no reply".into())),
        };
        let said = async {
            match &self.tls {
                Some(tls) => hear(secure(tls, &server.0, socket).await?, word).await,
                None => hear(socket, word).await,
            }
        };
        match tokio::time::timeout(self.limit, said).await {
            Ok(Ok(said)) if said.is_empty() => Err(Answer::HangsUp),
            Ok(Ok(said)) => Ok(said),
            Ok(Err(error)) => Err(distrust(&error).map_or(Answer::HangsUp, Answer::Distrust)),
            Err(_) => Err(Answer::Stuck),
        }
    }
}

async fn hear(mut stream: impl AsyncRead + AsyncWrite + Unpin, word: &str) -> io::Result<String> {
    stream.write_all(word.as_bytes()).await?;
    stream.flush().await?;
    let mut said = Vec::new();
    // ZooKeeper does not answer more than this.
    let heard = stream.take(65_536).read_to_end(&mut said).await;
    // Over TLS, servers end the connection without a close notification.
    if said.is_empty() {
        heard?;
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
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
    }
}
