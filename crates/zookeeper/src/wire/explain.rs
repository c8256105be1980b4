//! Why no session could be opened, in an error that names each server and what it did.

use tenure_core::{Error, ErrorKind};

use super::dial::Failure;
use super::target::{Target, address};

pub(super) const CONNECT: &str = "connect to ZooKeeper";

/// Why no session could be opened. `failures` are what kept each of the target's servers from it.
pub(super) fn explain(target: &Target, failures: &[Failure]) -> Error {
    if let Some(Failure::Setup(error)) = failures.first() {
        return error.clone();
    }
    let told = target.servers.iter().zip(failures);
    let told = told.map(|(server, failure)| format!("{} ({failure})", address(server)));
    let told = told.collect::<Vec<_>>().join(", ");
    let any = |wanted: fn(&Failure) -> bool| failures.iter().any(wanted);
    let (kind, why, remedy) = if any(|failure| matches!(failure, Failure::Login(_))) {
        (ErrorKind::Denied, "the login was refused", "check the user and the password")
    } else if any(|failure| matches!(failure, Failure::Closed)) {
        let remedy = "check that most of them run, or wait until they have elected a leader; if the \
                      port speaks TLS, use zks://";
        (ErrorKind::QuorumLost, "no server opens a session", remedy)
    } else if any(|failure| matches!(failure, Failure::Untrusted(_) | Failure::NoTls)) {
        (ErrorKind::Denied, "TLS failed", "check ca, cert and key, and that the port speaks TLS")
    } else if any(|failure| matches!(failure, Failure::Mute)) {
        let remedy = "check that they run, that most can reach each other, and that it is the right \
                      port (TLS: zks://)";
        (ErrorKind::QuorumLost, "no server opens a session", remedy)
    } else {
        (ErrorKind::Unreachable, "no server can be reached", "check that they run")
    };
    let error = Error::new(kind, CONNECT, format!("{why}: {told}; {remedy}"));
    match failures.last() {
        Some(failure) => error.caused_by(failure.to_string()),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Code;
    use super::*;

    #[test]
    fn the_error_names_each_server_and_what_it_did() {
        let refused = || Failure::Broken("connection refused".into());
        let untrusted = || Failure::Untrusted("expired".into());
        let login = || Failure::Login(Code::AuthFailed);
        let setup = || Failure::Setup(Error::new(ErrorKind::Invalid, "set up TLS", "no such file"));
        let cases = [
            (
                [refused(), Failure::Silent],
                ErrorKind::Unreachable,
                "h:1 (connection refused), h:2 (no",
            ),
            ([refused(), Failure::Closed], ErrorKind::QuorumLost, "h:2 (it closes the connection"),
            ([untrusted(), Failure::Closed], ErrorKind::QuorumLost, "has no quorum"),
            (
                [refused(), Failure::Mute],
                ErrorKind::QuorumLost,
                "h:2 (it takes the connection, but",
            ),
            ([untrusted(), Failure::Mute], ErrorKind::Denied, "h:1 (expired)"),
            ([refused(), Failure::NoTls], ErrorKind::Denied, "speaks TLS"),
            ([Failure::Closed, login()], ErrorKind::Denied, "the login was refused"),
            ([setup(), setup()], ErrorKind::Invalid, "no such file"),
        ];
        let target = Target {
            servers: vec![("h".into(), 1), ("h".into(), 2)],
            tls: None,
            login: None,
            timeout: Duration::from_secs(1),
        };
        for (failures, kind, words) in cases {
            let error = explain(&target, &failures);
            assert!(error.kind() == kind && error.to_string().contains(words), "{error}");
        }
    }
}
