//! Releases that a node owes a confirmation of.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_core::store::Moment;
use tokio::sync::oneshot::error::TryRecvError;

use crate::wire::{Command, Connection, Reply};

/// Releases that were sent and not answered, or could not be sent. When the connection is replaced,
/// they go over the new one before anything else: a claim that its owner makes after them comes
/// after them at the node, too.
#[derive(Default)]
pub(super) struct Debts(Mutex<VecDeque<Debt>>);

struct Debt {
    owner: OwnerId,
    release: Command,
    stage: Stage,
    /// By then what it would release has ended by itself.
    until: Moment,
}

/// What takes a claim back.
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

/// Beyond so many, the oldest are left to their TTL.
const MOST: usize = 4096;

impl Debts {
    pub(super) fn add(&self, release: &Release, reply: Option<Reply>, until: Moment) {
        let mut debts = self.0.lock();
        // A node answers in order: what is confirmed is in front.
        while debts.front_mut().is_some_and(Debt::is_paid) || debts.len() >= MOST {
            debts.pop_front();
        }
        let Release { owner, command } = release;
        let stage = reply.into();
        debts.push_back(Debt { owner: *owner, release: command.clone(), stage, until });
    }

    /// The owner asks again, over the connection that its releases went over: they are done before,
    /// or as lost as what it asks now. Sent again later, they would undo it.
    pub(super) fn forgive(&self, owner: OwnerId) {
        self.0.lock().retain(|debt| debt.owner != owner);
    }

    /// Sends over a new connection what the last one has left unconfirmed.
    pub(super) fn send_over(&self, connection: &Connection, now: Moment) {
        let mut debts = self.0.lock();
        debts.retain_mut(|debt| debt.until > now && !debt.is_paid());
        for debt in debts.iter_mut() {
            debt.stage = connection.post(&debt.release).into();
        }
    }

    /// Whether there is anything left to confirm.
    pub(super) fn are_open(&self, now: Moment) -> bool {
        self.0.lock().iter_mut().any(|debt| debt.until > now && !debt.is_paid())
    }
}

impl Debt {
    fn is_paid(&mut self) -> bool {
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
