//! Why a call has no reply.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Code;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A server answered that it did not do what was asked.
    Refused(Code),
    /// There is no connection: nothing was sent.
    NotConnected,
    /// The session is over: nothing was sent.
    Over,
    /// The server that was asked has not seen what another one has answered already. Nothing was
    /// changed.
    Behind,
    /// No reply came within this time. The call may have been carried out, or may yet be.
    Silent(Duration),
    /// The connection ended before the reply. The call may have been carried out.
    Broken(Arc<str>),
}

impl Fault {
    /// Whether a server answered, and did nothing.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(code) if code.is_refusal())
    }

    /// Whether the call certainly had no effect: it was refused, never sent, or read too old a state.
    pub(crate) const fn had_no_effect(&self) -> bool {
        self.is_refusal() || matches!(self, Self::NotConnected | Self::Over | Self::Behind)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(f, "ZooKeeper refused: {code}"),
            Self::NotConnected => {
                f.write_str("there is no connection to any ZooKeeper server: check that they run")
            }
            Self::Over => f.write_str("the session with ZooKeeper is over"),
            Self::Behind => f.write_str(
                "the ZooKeeper server is behind the others: check that it can reach them",
            ),
            Self::Silent(limit) => {
                write!(f, "ZooKeeper did not answer within {limit:?}: check that it runs")
            }
            Self::Broken(why) => {
                write!(f, "the connection to ZooKeeper failed: {why}; check that it runs")
            }
        }
    }
}

impl std::error::Error for Fault {}
