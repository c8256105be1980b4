//! etcd's own Go client (`client/v3/concurrency`) on the same names, driven by lines of text (see
//! `interop/README.md`).

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{client, config_of};
use tenure_core::{Client, ErrorKind};
use tenure_testkit::{EtcdServer, GENEROUS, Process, temp_dir};
use tenure_trials::until_waiting;

/// Written by `cargo xtask clients` (and `test`) when the client is ready to run.
fn launcher() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("interop/launch/etcd-go")
}

fn lacks(test: &str) -> bool {
    if ["etcd", "etcdctl", "go"].iter().any(|program| tenure_testkit::lacks(program, test)) {
        return true;
    }
    let unprepared = !launcher().is_file();
    if unprepared {
        tenure_testkit::skip(test, "the client is not here: `cargo xtask clients` fetches it");
    }
    unprepared
}

/// A running Go client. Ends with the test.
struct Theirs(Process);

impl Theirs {
    fn start(server: &EtcdServer, key: &str) -> Self {
        let launcher = launcher();
        let words = [launcher.to_str().unwrap(), &server.port().to_string(), key];
        Self(Process::start(Path::new("sh"), &words).unwrap())
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

async fn scene() -> (EtcdServer, Client, Theirs) {
    let server = EtcdServer::start(&[]).unwrap();
    let ours = client(&config_of(&server)).await;
    let theirs = Theirs::start(&server, "tenure/a");
    (server, ours, theirs)
}

macro_rules! with_theirs {
    ($($(#[doc = $why:literal])* async fn $name:ident() $body:block)*) => {
        $(
            $(#[doc = $why])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if !lacks(stringify!($name)) $body
            }
        )*
    };
}

with_theirs! {
    async fn their_hold_keeps_ours_out_and_their_release_admits_our_waiter() {
        let (_server, ours, mut theirs) = scene().await;
        assert_eq!(theirs.ask("try 60000").await, "held");
        let mutex = ours.mutex("a").unwrap();
        assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        let reader = ours.rw_lock("a").unwrap();
        assert_eq!(reader.try_read().await.unwrap_err().kind(), ErrorKind::Busy);
        let before = ours.inspect("a").await.unwrap().holders[0].token;
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.acquire().await.unwrap() }
        });
        until_waiting(&ours, "a", 1).await;
        assert!(!waiting.is_finished());
        assert_eq!(theirs.ask("release").await, "released");
        let guard = tokio::time::timeout(GENEROUS, waiting).await.expect("it is woken").unwrap();
        assert!(guard.token() > before);
        assert_eq!(theirs.ask("try 60000").await, "busy");
        guard.release().await.unwrap();
        assert_eq!(theirs.ask("try 60000").await, "held");
    }

    async fn our_hold_keeps_theirs_out_and_our_release_admits_their_waiter() {
        let (_server, ours, mut theirs) = scene().await;
        let guard = ours.mutex("a").unwrap().acquire().await.unwrap();
        assert_eq!(theirs.ask("try 60000").await, "busy");
        theirs.send("wait 60000");
        until_waiting(&ours, "a", 1).await;
        assert!(theirs.is_silent().await, "two hold at once");
        guard.release().await.unwrap();
        assert_eq!(theirs.answer().await, "held");
        let error = ours.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(theirs.ask("release").await, "released");
        assert!(ours.inspect("a").await.unwrap().is_free());
    }

    async fn tenure_gets_the_lock_when_the_lease_of_a_killed_go_client_ends() {
        let (_server, ours, mut theirs) = scene().await;
        assert_eq!(theirs.ask("try 2000").await, "held");
        theirs.0.kill9().unwrap();
        let guard = ours.mutex("a").unwrap().acquire_within(3 * GENEROUS).await.unwrap();
        guard.release().await.unwrap();
    }

    /// All add to a file that only the lock protects.
    async fn no_update_of_either_client_is_lost() {
        const EACH: usize = 3;
        const ROUNDS: usize = 12;
        let (server, ours, _) = scene().await;
        let folder = temp_dir();
        let file = folder.path().join("count");
        std::fs::write(&file, "0").unwrap();
        let count = async |file: &Path| {
            let before: usize = std::fs::read_to_string(file).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::fs::write(file, (before + 1).to_string()).unwrap();
        };
        let their_rounds = (0..EACH).map(|_| async {
            let mut theirs = Theirs::start(&server, "tenure/a");
            for _ in 0..ROUNDS {
                assert_eq!(theirs.ask("wait 60000").await, "held");
                count(&file).await;
                assert_eq!(theirs.ask("release").await, "released");
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
