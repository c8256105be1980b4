//! A running server of any engine.

use tenure_testkit::{EtcdServer, RedisServer, ZooKeeperServer};

pub(crate) enum Server {
    None(tempfile::TempDir),
    Redis(RedisServer),
    Etcd(EtcdServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    pub(crate) fn target(&self) -> String {
        match self {
            Self::None(folder) => folder.path().display().to_string(),
            Self::Redis(server) => server.port().to_string(),
            Self::Etcd(server) => server.port().to_string(),
            Self::ZooKeeper(server) => server.port().to_string(),
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::None(_) => None,
            Self::Redis(server) => Some(server.pid()),
            Self::Etcd(server) => Some(server.pid()),
            Self::ZooKeeper(server) => Some(server.pid()),
        }
    }
}
