//! What goes wrong with Redis, in tenure's kinds.

use rustis::{ErrorKind as Kind, RedisError, RedisErrorKind as Code};
use tenure_core::{Error, ErrorKind};

use crate::rights;

/// Turns the client library's error into ours. `operation` completes "could not …".
pub(crate) fn fault(operation: &'static str, error: rustis::Error) -> Error {
    let answered = matches!(error.kind(), Kind::Redis(_));
    let fault = unmade(operation, error);
    // Whatever it was that broke the connection: the call may have been carried out before.
    if answered { fault } else { fault.with_unknown_effect() }
}

/// As [`fault`], of a connection over which nothing was asked yet.
pub(crate) fn unmade(operation: &'static str, error: rustis::Error) -> Error {
    match error.kind() {
        Kind::Redis(reply) => refused(operation, reply),
        Kind::Tls(_) | Kind::InvalidDnsName(_) => {
            let why = format!("TLS failed: {error}; check `ca`, `cert` and `key`");
            Error::new(ErrorKind::Denied, operation, why)
        }
        Kind::IO(cause) if cause.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            let why = format!("TLS failed: {cause}; check `ca`, `cert` and `key`");
            Error::new(ErrorKind::Denied, operation, why)
        }
        Kind::Sentinel(why) => {
            let why = format!("Sentinel names no master to use: {why}; check the service name");
            Error::new(ErrorKind::Unreachable, operation, why)
        }
        _ => {
            let why = format!("the connection to Redis failed: {error}; check that it runs");
            Error::new(ErrorKind::Unreachable, operation, why)
        }
    }
}

/// The server answered with an error. Outside a script, it executed nothing.
fn refused(operation: &'static str, reply: &RedisError) -> Error {
    let said = reply.description();
    let (kind, why) = match &reply.kind {
        Code::NoAuth | Code::WrongPass => {
            (ErrorKind::Denied, "the user name or password is wrong, or missing")
        }
        Code::NoPerm => (ErrorKind::Denied, "the user lacks rights (the README has the ACL)"),
        Code::WrongType => {
            (ErrorKind::Damaged, "a key of another type has the lock's name: rename one of them")
        }
        Code::OutOfMemory => (ErrorKind::Full, "the server is out of memory: give it more"),
        Code::MisConf => (ErrorKind::Full, "the server cannot save its data: look at its disk"),
        Code::Readonly => {
            (ErrorKind::Unreachable, "this server is a replica now: a failover is under way")
        }
        Code::Loading | Code::MasterDown | Code::NoMasterLink => {
            (ErrorKind::Unreachable, "the server is not ready yet: it loads or replicates")
        }
        Code::Busy => (ErrorKind::Unreachable, "a script blocks the server: SCRIPT KILL ends it"),
        Code::ClusterDown | Code::TryAgain | Code::Moved { .. } | Code::Ask { .. } => {
            (ErrorKind::Unreachable, "the Cluster is being changed, or a part of it is down")
        }
        Code::Other if said.starts_with("NOREPLICAS") => {
            (ErrorKind::Unreachable, "too few replicas follow the master (min-replicas-to-write)")
        }
        _ if said.contains("The user executing the script") => {
            let why = format!("the user lacks rights: grant {} ({said})", rights::of_scripts());
            return Error::new(ErrorKind::Denied, operation, why);
        }
        Code::Err if said.contains("DB index is out of range") => {
            (ErrorKind::Invalid, "there is no such database number")
        }
        Code::Err if said.contains("nknown subcommand") || said.contains("unknown command") => {
            (ErrorKind::Unsupported, "the server does not know a command: it is too old")
        }
        _ => (ErrorKind::Internal, "the server refused"),
    };
    let error = Error::new(kind, operation, format!("{why} ({} {said})", reply.kind));
    // A script that fails has done what comes before the failure.
    if said.contains("script:") { error.with_unknown_effect() } else { error }
}
