//! Failures of Redis as errors of the store contract.

use std::io;

use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::distrust;

use crate::acl;
use crate::config::RedisConfig;
use crate::wire::{Lost, Refusal, Value};

pub(crate) const CONNECT: &str = "connect to Redis";

const LACKS_RIGHTS: &str = "the user lacks rights (docs/engines/redis.md has the ACL)";

/// No reply came: the call may have been carried out. `operation` completes "could not …".
pub(crate) fn lost(operation: &'static str, lost: &Lost) -> Error {
    Error::new(kind_of(lost), operation, lost.to_string()).with_unknown_effect()
}

pub(crate) const fn kind_of(lost: &Lost) -> ErrorKind {
    match lost {
        Lost::Silent(_) | Lost::Broken(_) => ErrorKind::Unreachable,
        Lost::Untrusted(_) => ErrorKind::Denied,
    }
}

/// No server answered within the timeout of a connection.
pub(crate) fn no_answer(config: &RedisConfig) -> Error {
    let (servers, limit) = (config.topology.servers(), config.step_limit());
    let why = format!("no answer from {servers} within {limit:?}: check host, port and firewall");
    Error::new(ErrorKind::Unreachable, CONNECT, why)
}

/// A connection could not be made.
pub(crate) fn not_connected(server: &str, error: io::Error) -> Error {
    if distrust(&error).is_some() || error.kind() == io::ErrorKind::InvalidInput {
        let why = format!("TLS with {server} failed: {error}; check `ca`, `cert` and `key`");
        return Error::new(ErrorKind::Denied, CONNECT, why).caused_by(error);
    }
    let why = format!("{server}: {error}; check that it runs");
    Error::new(ErrorKind::Unreachable, CONNECT, why).caused_by(error)
}

/// The reply, unless the server answered with an error.
pub(crate) fn accepted(operation: &'static str, reply: Value) -> Result<Value> {
    match reply {
        Value::Refusal(refusal) => Err(fault(operation, &refusal)),
        reply => Ok(reply),
    }
}

/// The server answered with an error. Outside a script, it executed nothing.
pub(crate) fn fault(operation: &'static str, refusal: &Refusal) -> Error {
    let said = &*refusal.words;
    let (kind, why) = match &*refusal.code {
        "NOAUTH" | "WRONGPASS" => {
            (ErrorKind::Denied, "the user name or password is wrong, or missing")
        }
        "NOPERM" => (ErrorKind::Denied, LACKS_RIGHTS),
        "EXECABORT" if said.contains("NOPERM") => (ErrorKind::Denied, LACKS_RIGHTS),
        "DENIED" => (ErrorKind::Denied, "the server takes only local clients, or wants a password"),
        "WRONGTYPE" => (
            ErrorKind::Damaged,
            "a key of another type has the name of one of the lock's keys: rename it",
        ),
        "OOM" => (ErrorKind::Full, "the server is out of memory: give it more"),
        "MISCONF" => (ErrorKind::Full, "the server cannot save its data: look at its disk"),
        "READONLY" => {
            (ErrorKind::Unreachable, "this server is a replica now: a failover is under way")
        }
        "LOADING" | "MASTERDOWN" => {
            (ErrorKind::Unreachable, "the server is not ready yet: it loads or replicates")
        }
        "UNBLOCKED" => (ErrorKind::Unreachable, "this server is no master any more"),
        "ERR" if said.contains("max number of clients") => {
            (ErrorKind::Unreachable, "the server has too many clients: raise its maxclients")
        }
        "BUSY" => (ErrorKind::Unreachable, "a script blocks the server: SCRIPT KILL ends it"),
        "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => {
            (ErrorKind::Unreachable, "the Cluster is being changed, or a part of it is down")
        }
        "NOREPLICAS" => {
            (ErrorKind::Unreachable, "too few replicas follow the master (min-replicas-to-write)")
        }
        // The words of servers before 7.2, and since.
        _ if said.contains("The user executing the script")
            || said.contains("ACL failure in script") =>
        {
            let why = format!("the user lacks rights: grant {} ({said})", acl::of_scripts());
            return Error::new(ErrorKind::Denied, operation, why).with_unknown_effect();
        }
        "CROSSSLOT" => (ErrorKind::Invalid, "this is a node of a Cluster: use redis+cluster://"),
        "ERR" if said.contains("cluster support disabled") => {
            (ErrorKind::Invalid, "this server is no node of a Cluster: use redis://")
        }
        "ERR" if said.contains("'SENTINEL'") => {
            (ErrorKind::Invalid, "this server is no Sentinel: name the Sentinels, or use redis://")
        }
        "ERR" if said.contains("'EVALSHA'") || said.contains("'SCRIPT'") => {
            (ErrorKind::Invalid, "this server runs no scripts: is it a Sentinel?")
        }
        "ERR" if said.contains("scripting engine") => (
            ErrorKind::Unsupported,
            "the server has no Lua engine: load Valkey's Lua module, or use a build that has it",
        ),
        "ERR" if said.contains("not an integer") || said.contains("would overflow") => {
            (ErrorKind::Damaged, "the key of the last token holds no token: delete it")
        }
        "ERR" if said.contains("AUTH") => {
            (ErrorKind::Denied, "the user name or password is wrong, or the server wants none")
        }
        "ERR" if said.contains("DB index is out of range") => {
            (ErrorKind::Invalid, "there is no such database number")
        }
        "NOPROTO" => (ErrorKind::Unsupported, "the server is too old: it must be 6.2 or later"),
        "ERR" if said.contains("nknown subcommand") || said.contains("unknown command") => {
            (ErrorKind::Unsupported, "the server does not know a command: it is too old")
        }
        _ => (ErrorKind::Internal, "the server refused"),
    };
    let error = Error::new(kind, operation, format!("{why} ({refusal})"));
    // A script that fails has carried out everything before the failure.
    if said.contains("script:") || said.starts_with("Error running script") {
        error.with_unknown_effect()
    } else {
        error
    }
}
