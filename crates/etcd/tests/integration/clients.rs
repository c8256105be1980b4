//! etcd's own Go client (`client/v3/concurrency`) and jetcd (Java) on the same names, driven by lines of text
//! (see `interop/README.md`).

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{client, config_of};
use tenure_core::{Client, ErrorKind};
use tenure_testkit::{EtcdServer, ExternalClient, GENEROUS, Process, SharedLock, temp_dir};
use tenure_trials::until_waiting;

const GO: ExternalClient = ExternalClient { name: "etcd-go", needs: &["etcd", "etcdctl", "go"] };

/// Its lock is the server's Lock service.
const JETCD: ExternalClient = ExternalClient { name: "jetcd", needs: &["etcd", "etcdctl", "java"] };

fn row(client: &ExternalClient) -> SharedLock<'static> {
    let (client, kind) = match client.name {
        "jetcd" => ("jetcd 0.8.6", "`Lock`"),
        _ => ("etcd-go 3.7.3", "`concurrency.Mutex`"),
    };
    let (ours, setting) = ("mutex; other modes exclude it", "none: they call it `tenure/NAME`");
    SharedLock { client, kind, ours, setting }
}

/// A running client. Ends with the test.
struct Theirs(Process);

impl Theirs {
    fn start(client: &ExternalClient, server: &EtcdServer, key: &str) -> Self {
        Self(client.start(&[&server.port().to_string(), key]).unwrap())
    }

    async fn release(&mut self) {
        let answer = self.ask("release").await;
        assert!(["released", "sent"].contains(&answer.as_str()), "{answer}");
    }

    fn send(&mut self, line: &str) {
        self.0.send(line).expect("the client runs");
    }

    async fn answer(&mut self) -> String {
        self.0.line(3 * GENEROUS).await.expect("the client answers")
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer().await
    }

    async fn is_silent(&mut self) -> bool {
        self.0.line(Duration::from_millis(300)).await.is_none()
    }
}

async fn scene(foreign: &ExternalClient) -> (EtcdServer, Client, Theirs) {
    let server = EtcdServer::start(&[]).unwrap();
    let ours = client(&config_of(&server)).await;
    let theirs = Theirs::start(foreign, &server, "tenure/a");
    (server, ours, theirs)
}

/// A test of each case with each client.
macro_rules! with_theirs {
    ($foreign:ident; $($(#[doc = $why:literal])* async fn $name:ident() $body:block)*) => {
        $($(#[doc = $why])* async fn $name($foreign: &'static ExternalClient) $body)*
        with_theirs! { @tests go: GO, $($name)* }
        with_theirs! { @tests jetcd: JETCD, $($name)* }
    };
    (@tests $module:ident: $client:ident, $($name:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if !super::$client.is_missing(stringify!($name)) {
                        super::$name(&super::$client).await;
                    }
                }
            )*
        }
    };
}

with_theirs! { foreign;
    async fn their_hold_keeps_ours_out_and_their_release_admits_our_waiter() {
        let (_server, ours, mut theirs) = scene(foreign).await;
        assert_eq!(theirs.ask("try 60000").await, "held");
        let mutex = ours.mutex("a").unwrap();
        assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        let reader = ours.rw_lock("a").unwrap();
        assert_eq!(reader.try_read().await.unwrap_err().kind(), ErrorKind::Busy);
        let before = ours.inspect("a").await.unwrap().holders[0].token;
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { (mutex.acquire().await.unwrap(), Instant::now()) }
        });
        until_waiting(&ours, "a", 1).await;
        assert!(!waiting.is_finished());
        let released = Instant::now();
        theirs.release().await;
        let (guard, held) =
            tokio::time::timeout(GENEROUS, waiting).await.expect("it is woken").unwrap();
        let to_ours = held - released;
        assert!(guard.token() > before);
        assert_eq!(theirs.ask("try 60000").await, "busy");
        theirs.send("wait 60000");
        until_waiting(&ours, "a", 1).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        assert_eq!(theirs.answer().await, "held");
        row(foreign).report(to_ours, released.elapsed());
    }

    async fn our_hold_keeps_theirs_out_and_our_release_admits_their_waiter() {
        let (_server, ours, mut theirs) = scene(foreign).await;
        let guard = ours.mutex("a").unwrap().acquire().await.unwrap();
        assert_eq!(theirs.ask("try 60000").await, "busy");
        theirs.send("wait 60000");
        until_waiting(&ours, "a", 1).await;
        assert!(theirs.is_silent().await, "two claims hold at once");
        guard.release().await.unwrap();
        assert_eq!(theirs.answer().await, "held");
        let error = ours.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        theirs.release().await;
        assert!(ours.inspect("a").await.unwrap().is_free());
    }

    async fn tenure_gets_the_lock_when_the_lease_of_a_killed_client_ends() {
        let (_server, ours, mut theirs) = scene(foreign).await;
        assert_eq!(theirs.ask("try 2000").await, "held");
        theirs.0.kill9().unwrap();
        let guard = ours.mutex("a").unwrap().acquire_within(3 * GENEROUS).await.unwrap();
        guard.release().await.unwrap();
    }

    /// All add to a file that only the lock protects.
    async fn no_update_of_either_client_is_lost() {
        const EACH: usize = 3;
        const ROUNDS: usize = 12;
        let (server, ours, _) = scene(foreign).await;
        let folder = temp_dir();
        let file = folder.path().join("count");
        std::fs::write(&file, "0").unwrap();
        let count = async |file: &Path| {
            let before: usize = std::fs::read_to_string(file).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::fs::write(file, (before + 1).to_string()).unwrap();
        };
        let their_rounds = (0..EACH).map(|_| async {
            let mut theirs = Theirs::start(foreign, &server, "tenure/a");
            for _ in 0..ROUNDS {
                assert_eq!(theirs.ask("wait 60000").await, "held");
                count(&file).await;
                theirs.release().await;
            }
        });
        let our_rounds = (0..EACH).map(|_| async {
            let mutex = ours.mutex("a").unwrap();
            for _ in 0..ROUNDS {
                let guard = mutex.acquire().await.unwrap();
                count(&file).await;
                guard.release().await.unwrap();
            }
        });
        let all = futures_util::future::join(
            futures_util::future::join_all(their_rounds),
            futures_util::future::join_all(our_rounds),
        );
        all.await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (2 * EACH * ROUNDS).to_string());
    }
}
