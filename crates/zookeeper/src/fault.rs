//! What goes wrong with ZooKeeper, in tenure's kinds.

use tenure_core::{Error, ErrorKind};

use crate::wire::{Code, Fault};

/// Turns a fault into tenure's error. `operation` completes "could not …". The effect is unknown
/// unless the call was refused or never sent.
pub(crate) fn fault(operation: &'static str, fault: Fault) -> Error {
    let no_effect = fault.had_no_effect();
    let (kind, why) = explain(&fault);
    let why = why.map_or_else(|| fault.to_string(), |why| format!("{why} ({fault})"));
    let error = Error::new(kind, operation, why).caused_by(fault);
    if no_effect { error } else { error.with_unknown_effect() }
}

fn explain(fault: &Fault) -> (ErrorKind, Option<&'static str>) {
    let code = match fault {
        Fault::Refused(code) => *code,
        Fault::NotConnected | Fault::Over | Fault::Behind | Fault::Silent(_) | Fault::Broken(_) => {
            return (ErrorKind::Unreachable, None);
        }
    };
    let (kind, why) = match code {
        Code::NoAuth => (
            ErrorKind::Denied,
            "the user lacks rights, or has another password: it needs to read, write, create, delete \
             below the prefix",
        ),
        Code::AuthFailed | Code::SaslRequired => (ErrorKind::Denied, "the login was refused"),
        Code::InvalidAcl => (
            ErrorKind::Denied,
            "the nodes' access control list is not valid: does the URL name a user?",
        ),
        Code::QuotaExceeded => (ErrorKind::Full, "a quota is used up: raise it, or delete nodes"),
        Code::NotReadOnly => (ErrorKind::QuorumLost, "the server is read-only: it has no quorum"),
        Code::Unimplemented => {
            (ErrorKind::Unsupported, "the server does not know a call: is it 3.5 or later?")
        }
        Code::NoChildrenForEphemerals => {
            (ErrorKind::Damaged, "a node above is ephemeral: choose another prefix")
        }
        Code::SessionExpired | Code::SessionMoved => {
            (ErrorKind::Unreachable, "the session has ended: try again")
        }
        Code::Throttled => return (ErrorKind::Unreachable, None),
        code if code.is_refusal() => return (ErrorKind::Internal, None),
        _ => return (ErrorKind::Unreachable, None),
    };
    (kind, Some(why))
}
