//! Releases that a node has not confirmed.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_core::store::Moment;
use tokio::sync::oneshot::error::TryRecvError;

use crate::wire::{Command, Connection, Reply};

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
    pub(super) fn add(&self, release: &Release, reply: Option<Reply>, until: Moment) {
        let mut unconfirmed = self.0.lock();
        // A node answers in order: confirmed releases are in front.
        while unconfirmed.front_mut().is_some_and(UnconfirmedRelease::is_confirmed)
            || unconfirmed.len() >= MOST
        {
            unconfirmed.pop_front();
        }
        let Release { owner, command } = release;
        let stage = reply.into();
        unconfirmed.push_back(UnconfirmedRelease {
            owner: *owner,
            release: command.clone(),
            stage,
            until,
        });
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

    /// Whether any release is unconfirmed.
    pub(super) fn any_left(&self, now: Moment) -> bool {
        self.0.lock().iter_mut().any(|release| release.until > now && !release.is_confirmed())
    }
}

impl UnconfirmedRelease {
    fn is_confirmed(&mut self) -> bool {
        if let Stage::Sent(reply) = &mut self.stage {
            match reply.try_recv() {
                Ok(Ok(_)) => self.stage = Stage::Confirmed,
                Err(TryRecvError::Empty) => {}
                Ok(Err(_)) | Err(TryRecvError::Closed) => self.stage = Stage::Unsent,
            }
        }
        matches!(self.stage, Stage::Confirmed)
    }
}
