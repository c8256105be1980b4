//! One server or several, a client of tenure, and as many other clients as a case starts.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Client, Guard, LockState, Mutex};
use tenure_testkit::{
    ExternalClient, GENEROUS, SharedLock, ZooKeeperEnsemble, ZooKeeperServer, eventually,
};
use tenure_zookeeper::{Compat, ZooKeeperConfig, ZooKeeperStore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::external::Driver;

/// The lock's name in tenure, and its path for other clients.
pub(crate) const NAME: &str = "orders";
pub(crate) const PATH: &str = "/apps/locks/orders";

/// Longer than any test: such a session ends only when its client closes it.
const LONG: Duration = Duration::from_secs(120);
/// The session of a client that is to be killed.
const SHORT: Duration = Duration::from_secs(4);

/// Another client, the kind of lock it uses, and tenure's setting for it.
pub(crate) struct Setting {
    pub(crate) client: ExternalClient,
    pub(crate) kind: &'static str,
    pub(crate) beside: Compat,
    /// How many servers there are. Of several, ours is connected to another than theirs.
    pub(crate) servers: usize,
}

pub(crate) struct Scene {
    setting: &'static Setting,
    /// They run as long as this is there.
    _servers: Box<dyn Any + Send + Sync>,
    /// The port of the server that ours is connected to, and of theirs.
    pub(crate) ports: [u16; 2],
    pub(crate) ours: Client,
}

/// Empty containers are deleted at once, not after minutes.
const SETTINGS: &[&str] = &["-Dznode.container.checkIntervalMs=200"];

impl Scene {
    pub(crate) async fn set(setting: &'static Setting) -> Self {
        let (servers, ports): (Box<dyn Any + Send + Sync>, _) = if setting.servers == 1 {
            let server = ZooKeeperServer::start(SETTINGS).unwrap();
            let ports = [server.port(); 2];
            (Box::new(server), ports)
        } else {
            let mut ensemble = ZooKeeperEnsemble::start(SETTINGS).unwrap();
            let ports = [0, 1].map(|member| ensemble.members()[member].port());
            (Box::new(ensemble), ports)
        };
        let ours = connect(ports[0], setting.beside).await;
        Self { setting, _servers: servers, ports, ours }
    }

    /// Reports that the lock was handed over, in these times: a row of docs/neighbours.md.
    pub(crate) fn report(&self, to_ours: Duration, to_theirs: Duration) {
        let Setting { client, kind, beside, servers } = self.setting;
        let (title, is_curator) = match client.name {
            "curator-debian" => ("Curator-Debian 5.4.0", true),
            "curator-maven" => ("Curator-Maven 5.9.0", true),
            _ => ("kazoo 2.11.0", false),
        };
        let kind = match (*kind, is_curator) {
            ("exclusive", true) => "`InterProcessMutex`",
            ("write", true) => "`InterProcessReadWriteLock`, writer",
            ("exclusive", false) => "`Lock`",
            ("write", false) => "`WriteLock`",
            _ => "`Lock` with `extra_lock_patterns`",
        };
        let setting = match (beside.curator_rw, beside.kazoo) {
            (false, false) => "none",
            (true, false) => "`compat=curator-rw`",
            (false, true) => "`compat=kazoo`",
            (true, true) => "`compat=curator-rw,kazoo`",
        };
        let place = if *servers > 1 { " on an ensemble" } else { "" };
        let client = &format!("{title}{place}");
        let ours = if kind.contains("rite") { "`RwLock` or mutex" } else { "mutex" };
        SharedLock { client, kind, ours, setting }.report(to_ours, to_theirs);
    }

    /// Starts another client.
    pub(crate) async fn theirs(&self) -> Driver {
        self.start(self.setting.kind, LONG).await
    }

    /// Starts another client with this kind of lock.
    pub(crate) async fn theirs_that(&self, kind: &str) -> Driver {
        self.start(kind, LONG).await
    }

    /// Starts another client whose session ends soon after it is killed.
    pub(crate) async fn mortal(&self) -> Driver {
        self.start(self.setting.kind, SHORT).await
    }

    /// Starts a client of another project.
    pub(crate) async fn others(&self, client: &ExternalClient, kind: &str) -> Driver {
        Driver::start(client, self.ports[1], PATH, kind, LONG).await
    }

    async fn start(&self, kind: &str, session: Duration) -> Driver {
        Driver::start(&self.setting.client, self.ports[1], PATH, kind, session).await
    }

    pub(crate) fn mutex(&self) -> Mutex {
        self.ours.mutex(NAME).unwrap()
    }

    /// Starts a waiter of tenure. Returns when it is the last of `waiting` waiters.
    pub(crate) async fn waiter(&self, waiting: usize) -> Waiter {
        let mutex = self.mutex();
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        self.until_waiting(waiting).await;
        assert!(!waiter.is_finished());
        Waiter(waiter)
    }

    pub(crate) async fn state(&self) -> LockState {
        self.ours.inspect(NAME).await.unwrap()
    }

    pub(crate) async fn assert_free(&self) {
        let state = self.state().await;
        assert!(state.is_free(), "{state:?}");
    }

    /// This guard, and no other claim, holds the lock.
    pub(crate) async fn assert_held_by(&self, guard: &Guard) {
        let state = self.state().await;
        let owners: Vec<&str> = state.holders.iter().map(|holder| &*holder.owner).collect();
        assert_eq!(owners, [guard.owner().to_string()]);
        assert!(guard.is_valid());
    }

    /// Returns when this many claims wait, of tenure and of others.
    pub(crate) async fn until_waiting(&self, count: usize) {
        let waiting = || async { self.state().await.waiters.len() == count };
        assert!(eventually(GENEROUS, waiting).await, "{count} never waited");
    }
}

/// A waiter of tenure.
pub(crate) struct Waiter(JoinHandle<tenure_core::Result<Guard>>);

impl Waiter {
    pub(crate) fn waits(&self) -> bool {
        !self.0.is_finished()
    }

    /// Returns when it has the lock.
    pub(crate) async fn granted(self) -> Guard {
        timeout(GENEROUS, self.0).await.expect("the waiter wakes").unwrap().unwrap()
    }
}

/// A client of tenure with these settings.
pub(crate) async fn connect(port: u16, beside: Compat) -> Client {
    let mut config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), port)]);
    (config.chroot, config.prefix) = ("/apps".into(), "locks/".into());
    config.compat = beside;
    Client::new(Arc::new(ZooKeeperStore::connect(config).await.unwrap())).unwrap()
}
