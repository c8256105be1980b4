//! The private servers of a soak, which keep their data when they are killed.

use std::io;
use std::time::Duration;

use tenure_testkit::{
    EtcdCluster, EtcdServer, Member, Proxy, RedisServer, TempDir, ZooKeeperEnsemble,
};

use crate::algorithms::{Family, Info};

/// Servers of one store.
pub(crate) struct PrivateServers {
    members: Vec<Box<dyn Member>>,
    /// Whether a member is down on purpose.
    down: Vec<bool>,
    folder: Option<TempDir>,
}

/// The log is not synced: what the server has written outlasts the process, and kill -9 is no power loss.
const KEEPS_DATA: &[&str] = &["--appendonly", "yes", "--appendfsync", "no"];

impl PrivateServers {
    /// Starts the servers of an algorithm: three of etcd and ZooKeeper, five of Redlock.
    pub(crate) fn start(info: &Info) -> io::Result<Self> {
        let redis = |count: usize| -> io::Result<Vec<Box<dyn Member>>> {
            let start = |_| Ok(Box::new(RedisServer::start(KEEPS_DATA)?) as Box<dyn Member>);
            (0..count).map(start).collect()
        };
        let (mut members, mut folder): (Vec<Box<dyn Member>>, _) = (Vec::new(), None);
        match info.family {
            Family::Redis if info.waits_for_replicas() => {
                return Err(io::Error::other("a soak has no replicas: use --store"));
            }
            Family::Redis => members = redis(1)?,
            Family::Redlock => members = redis(5)?,
            Family::Etcd => members = boxed(EtcdCluster::start()?.into_members()),
            Family::ZooKeeper => members = boxed(ZooKeeperEnsemble::start(&[])?.into_members()),
            Family::Local => folder = Some(tenure_testkit::temp_dir()),
            Family::Cluster | Family::Sentinel => {
                return Err(io::Error::other(
                    "clients of a Cluster or of Sentinels find the servers by themselves, past every proxy: use \
                     --store",
                ));
            }
        }
        Ok(Self { down: vec![false; members.len()], members, folder })
    }

    /// How many servers there are.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// A way to each server, for one process.
    pub(crate) fn proxies(&self) -> io::Result<Vec<Proxy>> {
        self.members.iter().map(|member| Proxy::start(member.port())).collect()
    }

    /// What a client without proxies is told: addresses, or the directory of a local store.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let folder = self.folder.iter().map(|folder| folder.path().display().to_string());
        let servers = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port()));
        servers.chain(folder).collect()
    }

    pub(crate) fn stop(&mut self, number: usize) -> io::Result<()> {
        self.members[number].stop()
    }

    pub(crate) fn resume(&mut self, number: usize) -> io::Result<()> {
        self.members[number].cont()
    }

    pub(crate) fn kill(&mut self, number: usize) -> io::Result<()> {
        self.down[number] = true;
        self.members[number].kill9()
    }

    pub(crate) fn restart(&mut self, number: usize) -> io::Result<()> {
        self.down[number] = false;
        self.members[number].restart()
    }

    /// Restarts a server that has ended by itself, as one does whose port was taken for a moment.
    pub(crate) fn revive(&mut self) -> io::Result<()> {
        for (member, down) in self.members.iter_mut().zip(&self.down) {
            if !down && member.status()?.is_some() {
                member.restart()?;
            }
        }
        Ok(())
    }

    /// Waits until every server serves.
    pub(crate) fn until_all_serve(&mut self) -> io::Result<()> {
        self.revive()?;
        self.members.iter_mut().try_for_each(|member| member.until_it_serves())
    }
}

fn boxed<M: Member + 'static>(members: Vec<M>) -> Vec<Box<dyn Member>> {
    members.into_iter().map(|member| Box::new(member) as Box<dyn Member>).collect()
}

/// How long a server of this algorithm may stand still: longer than the TTL, except where the server has a known
/// fault after a leader stood still.
pub(crate) fn longest_stall(info: &Info, ttl: Duration) -> Duration {
    match info.family {
        Family::Etcd if !EtcdServer::keeps_renewed_leases() => ttl / 2,
        _ => ttl * 3 / 2,
    }
}

/// What is appended to the URL of a private store.
pub(crate) fn url_options(info: &Info, ttl: Duration) -> String {
    match info.family {
        // A server that was restarted votes again after the longest TTL. Proxies on a busy machine are slow.
        Family::Redlock => format!("max-ttl={}ms&node-timeout=100ms", ttl.as_millis()),
        _ => String::new(),
    }
}
