//! The masters of a Cluster, each on a connection of its own: a scan has no key to be routed by.

use std::collections::HashMap;

use rustis::client::Client;
use rustis::commands::{ClusterCommands, ClusterHealthStatus, ClusterShardResult};
use tenure_core::Result;
use tokio::sync::Mutex;

use crate::config::{RedisConfig, Topology};
use crate::connect::connect;
use crate::fault::fault;

/// Connections that are kept from one scan to the next.
#[derive(Default)]
pub(crate) struct Masters {
    known: Mutex<HashMap<(String, u16), Client>>,
}

impl Masters {
    /// A connection to each master there is now, with the Cluster's credentials and TLS.
    pub(crate) async fn all(&self, config: &RedisConfig, cluster: &Client) -> Result<Vec<Client>> {
        let shards: Vec<ClusterShardResult> =
            cluster.cluster_shards().await.map_err(|error| fault("list locks", error))?;
        let mut known = self.known.lock().await;
        // One that is master no longer would be sought for ever.
        let mut before = std::mem::take(&mut *known);
        for server in shards.into_iter().filter_map(master) {
            let client = match before.remove(&server) {
                Some(client) => client,
                None => {
                    let topology = Topology::Single { server: server.clone() };
                    connect(&RedisConfig { topology, ..config.clone() }).await?
                }
            };
            known.insert(server, client);
        }
        Ok(known.values().cloned().collect())
    }
}

fn master(shard: ClusterShardResult) -> Option<(String, u16)> {
    let serves = !shard.slots.is_empty();
    let mut nodes = shard.nodes.into_iter().filter(|_| serves);
    let master =
        nodes.find(|node| node.role == "master" && node.health == ClusterHealthStatus::Online)?;
    let port = master.tls_port.or(master.port)?;
    Some((master.ip, port))
}
