//! How holders hear at once that their locks are gone.
//!
//! Every session that claims are made on has one node that is no lock, and watches it. Who takes a
//! lock by force writes into it whose it was. So a hold costs no watch of its own, however many
//! there are. That the session itself has ended, the client library says.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Hold, OwnerId, Result, Token};
use zookeeper_client::{CreateMode, Error as Fault};

use crate::fault::fault;
use crate::inner::Inner;
use crate::session::Session;

/// How many losses are written down: more than anybody takes by force while one look lasts.
const LINES: usize = 100;

/// Before it listens again, when that failed.
const PAUSE: Duration = Duration::from_millis(250);

const LISTEN: &str = "listen for losses";

impl Inner {
    /// Listens for the losses on a session, and clears away what was forgotten there, unless somebody
    /// does already, until it has ended.
    ///
    /// The node is there before anything that is sent later.
    pub(crate) fn attend(self: &Arc<Self>, session: &Arc<Session>) {
        session.attend(|| {
            self.put_canary(session);
            let (inner, session) = (Arc::clone(self), Arc::clone(session));
            let attending = async move {
                tokio::select! {
                    () = inner.listen(&session) => {}
                    () = inner.clear_away(&session) => {}
                }
            };
            self.background.runtime().spawn(attending).abort_handle()
        });
    }

    /// Sends what makes the node. What comes of it, the one who listens finds out.
    pub(crate) fn put_canary(&self, session: &Session) {
        let options = CreateMode::Ephemeral.with_acls(self.acls());
        drop(session.zk.create(&self.keyring.canary(session.id()), b"", &options));
    }

    async fn listen(&self, session: &Session) {
        while !session.is_over() {
            if let Err(error) = self.listen_once(session).await {
                tracing::debug!(%error, "losses are not heard of");
                tokio::time::sleep(PAUSE).await;
            }
        }
        for hold in self.tenants.holds_on(session) {
            self.listeners.lost(hold);
        }
    }

    /// Looks and waits: a watch is set by the same call that sees the node.
    async fn listen_once(&self, session: &Session) -> Result<()> {
        session.ready(LISTEN).await?;
        let canary = self.keyring.canary(session.id());
        match session.answer(session.zk.get_and_watch_data(&canary)).await {
            Ok((said, _, watcher)) => {
                losses(&said).for_each(|hold| self.listeners.lost(hold));
                watcher.changed().await;
                Ok(())
            }
            Err(Fault::NoNode) => {
                self.make_folder(LISTEN, session, self.keyring.folder()).await?;
                self.put_canary(session);
                tokio::time::sleep(PAUSE / 10).await;
                Ok(())
            }
            Err(error) => Err(fault(LISTEN, error)),
        }
    }
}

/// What a canary says that is told of one more loss.
pub(crate) fn with_loss(said: &[u8], owner: &str, token: Option<Token>) -> Vec<u8> {
    let known = String::from_utf8_lossy(said);
    let newest = format!("{owner} {}", token.map_or(0, Token::get));
    let lines = std::iter::once(newest.as_str()).chain(known.lines());
    lines.take(LINES).collect::<Vec<_>>().join("\n").into_bytes()
}

fn losses(said: &[u8]) -> impl Iterator<Item = Hold> {
    let text = std::str::from_utf8(said).unwrap_or_default();
    text.lines().filter_map(|line| {
        let (owner, token) = line.split_once(' ')?;
        let owner: OwnerId = owner.parse().ok()?;
        Some(Hold { owner, token: Some(Token::new(token.parse().ok()?)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_tells_of_the_last_losses_and_of_nothing_it_cannot_read() {
        let owners: Vec<OwnerId> = (0..LINES + 5).map(|_| OwnerId::random()).collect();
        let mut said = b"by hand".to_vec();
        for (token, owner) in (1..).zip(&owners) {
            said = with_loss(&said, &owner.to_string(), Some(Token::new(token)));
        }
        let told: Vec<Hold> = losses(&said).collect();
        assert_eq!(told.len(), LINES);
        let newest = Token::new(owners.len() as u64);
        assert_eq!(told[0], Hold { owner: owners[LINES + 4], token: Some(newest) });
        assert_eq!(losses(&with_loss(b"", "not an owner", None)).count(), 0);
    }
}
