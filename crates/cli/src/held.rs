//! A lock that is held while a command runs: by us, or by the `tenure run` around us.

use std::time::Duration;

use tenure::{Guard, LockName, LossReason, OwnerId, Result, Token};

use crate::nested::Entered;

/// A lock that is held.
#[derive(Debug)]
pub(crate) enum Held {
    /// By this process.
    Own(Guard),
    /// By the `tenure run` that this process runs under.
    Entered(Entered),
}

impl Held {
    pub(crate) fn name(&self) -> &LockName {
        match self {
            Self::Own(guard) => guard.name(),
            Self::Entered(entered) => entered.name(),
        }
    }

    pub(crate) fn owner(&self) -> OwnerId {
        match self {
            Self::Own(guard) => guard.owner(),
            Self::Entered(entered) => entered.owner(),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Own(guard) => guard.token(),
            Self::Entered(entered) => entered.token(),
        }
    }

    /// As [`Guard::ttl`].
    pub(crate) fn ttl(&self) -> Duration {
        match self {
            Self::Own(guard) => guard.ttl(),
            Self::Entered(entered) => entered.ttl(),
        }
    }

    /// As [`Guard::remaining`].
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Own(guard) => guard.remaining(),
            Self::Entered(entered) => entered.remaining(),
        }
    }

    /// As [`Guard::is_valid`].
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Own(guard) => guard.is_valid(),
            Self::Entered(entered) => entered.is_valid(),
        }
    }

    /// As [`Guard::danger`].
    pub(crate) async fn danger(&self) {
        match self {
            Self::Own(guard) => guard.danger().await,
            Self::Entered(entered) => entered.danger().await,
        }
    }

    /// As [`Guard::lost`].
    pub(crate) async fn lost(&self) -> LossReason {
        match self {
            Self::Own(guard) => guard.lost().await,
            Self::Entered(entered) => entered.lost().await,
        }
    }

    /// Gives the lock back, if it is ours to give; fails if it was no longer held.
    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Own(guard) => guard.release().await,
            Self::Entered(entered) => entered.leave(),
        }
    }
}
