//! What goes wrong with ZooKeeper, in tenure's kinds.

use tenure_core::{Error, ErrorKind};
use zookeeper_client::Error as Fault;

/// Whether a server answered, and did nothing. If not, the call may have been carried out, or may
/// yet be.
pub(crate) const fn is_refusal(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::NoHosts
            | Fault::BadArguments(_)
            | Fault::NoNode
            | Fault::NoAuth
            | Fault::BadVersion
            | Fault::NoChildrenForEphemerals
            | Fault::NodeExists
            | Fault::NotEmpty
            | Fault::InvalidAcl
            | Fault::AuthFailed
            | Fault::NotReadOnly
            | Fault::NoWatcher
            | Fault::QuotaExceeded
            | Fault::Throttled
            | Fault::MarshallingError
            | Fault::Unimplemented
            | Fault::ReconfigDisabled
    )
}

/// Turns what a server or the client library said into our error. `operation` completes
/// "could not …".
pub(crate) fn fault(operation: &'static str, fault: Fault) -> Error {
    let (kind, why) = match &fault {
        Fault::NoAuth => (
            ErrorKind::Denied,
            "the user lacks rights, or has another password: it needs to read, write, create, delete \
             below the prefix",
        ),
        Fault::AuthFailed => (ErrorKind::Denied, "the login was refused"),
        Fault::InvalidAcl => {
            (ErrorKind::Denied, "the nodes' rights make no sense: is a user named?")
        }
        Fault::QuotaExceeded => (ErrorKind::Full, "a quota is used up: raise it, or delete nodes"),
        Fault::NotReadOnly => (ErrorKind::QuorumLost, "the server is read-only: it has no quorum"),
        Fault::Unimplemented => {
            (ErrorKind::Unsupported, "the server does not know a call: is it 3.5 or later?")
        }
        Fault::Throttled => (ErrorKind::Unreachable, "the server has too much to do"),
        Fault::NoHosts => (ErrorKind::Unreachable, "no server can be reached"),
        Fault::Timeout => (ErrorKind::Unreachable, "no reply in time: check that it runs"),
        Fault::SessionExpired | Fault::SessionMoved | Fault::ClientClosed => {
            (ErrorKind::Unreachable, "the session has ended")
        }
        Fault::NoChildrenForEphemerals => {
            (ErrorKind::Damaged, "a node above is ephemeral: choose another prefix")
        }
        refused if is_refusal(refused) => (ErrorKind::Internal, "ZooKeeper refused"),
        _ => (ErrorKind::Unreachable, "the connection to ZooKeeper failed"),
    };
    let doubtful = !is_refusal(&fault);
    let error = Error::new(kind, operation, format!("{why} ({fault})")).caused_by(fault);
    if doubtful { error.with_unknown_effect() } else { error }
}
