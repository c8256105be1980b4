//! A password appears in no error, log, trace, metric or finding, whatever the server says.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::servers::{addresses, client, said, single};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Recorder, SharedString, Unit};
use tenure_core::Client;
use tenure_core::store::Store;
use tenure_redis::{
    Credentials, CredentialsProvider, RedisConfig, RedisStore, RedlockConfig, RedlockStore,
    Topology,
};
use tenure_testkit::{
    GENEROUS, RedisCluster, RedisSentinel, RedisServer, RedisStub, Way, eventually,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const MARK: &str = "Marked-Pa55word";

/// Everything that was traced by anything in this program, spans and events with all their fields.
#[derive(Clone, Default)]
struct Traces(Arc<Mutex<String>>);

impl Visit for Traces {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.lock().unwrap().push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Traces {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut self.clone());
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Everything that a metrics recorder is told besides numbers: names, labels and descriptions.
#[derive(Clone, Default)]
struct Metrics(Arc<Mutex<String>>);

impl Metrics {
    fn add(&self, what: &dyn Debug) {
        self.0.lock().unwrap().push_str(&format!("{what:?} "));
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.add(&(name, unit, words));
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.add(&(name, unit, words));
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.add(&(name, unit, words));
    }
    fn register_counter(&self, key: &Key, metadata: &metrics::Metadata<'_>) -> Counter {
        self.add(&(key, metadata));
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, metadata: &metrics::Metadata<'_>) -> Gauge {
        self.add(&(key, metadata));
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, metadata: &metrics::Metadata<'_>) -> Histogram {
        self.add(&(key, metadata));
        Histogram::noop()
    }
}

/// The metrics of all tests of this program: there is one recorder for all threads.
fn recorded() -> &'static Metrics {
    static METRICS: std::sync::OnceLock<Metrics> = std::sync::OnceLock::new();
    METRICS.get_or_init(|| {
        let metrics = Metrics::default();
        let set = metrics::set_global_recorder(metrics.clone());
        set.unwrap_or_else(|_| panic!("there is another recorder"));
        metrics
    })
}

/// The traces of all tests of this program: there is one subscriber for all threads.
fn traces() -> &'static Traces {
    static TRACES: std::sync::OnceLock<Traces> = std::sync::OnceLock::new();
    TRACES.get_or_init(|| {
        let traces = Traces::default();
        tracing::subscriber::set_global_default(traces.clone()).unwrap();
        traces
    })
}

#[track_caller]
fn clean(what: &str, shown: &str) {
    assert!(!shown.contains(MARK), "{what}: {shown}");
    let traced = traces().0.lock().unwrap().clone();
    assert!(!traced.contains(MARK), "{what}: traces: {traced}");
    let recorded = recorded().0.lock().unwrap().clone();
    assert!(!recorded.contains(MARK), "{what}: metrics: {recorded}");
}

#[track_caller]
fn clean_error(what: &str, error: &tenure_core::Error) {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        shown.push_str(&format!("{inner} {inner:?}"));
        source = inner.source();
    }
    clean(what, &shown);
}

/// The configuration with the marked password, and with a short timeout.
fn marked(topology: Topology, username: Option<&str>) -> RedisConfig {
    let mut config = RedisConfig::new(topology);
    config.timeout = Duration::from_millis(500);
    config.username = username.map(str::to_owned);
    config.password = Some(MARK.into());
    clean("config", &format!("{config:?} {config:#?}"));
    config
}

/// Every way to reach what listens on this port.
fn topologies(port: u16) -> [Topology; 3] {
    let server = ("127.0.0.1".to_owned(), port);
    [
        Topology::Single { server: server.clone() },
        Topology::Sentinel { sentinels: vec![server.clone()], service: "main".into() },
        Topology::Cluster { nodes: vec![server] },
    ]
}

/// Tries to connect in every topology and as a quorum.
async fn connect_in_every_way(what: &str, port: u16) {
    for username in [None, Some("app")] {
        for topology in topologies(port) {
            let error = RedisStore::connect(marked(topology, username)).await.unwrap_err();
            clean_error(what, &error);
        }
    }
    let nodes = topologies(port)[0].clone();
    let config = RedlockConfig::new(vec![marked(nodes, None); 3]);
    clean(what, &format!("{config:?} {config:#?}"));
    let error = RedlockStore::connect(config).await.unwrap_err();
    clean_error(what, &error);
}

type Answer = fn(&[String]) -> Option<String>;

/// What servers, proxies and older versions say, with all arguments repeated.
fn echoes() -> Vec<(&'static str, Answer)> {
    fn list(words: &[String]) -> String {
        words[1..].iter().map(|word| format!("`{word}`, ")).collect()
    }
    vec![
        ("before 6", |words| {
            let name = &words[0];
            Some(format!(
                "-ERR unknown command `{name}`, with args beginning with: {}\r\n",
                list(words)
            ))
        }),
        ("a proxy", |words| Some(format!("-ERR unknown request {words:?}\r\n"))),
        ("no code", |words| Some(format!("-{}\r\n", words.last().unwrap()))),
        ("as a code", |words| Some(format!("-{} is wrong\r\n", words.last().unwrap()))),
        ("with a known code", |words| Some(format!("-WRONGPASS not {}\r\n", words.join(" ")))),
        ("without rights", |words| Some(format!("-NOPERM no {}\r\n", words.join(" ")))),
        ("syntax", |words| {
            Some(format!("-ERR Syntax error in {} option AUTH\r\n", words.join(" ")))
        }),
        ("long", |words| {
            let said = words.join(" ");
            Some(format!("!{}\r\nERR {said}\r\n", said.len() + 4))
        }),
        ("as a value", |words| Some(format!("+{}\r\n", words.join(" ")))),
        ("as a list", |words| {
            let parts: String = words.iter().map(|word| format!("+{word}\r\n")).collect();
            Some(format!("*{}\r\n{parts}", words.len()))
        }),
        ("nonsense", |words| Some(format!("{}\r\n", words.join(" ")))),
        ("closes", |_| None),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_to_a_login_brings_the_password_into_an_error() {
    for (what, answer) in echoes() {
        let stub = RedisStub::start(answer).unwrap();
        connect_in_every_way(what, stub.port()).await;
        assert!(stub.received(&["HELLO"]) > 0, "{what}: nothing was tried");
    }
}

/// Also where HELLO is unknown and the login is an AUTH.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_to_auth_brings_the_password_into_an_error() {
    for (what, answer) in echoes() {
        let stub = RedisStub::start(move |words| match &*words[0] {
            "HELLO" => {
                Some("-ERR unknown command 'HELLO', with args beginning with: '3'\r\n".into())
            }
            _ => answer(words),
        });
        connect_in_every_way(what, stub.unwrap().port()).await;
    }
}

/// An open connection logs in anew when its credentials are due; what is said against that is logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_not_renewed_does_not_bring_the_password_into_the_log() {
    traces();
    let stub = RedisStub::start(|words| match &*words[0] {
        "HELLO" => Some("%1\r\n$5\r\nproto\r\n:3\r\n".into()),
        "SCRIPT" => Some("$4\r\n0123\r\n".into()),
        _ => Some(format!("-ERR unknown request {words:?}\r\n")),
    });
    let stub = stub.unwrap();
    let mut config = single(stub.port());
    config.credentials = Some(CredentialsProvider::new(|| async {
        let (password, soon) = (MARK.to_owned(), Duration::from_millis(100));
        Ok(Credentials { username: None, password, refresh_after: Some(soon) })
    }));
    clean("config", &format!("{config:?}"));
    let store = RedisStore::connect(config).await.unwrap();
    let refused = eventually(GENEROUS, || async { stub.received(&["AUTH", MARK]) >= 3 });
    assert!(refused.await, "no login was tried");
    assert!(traces().0.lock().unwrap().contains("could not be refreshed"), "nothing was logged");
    clean("refresh", &format!("{store:?}"));
}

on_servers! {
    async fn servers_that_refuse_a_login_do_not_show_the_password() {
        let wrong = RedisServer::start(&["--requirepass", "another"]).unwrap();
        connect_in_every_way("wrong password", wrong.port()).await;
        let none = RedisServer::start(&[]).unwrap();
        for username in [None, Some("app")] {
            let [one, ..] = topologies(none.port());
            if let Err(error) = RedisStore::connect(marked(one, username)).await {
                clean_error("no password is wanted", &error);
            }
        }
        for renamed in [&["HELLO"][..], &["AUTH"], &["HELLO", "AUTH"]] {
            let mut arguments = vec!["--requirepass", "another"];
            arguments.extend(renamed.iter().flat_map(|name| ["--rename-command", *name, ""]));
            let server = RedisServer::start(&arguments).unwrap();
            connect_in_every_way("without the command", server.port()).await;
        }
    }
}

/// Uses a store while its server, or the way to it, fails in every way, and looks at all that is
/// said.
async fn use_through_faults(what: &str, store: Arc<dyn Store>, disturb: impl AsyncFn(usize)) {
    clean(what, &format!("{store:?}"));
    let client = Client::new(Arc::clone(&store)).unwrap();
    clean(what, &format!("{client:?}"));
    for round in 0..4 {
        disturb(round).await;
        let mutex = client.mutex("a").unwrap();
        if let Err(error) = mutex.try_acquire().await {
            clean_error(what, &error);
        }
        if let Err(error) = mutex.acquire_within(Duration::from_millis(300)).await {
            clean_error(what, &error);
        }
        if let Err(error) = client.list("").await {
            clean_error(what, &error);
        }
        match store.diagnose().await {
            Ok(findings) => clean(what, &format!("{findings:?}")),
            Err(error) => clean_error(what, &error),
        }
    }
    client.close().await;
    clean(what, "");
}

on_servers! {
    async fn faults_after_the_login_do_not_show_the_password() {
        let server = RedisServer::start(&[]).unwrap();
        let proxy = tenure_testkit::Proxy::start(server.port()).unwrap();
        said(&server, &["ACL", "SETUSER", "app", "on", &format!(">{MARK}"), "~*", "&*", "+@all"]);
        let [one, ..] = topologies(proxy.port());
        let store = RedisStore::connect(marked(one, Some("app"))).await.unwrap();
        use_through_faults("one server", Arc::new(store), async |round| match round {
            0 => {}
            1 => drop(said(&server, &["ACL", "SETUSER", "app", "-evalsha", "-config", "-set"])),
            2 => {
                said(&server, &["ACL", "SETUSER", "app", "resetpass", ">another"]);
                proxy.heal();
            }
            _ => proxy.set(Way::Black),
        })
        .await;
    }
}

on_servers! {
    async fn a_cluster_and_sentinels_do_not_show_the_password() {
        let cluster = RedisCluster::start().unwrap();
        let set = ["ACL", "SETUSER", "app", "on", &format!(">{MARK}"), "~*", "&*", "+@all"];
        for node in cluster.nodes() {
            said(node, &set);
        }
        let nodes = addresses(&cluster.addresses());
        let store = RedisStore::connect(marked(Topology::Cluster { nodes }, Some("app"))).await;
        use_through_faults("Cluster", Arc::new(store.unwrap()), async |round| {
            if round == 1 {
                for node in cluster.nodes() {
                    said(node, &["ACL", "SETUSER", "app", "resetpass", ">another"]);
                    said(node, &["CLIENT", "KILL", "USER", "app"]);
                }
            }
        })
        .await;
        drop(cluster);
        let group = RedisSentinel::start(Duration::from_secs(10)).unwrap();
        let topology = || Topology::Sentinel {
            sentinels: addresses(&group.addresses()),
            service: "main".into(),
        };
        let wrong = RedisStore::connect(marked(topology(), Some("app"))).await.unwrap_err();
        clean_error("Sentinels", &wrong);
        for server in group.servers() {
            said(server, &set);
        }
        let store = RedisStore::connect(marked(topology(), Some("app"))).await.unwrap();
        use_through_faults("Sentinels", Arc::new(store), async |round| {
            if round == 1 {
                for server in group.servers() {
                    said(server, &["ACL", "SETUSER", "app", "resetpass", ">another"]);
                    said(server, &["CLIENT", "KILL", "USER", "app"]);
                }
            }
        })
        .await;
    }
}

on_servers! {
    async fn a_quorum_does_not_show_the_password() {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
        for server in &servers {
            said(server, &["ACL", "SETUSER", "app", "on", &format!(">{MARK}"), "~*", "&*", "+@all"]);
        }
        let node = |server: &RedisServer| marked(topologies(server.port())[0].clone(), Some("app"));
        let config = RedlockConfig::new(servers.iter().map(node).collect());
        let store = RedlockStore::connect(config).await.unwrap();
        use_through_faults("quorum", Arc::new(store), async |round| {
            if round == 1 {
                for server in &servers {
                    said(server, &["ACL", "SETUSER", "app", "resetpass", ">another"]);
                    said(server, &["CLIENT", "KILL", "USER", "app"]);
                }
            }
        })
        .await;
    }
}

on_servers! {
    /// Checks the check itself: a mark that is traced or shown is found.
    async fn a_mark_in_a_lock_name_or_a_label_is_found() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        let (traces, metrics) = (traces(), recorded());
        // Another mark than the tests beside this one look for.
        let guard = client.mutex("found-in-traces").unwrap().try_acquire().await.unwrap();
        guard.release().await.unwrap();
        assert!(traces.0.lock().unwrap().contains("found-in-traces"));
        let found = metrics.0.lock().unwrap().clone();
        assert!(found.contains("tenure_acquire_wait_seconds"), "no metric was recorded: {found}");
        metrics::counter!("found-in-metrics", "label" => "found-in-a-label").increment(1);
        let found = metrics.0.lock().unwrap().clone();
        for mark in ["found-in-metrics", "found-in-a-label"] {
            assert!(found.contains(mark), "{found}");
        }
    }
}
