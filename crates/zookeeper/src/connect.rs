//! From a configuration to a session.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tenure_core::{Error, ErrorKind, Result, now};
use tenure_tls::{Tls, pem, provide};
use zookeeper_client::{Client, Connector, Error as Fault, TlsOptions};

use crate::config::ZooKeeperConfig;
use crate::fault::fault;
use crate::words::{Answer, Asker};

pub(crate) const CONNECT: &str = "connect to ZooKeeper";

/// A server that is silent for so long is left for another. A sign of life is sent about once
/// a second, so that the leader's idea of when we were last heard of is never far behind.
const SILENCE: Duration = Duration::from_millis(2500);

/// How long to wait before all servers are tried again, each several times ([`cluster`]).
const PAUSE: Duration = Duration::from_millis(400);

/// Opens a session of this length, or whatever the servers make of it.
pub(crate) async fn open(config: &ZooKeeperConfig, life: Duration) -> Result<Client> {
    if config.servers.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, CONNECT, "name at least one server"));
    }
    let connector = connector(config, life)?;
    let cluster = cluster(config);
    let attempt = || {
        let (connector, cluster) = (connector.clone(), cluster.as_str());
        async move {
            match config.tls {
                Some(_) => connector.secure_connect(cluster).await,
                None => connector.connect(cluster).await,
            }
        }
    };
    let give_up = now() + config.timeout;
    let mut failed = Fault::Timeout;
    let mut attempts = FuturesUnordered::from_iter([attempt()]);
    loop {
        let left = give_up.since(now());
        if left.is_zero() {
            return Err(explain(config, failed).await);
        }
        let outcome = tokio::time::timeout(left.min(hedge(config)), attempts.next()).await;
        match outcome {
            Ok(Some(Ok(client))) => return Ok(client),
            Ok(Some(Err(error @ Fault::AuthFailed))) => return Err(fault(CONNECT, error)),
            Ok(Some(Err(error))) => {
                failed = error;
                tokio::time::sleep(PAUSE).await;
            }
            // It was silent, and is left to go on: another attempt begins with another server.
            Ok(None) | Err(_) => {}
        }
        attempts.push(attempt());
    }
}

/// The servers, as the client library reads them.
///
/// It tries them in any order, and pauses longer each time it has tried all, twice as long as before:
/// with a few servers that is soon longer than anybody waits, or than a lock lasts. Named several
/// times, some server is tried about once a second for half a minute.
fn cluster(config: &ZooKeeperConfig) -> String {
    const NAMES: usize = 20;
    let servers: Vec<_> = config.servers.iter().map(address).collect();
    let times = NAMES.div_ceil(servers.len());
    let named = servers.iter().cycle().take(times * servers.len());
    named.map(String::as_str).collect::<Vec<_>>().join(",")
}

/// How long an attempt may be silent before another is begun beside it. The client library tries
/// servers one after the other, in any order, and waits longer for each than a caller may want to.
fn hedge(config: &ZooKeeperConfig) -> Duration {
    let several = config.servers.len() > 1;
    if several { config.timeout / 8 } else { config.timeout / 2 }
}

/// `host:port`, with the brackets that an address of version 6 needs.
pub(crate) fn address((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn connector(config: &ZooKeeperConfig, life: Duration) -> Result<Connector> {
    let mut connector = Client::connector()
        .with_session_timeout(life)
        .with_connection_timeout(SILENCE)
        .with_fail_eagerly();
    if let (Some(user), Some(password)) = (&config.username, &config.password) {
        connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
    }
    match &config.tls {
        Some(tls) => Ok(connector.with_tls(trust(tls)?)),
        None => Ok(connector),
    }
}

/// Always verifies. Without a provider that the program chose for itself, it is `ring`.
fn trust(tls: &Tls) -> Result<TlsOptions> {
    provide();
    let refused = |error: Fault| {
        let why = format!("{error}: check ca, cert and key");
        Error::new(ErrorKind::Invalid, "set up TLS", why).caused_by(error)
    };
    let Some(ca) = &tls.ca else {
        let why = "name the file with the certificates to trust: ca=";
        return Err(Error::new(ErrorKind::Invalid, "set up TLS", why));
    };
    let options = TlsOptions::new().with_pem_ca(&pem(ca)?).map_err(refused)?;
    match &tls.identity {
        Some((certificate, key)) => {
            options.with_pem_identity(&pem(certificate)?, &pem(key)?).map_err(refused)
        }
        None => Ok(options),
    }
}

/// Why no session could be opened: the client library does not say.
async fn explain(config: &ZooKeeperConfig, failed: Fault) -> Error {
    let asker = match Asker::new(config, config.timeout.min(Duration::from_secs(1))) {
        Ok(asker) => asker,
        Err(error) => return error,
    };
    let asked =
        config.servers.iter().map(|server| async { (address(server), asker.state(server).await) });
    let answers = join_all(asked).await;
    let (kind, why) = reason(&answers, config.tls.is_some());
    Error::new(kind, CONNECT, why).caused_by(failed)
}

/// Why servers that answer like this open no session.
fn reason(answers: &[(String, Answer)], encrypted: bool) -> (ErrorKind, String) {
    let told = answers.iter().map(|(name, answer)| match answer {
        Answer::Serves { .. } => format!("{name} (it serves)"),
        _ => format!("{name} ({})", answer.trouble().unwrap_or("it does not say how it is")),
    });
    let told = told.collect::<Vec<_>>().join(", ");
    let any = |wanted: fn(&Answer) -> bool| answers.iter().any(|(_, answer)| wanted(answer));
    let is_unsure = |answer: &Answer| matches!(answer, Answer::Distrust(_) | Answer::HangsUp);
    let (kind, why, remedy) = if any(|answer| matches!(answer, Answer::Serves { .. })) {
        let why = "no session was opened in time";
        (ErrorKind::Unreachable, why, "check the others, or try again with a longer timeout=")
    } else if any(|answer| *answer == Answer::Idle) {
        let why = "too few servers are up, or they elect a leader";
        (ErrorKind::QuorumLost, why, "check that they run")
    // Who answers over TLS is trusted, and trusts us.
    } else if encrypted && any(is_unsure) && !any(|answer| *answer == Answer::Mute) {
        (ErrorKind::Denied, "TLS failed", "check ca, cert and key, and that the port speaks TLS")
    } else if any(|answer| !matches!(answer, Answer::Silence(_))) {
        let why = "a server takes connections, but opens no session";
        let remedy = "it hangs, too few servers are up, they elect a leader, this machine has too \
                      many connections (maxClientCnxns), or it is the wrong port (TLS: zks://)";
        (ErrorKind::QuorumLost, why, remedy)
    } else {
        (ErrorKind::Unreachable, "no server can be reached", "check that they run")
    };
    (kind, format!("{why}: {told}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_so_often_that_they_are_tried_often() {
        let config = |names: &[&str]| {
            ZooKeeperConfig::new(names.iter().map(|name| ((*name).into(), 7)).collect())
        };
        for servers in [&["h"][..], &["h", "::1"], &["a", "b", "c"], &["h"; 30]] {
            let cluster = cluster(&config(servers));
            let named: Vec<&str> = cluster.split(',').collect();
            assert!(named.len() >= 20, "{cluster}");
            for server in &config(servers).servers {
                let times = named.iter().filter(|name| **name == address(server)).count();
                assert!(times * servers.len() >= named.len(), "each as often as any: {cluster}");
            }
        }
    }

    #[test]
    fn why_no_session_is_opened_is_told_by_what_servers_say() {
        let silence = || Answer::Silence("refused".into());
        let distrust = || Answer::Distrust("expired".into());
        let serves = || Answer::Serves { version: "3.9.3".into(), mode: "leader".into() };
        let cases = [
            (vec![silence(), silence()], ErrorKind::Unreachable, "h0 (refused), h1 (refused)"),
            (vec![silence(), Answer::Idle], ErrorKind::QuorumLost, "h1 (it has no quorum)"),
            (vec![distrust(), Answer::Idle], ErrorKind::QuorumLost, "h0 (expired)"),
            (vec![silence(), distrust()], ErrorKind::Denied, "h1 (expired); check ca"),
            (vec![Answer::HangsUp, distrust()], ErrorKind::Denied, "h0 (it hangs up)"),
            (vec![Answer::HangsUp, silence()], ErrorKind::Denied, "speaks TLS"),
            (vec![Answer::Mute, distrust()], ErrorKind::QuorumLost, "does not say how it is"),
            (vec![Answer::Stuck, silence()], ErrorKind::QuorumLost, "h0 (it takes connections"),
            (vec![Answer::Stuck, distrust()], ErrorKind::Denied, "check ca"),
            (vec![Answer::Idle, serves()], ErrorKind::Unreachable, "longer timeout="),
            (vec![Answer::Stuck, serves()], ErrorKind::Unreachable, "not answer), h1 (it serves)"),
        ];
        for (answers, kind, words) in cases {
            let named = (0..).map(|number: u32| format!("h{number}")).zip(answers);
            let told = reason(&named.collect::<Vec<_>>(), true);
            assert!(told.0 == kind && told.1.contains(words), "{told:?}");
        }
        for answer in [Answer::Mute, Answer::Stuck, Answer::HangsUp] {
            let told = reason(&[("h".into(), answer)], false);
            assert!(told.0 == ErrorKind::QuorumLost && told.1.contains("zks://"), "{told:?}");
        }
    }
}
