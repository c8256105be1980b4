//! Releases that a node has not confirmed.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_core::store::Moment;
use tokio::sync::oneshot::error::TryRecvError;

use crate::wire::{Command, Connection, Reply, Value};

/// Releases that were sent and not confirmed, or could not be sent. When the connection is replaced, they
/// are sent over the new one before anything else, so that a later claim of the same owner arrives after
/// them.
#[derive(Default)]
pub(super) struct UnconfirmedReleases(Mutex<VecDeque<UnconfirmedRelease>>);

struct UnconfirmedRelease {
    owner: OwnerId,
    release: Command,
    stage: Stage,
    /// By then the hold has expired.
    until: Moment,
}

/// The release of one owner.
pub(super) struct Release {
    pub(super) owner: OwnerId,
    pub(super) command: Command,
}

enum Stage {
    Unsent,
    Sent(Reply),
    /// The server would not carry it out now: it has lost its scripts, or is busy.
    Refused,
    Confirmed,
}

impl From<Option<Reply>> for Stage {
    fn from(reply: Option<Reply>) -> Self {
        reply.map_or(Self::Unsent, Self::Sent)
    }
}

/// The most releases that are kept: older ones are left to their TTL.
const MOST: usize = 4096;

impl UnconfirmedReleases {
    /// Keeps a release until it is confirmed. If it was not sent, or its connection broke while other nodes were
    /// waited for, it is sent over `open`, over which the owner has not claimed yet.
    pub(super) fn add(
        &self,
        release: &Release,
        reply: Option<Reply>,
        until: Moment,
        open: Option<&Connection>,
    ) {
        let mut unconfirmed = self.0.lock();
        // A node answers in order: confirmed releases are in front.
        while unconfirmed.front_mut().is_some_and(UnconfirmedRelease::is_confirmed)
            || unconfirmed.len() >= MOST
        {
            unconfirmed.pop_front();
        }
        let Release { owner, command } = release;
        let (owner, release, stage) = (*owner, command.clone(), reply.into());
        let mut release = UnconfirmedRelease { owner, release, stage, until };
        if !release.is_confirmed() {
            release.send_if_unsent(open);
            unconfirmed.push_back(release);
        }
    }

    /// Forgets the releases of an owner that claims again, over the connection that they were sent over:
    /// they are carried out before the claim, or lost with it. Sent again later, they would undo it.
    pub(super) fn forget_releases_of(&self, owner: OwnerId) {
        self.0.lock().retain(|release| release.owner != owner);
    }

    /// Sends unconfirmed releases over a new connection.
    pub(super) fn resend(&self, connection: &Connection, now: Moment) {
        let mut unconfirmed = self.0.lock();
        unconfirmed.retain_mut(|release| release.until > now && !release.is_confirmed());
        for release in unconfirmed.iter_mut() {
            release.stage = connection.post(&release.release).into();
        }
    }

    /// Whether any release is unconfirmed. Those that the server refused are sent over `open` again, after
    /// `scripts`, which it may have lost.
    pub(super) fn any_left(
        &self,
        now: Moment,
        open: Option<&Connection>,
        scripts: impl FnOnce(&Connection),
    ) -> bool {
        let mut unconfirmed = self.0.lock();
        unconfirmed.retain_mut(|release| release.until > now && !release.is_confirmed());
        let is_refused = |release: &UnconfirmedRelease| matches!(release.stage, Stage::Refused);
        if let Some(open) = open
            && unconfirmed.iter().any(is_refused)
        {
            scripts(open);
            for release in unconfirmed.iter_mut().filter(|release| is_refused(release)) {
                release.stage = open.post(&release.release).into();
            }
        }
        !unconfirmed.is_empty()
    }
}

impl UnconfirmedRelease {
    fn send_if_unsent(&mut self, open: Option<&Connection>) {
        if let (Stage::Unsent, Some(connection)) = (&self.stage, open) {
            self.stage = connection.post(&self.release).into();
        }
    }

    fn is_confirmed(&mut self) -> bool {
        if let Stage::Sent(reply) = &mut self.stage {
            match reply.try_recv() {
                Ok(Ok(Value::Refusal(refusal))) if refusal.code != "NOPERM" => {
                    self.stage = Stage::Refused;
                }
                Ok(Ok(_)) => self.stage = Stage::Confirmed,
                Err(TryRecvError::Empty) => {}
                Ok(Err(_)) | Err(TryRecvError::Closed) => self.stage = Stage::Unsent,
            }
        }
        matches!(self.stage, Stage::Confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Lost, Stream, cmd};
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// A release is sent over the connection that is open by now, unless it is confirmed or on its way.
    #[tokio::test]
    async fn a_release_whose_connection_was_replaced_before_it_was_kept_is_sent_again() {
        let limit = Duration::from_secs(9);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        let stream = Stream::open(&server, limit, None).await.unwrap();
        let connection = Connection::start(stream, limit, None);
        let releases = UnconfirmedReleases::default();
        let until = tenure_core::store::now() + limit;
        let add = |name: &str, reply| {
            let release = Release { owner: OwnerId::random(), command: cmd(name) };
            releases.add(&release, Some(reply), until, Some(&connection));
        };
        let answered = |outcome| {
            let (sender, reply) = oneshot::channel();
            sender.send(outcome).unwrap();
            reply
        };
        add("CONFIRMED", answered(Ok(crate::wire::Value::Integer(1))));
        let (_on_the_way, reply) = oneshot::channel();
        add("AWAITED", reply);
        add("BROKEN", answered(Err(Lost::Broken("it was closed".into()))));
        let (server, mut arrived) = (listener.accept().await.unwrap().0, Vec::new());
        while !arrived.ends_with(b"BROKEN\r\n") {
            server.readable().await.unwrap();
            let mut chunk = [0; 64];
            if let Ok(length) = server.try_read(&mut chunk) {
                assert_ne!(length, 0, "it was closed");
                arrived.extend_from_slice(&chunk[..length]);
            }
        }
        assert_eq!(arrived, b"*1\r\n$6\r\nBROKEN\r\n");
        assert!(releases.any_left(tenure_core::store::now(), None, |_| {}));
    }
}
