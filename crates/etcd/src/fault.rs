//! Failures of calls to etcd, as errors of tenure.

use std::error::Error as StdError;

use tenure_core::{Error, ErrorKind};
use tenure_tls::distrust;
use tonic::{Code, ConnectError, Status};

/// What a failed call says about the server that was asked, and about the call's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server was not reached, or serves no such calls: nothing was done, and another one is asked.
    Unsent,
    /// The connection broke, or the server does not know the outcome: the call may have been carried out.
    Doubtful,
    /// The login is not valid any more: log in again.
    LoggedOut,
    /// The server answered with a refusal.
    Refused,
}

pub(crate) fn verdict(status: &Status) -> Verdict {
    let said = status.message();
    if chain(status).any(|cause| cause.is::<ConnectError>()) {
        return Verdict::Unsent;
    }
    // A member that has no vote refuses before it does anything.
    if said.contains("not supported for learner") {
        return Verdict::Unsent;
    }
    // A status that a server sent has no source. A broken connection may have any code: which one
    // depends also on the features of tonic that the program uses.
    if StdError::source(status).is_some() {
        return Verdict::Doubtful;
    }
    match status.code() {
        Code::Unauthenticated => Verdict::LoggedOut,
        Code::InvalidArgument if said.contains("revision of auth store is old") => {
            Verdict::LoggedOut
        }
        // Authentication was enabled after this client connected.
        Code::InvalidArgument if said.contains("user name is empty") => Verdict::LoggedOut,
        // These come from the connection, or from a server that has no leader.
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => Verdict::Doubtful,
        _ => Verdict::Refused,
    }
}

/// Whether a call failed because the lease it named is gone.
pub(crate) fn is_lease_gone(error: &Error) -> bool {
    let status = StdError::source(error).and_then(|cause| cause.downcast_ref::<Status>());
    status.is_some_and(|status| status.message().contains("lease not found"))
}

/// Turns a status of a server or the connection into an [`Error`]. `operation` completes "could not …".
pub(crate) fn fault(operation: &'static str, status: Status) -> Error {
    let verdict = verdict(&status);
    let error = explain(operation, &status);
    let error = error.caused_by(status);
    if verdict == Verdict::Doubtful { error.with_unknown_effect() } else { error }
}

fn explain(operation: &'static str, status: &Status) -> Error {
    let said = status.message();
    if let Some(cause) = chain(status).find_map(tls) {
        let why = format!("TLS failed: {cause}; check `ca`, `cert` and `key`");
        return Error::new(ErrorKind::Denied, operation, why);
    }
    let (kind, why) = match status.code() {
        Code::PermissionDenied => {
            (ErrorKind::Denied, "the user lacks rights: grant readwrite on the whole prefix")
        }
        Code::Unauthenticated => (ErrorKind::Denied, "the login is not valid"),
        Code::InvalidArgument | Code::FailedPrecondition if said.contains("auth") => {
            (ErrorKind::Denied, "the user name or password is wrong, or missing")
        }
        Code::InvalidArgument if said.contains("user name is empty") => {
            (ErrorKind::Denied, "the store asks for a user name and a password")
        }
        Code::ResourceExhausted if said.contains("space") => {
            (ErrorKind::Full, "etcd is out of space: compact, defragment, then disarm the alarm")
        }
        Code::ResourceExhausted => (ErrorKind::Unreachable, "etcd has too much to do"),
        Code::Unavailable if said.contains("leader") || said.contains("timed out") => {
            (ErrorKind::QuorumLost, "too few members are up, or they elect a leader")
        }
        Code::DataLoss => (ErrorKind::Damaged, "etcd says that its data is corrupt"),
        Code::Unimplemented => {
            (ErrorKind::Unsupported, "the server does not know a call: is it etcd 3.4 or later?")
        }
        Code::NotFound | Code::OutOfRange | Code::AlreadyExists => {
            (ErrorKind::Internal, "etcd refused")
        }
        _ => (ErrorKind::Unreachable, "the connection to etcd failed: check that it runs"),
    };
    Error::new(kind, operation, format!("{why} ({})", told(status)))
}

/// The message of the innermost cause: the outer ones only say that there was one.
fn told(status: &Status) -> String {
    let mut told = status.message().to_owned();
    for cause in chain(status).skip(1) {
        told = cause.to_string();
    }
    told
}

fn chain(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(status as &(dyn StdError + 'static)), |cause| (*cause).source())
}

/// Why TLS failed, if it did.
fn tls(cause: &(dyn StdError + 'static)) -> Option<String> {
    // Of an error after the handshake, HTTP/2 keeps only the text.
    let late = || Some(cause.to_string()).filter(|said| said.contains("fatal alert"));
    distrust(cause).or_else(late)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::Effect;

    use super::*;

    #[test]
    fn a_connection_that_breaks_leaves_the_outcome_unknown_whatever_the_reason() {
        // In a program that uses tonic's servers too, a connection that the server closes for too
        // many pings has the second of these.
        for code in [Code::Internal, Code::ResourceExhausted, Code::Unknown] {
            let mut status = Status::new(code, "h2 protocol error");
            status.set_source(Arc::new(std::io::Error::other("closed")));
            let error = fault("acquire", status);
            assert_eq!(error.effect(), Effect::Unknown, "{error}");
            assert!(error.is_transient(), "{error}");
        }
        assert_eq!(verdict(&Status::internal("Missing response message.")), Verdict::Doubtful);
        let busy = Status::new(Code::ResourceExhausted, "etcdserver: too many requests");
        assert_eq!(fault("acquire", busy).effect(), Effect::None);
    }

    #[test]
    fn a_login_follows_when_authentication_was_enabled_meanwhile() {
        let said = "etcdserver: user name is empty";
        assert_eq!(verdict(&Status::new(Code::InvalidArgument, said)), Verdict::LoggedOut);
    }

    #[test]
    fn a_learner_has_done_nothing_and_another_server_is_asked() {
        let said = "etcdserver: rpc not supported for learner";
        // Releases differ in the code.
        for code in [Code::Unavailable, Code::FailedPrecondition] {
            let refused = Status::new(code, said);
            assert_eq!(verdict(&refused), Verdict::Unsent);
            assert_eq!(fault("acquire", refused).effect(), Effect::None);
        }
    }
}
