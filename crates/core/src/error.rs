//! Errors that say what happened, what state the lock is in, and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::{LockName, LossReason};

/// The result of tenure's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one of few kinds, and what it means for the lock.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    effect: Effect,
    operation: &'static str,
    lock: Option<LockName>,
    loss: Option<LossReason>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error without effect on the store. `operation` completes "could not …": a verb whose object is
    /// the lock (`acquire`, `wait for`), or a phrase with an object of its own (`connect to Redis`).
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        let (effect, message) = (Effect::None, message.into());
        Self { kind, effect, operation, lock: None, loss: None, message, source: None }
    }

    /// The error of a lock that was lost for this reason.
    pub(crate) fn lost(
        reason: LossReason,
        operation: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { loss: Some(reason), ..Self::new(ErrorKind::Lost, operation, message) }
    }

    /// The same error, but the call may have had its effect all the same.
    #[must_use]
    pub fn with_unknown_effect(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    /// The same error of a call that only reads: whether or not it was carried out, it changed nothing.
    #[must_use]
    pub(crate) fn without_effect(mut self) -> Self {
        self.effect = Effect::None;
        self
    }

    /// The same error, about this lock.
    #[must_use]
    pub fn about(mut self, lock: &LockName) -> Self {
        self.lock = Some(lock.clone());
        self
    }

    /// The same error, with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// What kind of error it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the call that failed may have changed the store.
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// What was being done.
    pub const fn operation(&self) -> &'static str {
        self.operation
    }

    /// The lock it was about, if it was about one.
    pub const fn lock(&self) -> Option<&LockName> {
        self.lock.as_ref()
    }

    /// Why the lock was lost, if the error is that it was ([`ErrorKind::Lost`]) and the reason is known.
    pub const fn loss_reason(&self) -> Option<LossReason> {
        self.loss
    }

    /// Whether the same call may succeed if it is made again a little later.
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::QuorumLost)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.operation)?;
        match &self.lock {
            Some(lock) if has_object(self.operation) => write!(f, " for the lock {lock:?}")?,
            Some(lock) => write!(f, " {lock:?}")?,
            None => {}
        }
        write!(f, ": {}", self.message)?;
        if self.effect == Effect::Unknown {
            f.write_str(" (whether it took effect is unknown)")?;
        }
        Ok(())
    }
}

/// Whether an operation names what it is done to, so that a lock's name after it would be read as that of a
/// server: it has several words and does not end where the lock's name belongs.
fn has_object(operation: &str) -> bool {
    let last = operation.rsplit(' ').next().unwrap_or_default();
    let before_name = ["for", "under", "of", "on", "lock", "cell", "counter", "latch", "barrier"];
    operation.contains(' ') && !before_name.contains(&last)
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kinds of errors, each with what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock is held, and the call does not wait for it. Try later. If this client holds the lock
    /// itself, the message says so and where it was acquired.
    Busy,
    /// The lock was not free within the time the caller gave.
    TimedOut,
    /// The store does not answer. Nothing is known of the lock but what was known before.
    Unreachable,
    /// Too few of the store's servers answer.
    QuorumLost,
    /// The lock was held and is no longer. Stop the work it protected.
    Lost,
    /// A party of the barrier or latch died or left, so the others cannot pass. Repeat the phase; a latch
    /// needs a new name.
    Broken,
    /// Too little of the grant's term was left when it arrived. Ask for a longer TTL.
    LeaseTooShort,
    /// The request makes no sense: a bad name, TTL or number of permits. Correct it.
    Invalid,
    /// The result would be below a counter's floor, or above what a counter can count to. Nothing was
    /// changed.
    OutOfRange,
    /// The store cannot do this.
    Unsupported,
    /// The store does not allow it: permissions or credentials.
    Denied,
    /// The store has no room: a full table or disk. Nothing was changed.
    Full,
    /// What is stored is damaged, or not what tenure writes. Nothing was changed.
    Damaged,
    /// A fault of tenure's own.
    Internal,
}

/// What a failed call did to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing.
    None,
    /// It may have been carried out: the reply was lost.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_not_named_where_the_server_belongs() {
        let name = LockName::new("payouts").unwrap();
        let failed = |operation| Error::new(ErrorKind::Unreachable, operation, "h:1: refused");
        let error = failed("connect to Redis");
        assert_eq!(error.to_string(), "could not connect to Redis: h:1: refused");
        assert_eq!(
            error.about(&name).to_string(),
            "could not connect to Redis for the lock \"payouts\": h:1: refused"
        );
        for operation in ["acquire", "wait for", "finish the work under the lock"] {
            let message = failed(operation).about(&name).to_string();
            assert!(
                message.starts_with(&format!("could not {operation} \"payouts\": ")),
                "{message}"
            );
        }
    }

    #[test]
    fn an_error_says_what_failed_on_which_lock_and_what_is_unknown() {
        let name = LockName::new("orders").unwrap();
        let error = Error::new(ErrorKind::Unreachable, "release", "no reply within 2s");
        let error = error.about(&name).with_unknown_effect().caused_by("broken pipe");
        assert_eq!(
            error.to_string(),
            "could not release \"orders\": no reply within 2s (whether it took effect is unknown)"
        );
        assert_eq!(error.source().unwrap().to_string(), "broken pipe");
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.is_transient());
    }
}
