//! Servers that do not answer for a while: waiting acquires go on waiting, and entries that an outage
//! leaves behind are removed once.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::common::{client, config, config_of, store};
use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, ResourceRecord};
use tenure_core::store::{ClaimOutcome, Moment, Renewal, Store, WaitPolicy, now};
use tenure_core::{Client, ErrorKind, Guard, Options, Result};
use tenure_etcd::{EtcdConfig, Srv};
use tenure_testkit::{Ensemble, EtcdServer, GENEROUS, Proxy, Way, eventually};
use tenure_trials::outages::{self, CALL_TIMEOUT};
use tenure_trials::{ELECTION, claim, until_waiting};
use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, JoinSet};

fn alone() -> Ensemble<EtcdServer> {
    Ensemble::of(vec![EtcdServer::start(&[]).unwrap()]).unwrap()
}

async fn hasty(addresses: &str) -> Client {
    let mut config = config(addresses);
    config.timeout = CALL_TIMEOUT;
    client(&config).await
}

on_servers! {
    async fn a_waiter_outlasts_a_long_outage() {
        outages::a_waiter_outlasts_a_long_outage(alone(), hasty).await;
    }
}

on_servers! {
    async fn an_acquire_that_begins_in_a_short_outage_succeeds() {
        outages::an_acquire_that_begins_in_a_short_outage_succeeds(alone(), hasty).await;
    }
}

on_servers! {
    async fn the_engine_gives_up_on_a_silent_server_before_the_client() {
        outages::the_engine_gives_up_on_a_silent_server_before_the_client(alone(), hasty).await;
    }
}

/// A name server that answers every question with one server on this machine, until it is dropped.
struct NameServer {
    address: SocketAddr,
    port: Arc<AtomicU16>,
    task: JoinHandle<()>,
}

impl NameServer {
    async fn start(port: u16) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let port = Arc::new(AtomicU16::new(port));
        let named = Arc::clone(&port);
        let task = tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                let mut reply = Packet::parse(&question[..length]).unwrap().into_reply();
                let (name, target) =
                    (reply.questions[0].qname.clone(), Name::new("localhost").unwrap());
                let port = named.load(Ordering::Relaxed);
                let srv = RData::SRV(SRV { priority: 1, weight: 0, port, target });
                reply.answers.push(ResourceRecord::new(name, CLASS::IN, 60, srv));
                socket.send_to(&reply.build_bytes_vec().unwrap(), from).await.unwrap();
            }
        });
        Self { address, port, task }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

on_servers! {
    /// The port is another one, as after a move of the cluster. The guard's lease goes on.
    async fn the_srv_records_are_read_again_when_all_servers_fail() {
        let server = EtcdServer::start(&[]).unwrap();
        let (before, after) =
            (Proxy::start(server.port()).unwrap(), Proxy::start(server.port()).unwrap());
        let names = NameServer::start(before.port()).await;
        let mut srv = Srv::new("example");
        srv.name_server = Some(names.address);
        let mut config = EtcdConfig::new(Vec::new());
        config.srv = Some(srv);
        let client = client(&config).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let guard = client.mutex("a").unwrap().with(options).acquire().await.unwrap();
        names.port.store(after.port(), Ordering::Relaxed);
        before.set(Way::Black);
        before.cut();
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        guard.release().await.unwrap();
    }
}

/// The deadline of a guard's present term.
fn deadline(guard: &Guard) -> Moment {
    now() + guard.remaining()
}

fn logins(server: &EtcdServer) -> u64 {
    server.metric("grpc_server_started_total", "Authenticate").unwrap()
}

/// A client that logs in at a server that wants a password.
async fn logged_in(server: &EtcdServer) -> Client {
    for words in [
        &["user", "add", "root:secret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        server.control(words).unwrap();
    }
    let mut config = config_of(server);
    config.username = Some("root".into());
    config.password = Some("secret".into());
    client(&config).await
}

on_servers! {
    /// A login takes the server tens of milliseconds of computing, so two hundred of them at once take
    /// longer than a call may.
    async fn a_restart_with_passwords_costs_a_few_logins_and_no_lock() {
        const LOCKS: usize = 100;
        let mut server = EtcdServer::start(&[]).unwrap();
        let client = logged_in(&server).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let (mut guards, mut waiting) = (Vec::new(), JoinSet::new());
        for lock in 0..LOCKS {
            let mutex = client.mutex(&lock.to_string()).unwrap().with(options.clone());
            guards.push(mutex.acquire().await.unwrap());
            waiting.spawn(async move { mutex.acquire().await });
        }
        for lock in 0..LOCKS {
            until_waiting(&client, &lock.to_string(), 1).await;
        }
        let before = guards.iter().map(deadline).max().unwrap();
        server.kill9().unwrap();
        // All calls notice that the server is gone.
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.restart().unwrap();
        let serves = || async { server.page("/health").is_ok_and(|it| it.contains("\"true\"")) };
        assert!(eventually(GENEROUS, serves).await);
        // Half of the holders release together, and the others are renewed.
        let mut releasing = JoinSet::new();
        for guard in guards.split_off(LOCKS / 2) {
            releasing.spawn(guard.release());
        }
        // If it fails, the release goes on in the background.
        let outcomes = releasing.join_all().await;
        let lost = |outcome: &Result<()>| {
            outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost)
        };
        assert_eq!(outcomes.iter().filter(|outcome| lost(outcome)).count(), 0, "guards were lost");
        until_served(&mut waiting, LOCKS / 2).await;
        let renewed = || async { guards.iter().all(|guard| deadline(guard) > before) };
        let renewed = eventually(ELECTION, renewed).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert!(renewed, "not all were renewed, and {lost} were lost");
        for guard in guards {
            guard.release().await.unwrap();
        }
        until_served(&mut waiting, LOCKS / 2).await;
        let logins = logins(&server);
        assert!(logins <= 20, "{logins} logins");
    }
}

on_servers! {
    /// The password is changed in etcd before it is changed for the clients: a server spends as much on
    /// the logins that it refuses as on others.
    async fn a_changed_password_costs_few_logins_whatever_the_number_of_calls() {
        const LOCKS: usize = 200;
        const LONG: Duration = Duration::from_secs(6);
        let server = EtcdServer::start(&[]).unwrap();
        let client = logged_in(&server).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let mut waiting = JoinSet::new();
        let mut guards = Vec::new();
        for lock in 0..LOCKS {
            let mutex = client.mutex(&lock.to_string()).unwrap().with(options.clone());
            guards.push(mutex.acquire().await.unwrap());
        }
        change_password(&server, "root:secret", "changed");
        let before = logins(&server);
        let until = now() + LONG;
        for lock in 0..LOCKS {
            let client = client.clone();
            waiting.spawn(async move {
                let (mut refused, name) = (0, lock.to_string());
                while now() < until {
                    let error = client.inspect(&name).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                refused
            });
        }
        let refused: usize = waiting.join_all().await.into_iter().sum();
        let logins = logins(&server) - before;
        assert!(refused >= LOCKS, "{refused} calls");
        assert!(logins <= LONG.as_secs() + 2, "{logins} logins for {refused} calls in {LONG:?}");
        // The first login after this is made at once or soon.
        change_password(&server, "root:changed", "secret");
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
}

fn change_password(server: &EtcdServer, login: &str, password: &str) {
    let words = ["--user", login, "user", "passwd", "root", "--interactive=false"];
    let mut command = server.controller(&words);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    assert!(child.wait().unwrap().success());
}

/// Returns when this many tasks have had their lock.
async fn until_served(waiting: &mut JoinSet<Result<Guard>>, count: usize) {
    for served in 0..count {
        let next = tokio::time::timeout(ELECTION, waiting.join_next()).await;
        let next = next.unwrap_or_else(|_| panic!("{served} of {count} were served")).unwrap();
        let next = next.unwrap();
        let next = next.unwrap_or_else(|error| panic!("{served} of {count} were served: {error}"));
        next.release().await.unwrap();
    }
}

on_servers! {
    /// Claims that gave up in the outage are released once, not again and again while the client lives.
    async fn writes_end_after_an_outage_with_two_hundred_acquires_in_flight() {
        const ACQUIRES: usize = 200;
        let mut server = EtcdServer::start(&[]).unwrap();
        let client = hasty(&format!("127.0.0.1:{}", server.port())).await;
        let client = client.with_call_timeout(CALL_TIMEOUT).unwrap();
        let options = Options::new().ttl(Duration::from_secs(15));
        let kept = client.mutex("kept").unwrap().with(options.clone()).acquire().await.unwrap();
        let before = committed(&server);
        let mut acquiring = JoinSet::new();
        for lock in 0..ACQUIRES {
            let mutex = client.mutex(&lock.to_string()).unwrap().with(options.clone());
            acquiring.spawn(async move { mutex.acquire().await });
        }
        // Some acquires are done, and the others under way.
        assert!(eventually(GENEROUS, || async { committed(&server) > before + 3 }).await);
        server.stop().unwrap();
        tokio::time::sleep(6 * CALL_TIMEOUT).await;
        server.cont().unwrap();
        while let Some(acquired) = acquiring.join_next().await {
            if let Ok(guard) = acquired.unwrap() {
                drop(guard.release().await);
            }
        }
        let others_left = || async { client.list("").await.is_ok_and(|left| left.len() == 1) };
        assert!(eventually(ELECTION, others_left).await, "{:?}", client.list("").await);
        let long = Duration::from_secs(10);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let before = committed(&server);
            tokio::time::sleep(long).await;
            seen.push(committed(&server) - before);
            if seen.last() <= Some(&20) {
                return kept.release().await.unwrap();
            }
        }
        panic!("proposals in {long:?} each: {seen:?}");
    }
}

fn committed(server: &EtcdServer) -> u64 {
    server.metric("etcd_server_proposals_committed_total", "").unwrap()
}

on_servers! {
    /// The claim was released over another connection meanwhile, and granted again.
    async fn a_release_that_arrives_late_ends_no_hold_that_was_granted_since() {
        let server = EtcdServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let mut config = config(&proxy.address());
        config.timeout = GENEROUS;
        let store = store(&config).await;
        let held = claim("a", Duration::from_secs(60));
        let answer = store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        let ClaimOutcome::Granted(first) = answer else { panic!("{answer:?}") };
        proxy.keep();
        // The request is sent, and no reply comes.
        let late = tokio::time::timeout(2 * CALL_TIMEOUT, store.release(&held)).await;
        assert!(late.is_err(), "{late:?}");
        proxy.cut();
        let released = || async { store.release(&held).await.is_ok() };
        assert!(eventually(GENEROUS, released).await);
        let answer = store.claim(&held, WaitPolicy::NoWait).await.unwrap();
        let ClaimOutcome::Granted(second) = answer else { panic!("{answer:?}") };
        assert!(second.token > first.token, "the second grant is a new hold");
        assert!(eventually(GENEROUS, || async { proxy.deliver() }).await, "no request was late");
        assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
        let holders = store.inspect(&held.name).await.unwrap().holders;
        assert_eq!(holders.len(), 1);
        assert_eq!(holders[0].token, second.token);
    }
}
