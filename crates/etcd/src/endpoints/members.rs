//! Which servers are asked: those that the configuration or DNS names, and members that the cluster names.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::Result;
use tokio::sync::Notify;

use super::server::Server;
use super::{Endpoints, IfUnanswered};
use crate::config::EtcdConfig;
use crate::dial::Dialer;
use crate::rpc::cluster_client::ClusterClient;
use crate::rpc::maintenance_client::MaintenanceClient;
use crate::rpc::{Member, MemberListRequest, StatusRequest};

/// When a client that has just connected first asks the cluster for its members.
const FIRST_DISCOVERY: Duration = Duration::from_secs(1);

/// How often it asks later, if no server fails.
const DISCOVERY: Duration = Duration::from_secs(300);

/// The shortest pause between two such questions, however often servers fail.
const URGENT_DISCOVERY: Duration = Duration::from_secs(20);

/// While all servers fail, DNS is asked for others this often.
const SRV_PAUSE: Duration = Duration::from_secs(2);

impl Endpoints {
    /// Asks the cluster for its members, adds those that can be reached to the servers, and drops found
    /// servers that are no longer members.
    async fn look_for_members(self: &Arc<Self>) {
        let list =
            |link| async move { ClusterClient::new(link).member_list(MemberListRequest {}).await };
        let Ok(listed) = self.call("list members", IfUnanswered::AskAnother, list).await else {
            return;
        };
        let Some(cluster) = listed.header.map(|header| header.cluster_id) else { return };
        let known = self.servers();
        let mut ids = Vec::new();
        for server in known.iter() {
            ids.extend(self.identity(server).await.map(|(_, member)| member));
        }
        let mut found = Vec::new();
        // A learner serves no locks until it is promoted.
        let is_new = |member: &&Member| !member.is_learner && !ids.contains(&member.id);
        for member in listed.members.iter().filter(is_new) {
            for address in self.addresses(member) {
                let dialer = Dialer::new(&address, self.tls.as_ref(), self.step_limit);
                let Ok(dialer) = dialer else { continue };
                // A known server that did not answer just now is not a new one.
                if known.iter().any(|server| server.dialer.name() == dialer.name()) {
                    continue;
                }
                let server = Server::new(dialer, &self.background, Some(member.id));
                // An advertised address may lead elsewhere from this machine, even to another cluster.
                if self.identity(&server).await == Some((cluster, member.id)) {
                    tracing::debug!(server = server.dialer.name(), "found a member");
                    found.push(server);
                    break;
                }
            }
        }
        let members: Vec<u64> = listed.members.iter().map(|member| member.id).collect();
        let mut servers = self.servers.lock();
        *servers = with_members(&servers, &members, found);
    }

    /// Replaces the servers that the configuration or DNS named by these. Connections to servers that
    /// stay are kept, and so are the members that were found.
    fn replace_named(&self, addresses: &[(String, u16)]) {
        let mut servers = self.servers.lock();
        let named = addresses.iter().filter_map(|address| {
            let dialer = Dialer::new(address, self.tls.as_ref(), self.step_limit).ok()?;
            let is_it = |server: &&Arc<Server>| {
                server.found.is_none() && server.dialer.name() == dialer.name()
            };
            let known = servers.iter().find(is_it).cloned();
            Some(known.unwrap_or_else(|| Server::new(dialer, &self.background, None)))
        });
        let found = servers.iter().filter(|server| server.found.is_some()).cloned();
        let replaced: Arc<[_]> = named.chain(found).collect();
        if !replaced.is_empty() {
            *servers = replaced;
        }
    }

    /// The cluster id and the member id of a server.
    async fn identity(&self, server: &Server) -> Option<(u64, u64)> {
        let mut client = MaintenanceClient::new(self.link_to(server));
        let asked = tokio::time::timeout(self.step_limit, client.status(StatusRequest {})).await;
        let header = asked.ok()?.ok()?.into_inner().header?;
        Some((header.cluster_id, header.member_id))
    }

    /// The client addresses that a member advertises, with or without TLS as configured.
    fn addresses(&self, member: &Member) -> Vec<(String, u16)> {
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        let address = |url: &String| {
            let (host, port) = url.strip_prefix(scheme)?.trim_end_matches('/').rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse().ok()?))
        };
        member.client_ur_ls.iter().filter_map(address).collect()
    }
}

/// The servers that the configuration and DNS name.
pub(super) async fn addresses(config: &EtcdConfig) -> Result<Vec<(String, u16)>> {
    let mut addresses = config.servers.clone();
    if let Some(srv) = &config.srv {
        addresses.extend(srv.look_up(config.tls.is_some(), config.timeout).await?);
    }
    Ok(addresses)
}

/// Reads the SRV records again whenever all servers have failed, until the endpoints are dropped: the
/// cluster may have moved.
pub(super) async fn look_up_again(
    endpoints: Weak<Endpoints>,
    config: EtcdConfig,
    all_failed: Arc<Notify>,
) {
    loop {
        all_failed.notified().await;
        if endpoints.strong_count() == 0 {
            return;
        }
        match addresses(&config).await {
            Ok(found) => {
                if let Some(known) = endpoints.upgrade() {
                    known.replace_named(&found);
                }
            }
            Err(error) => tracing::debug!(%error, "the servers that are known are asked again"),
        }
        tokio::time::sleep(SRV_PAUSE).await;
    }
}

/// The servers without found ones that are no longer members, and with new ones.
pub(super) fn with_members(
    servers: &[Arc<Server>],
    members: &[u64],
    new: Vec<Arc<Server>>,
) -> Arc<[Arc<Server>]> {
    let is_member = |server: &&Arc<Server>| server.found.is_none_or(|id| members.contains(&id));
    servers.iter().filter(is_member).cloned().chain(new).collect()
}

/// Looks for members that have joined the cluster, until the endpoints are dropped. It keeps them alive
/// only while it looks.
pub(super) async fn discover(endpoints: Weak<Endpoints>, rotated: Arc<Notify>) {
    tokio::time::sleep(FIRST_DISCOVERY).await;
    while let Some(known) = endpoints.upgrade() {
        known.look_for_members().await;
        drop(known);
        tokio::time::sleep(URGENT_DISCOVERY).await;
        // Whether notified or timed out, it is time to look again.
        let _ = tokio::time::timeout(DISCOVERY, rotated.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::store::Background;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn endpoints_that_are_dropped_are_gone_at_once_although_members_are_looked_for() {
        let background = Background::start("test").unwrap();
        let config = EtcdConfig::new(vec![("127.0.0.1".into(), 1)]);
        let endpoints = Arc::new(Endpoints::new(&config, &config.servers, &background).unwrap());
        let dropped = Arc::downgrade(&endpoints);
        tokio::spawn(discover(dropped.clone(), Arc::clone(&endpoints.rotated)));
        // The task has asked a server that is not there, and now waits for a notification or a timeout.
        endpoints.rotated.notified().await;
        tokio::time::sleep(URGENT_DISCOVERY + config.timeout).await;
        drop(endpoints);
        assert!(dropped.upgrade().is_none());
    }

    /// A learner answers no calls about locks, but reports its identity.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_learner_is_not_found_before_it_is_promoted() {
        let name = "a_learner_is_not_found_before_it_is_promoted";
        if ["etcd", "etcdctl"].iter().any(|program| tenure_testkit::lacks(program, name)) {
            return;
        }
        let server = tenure_testkit::EtcdServer::start(&[]).unwrap();
        let learner = server.add_learner().unwrap();
        let background = Background::start("test").unwrap();
        let config = EtcdConfig::new(vec![("127.0.0.1".into(), server.port())]);
        let endpoints = Endpoints::connect(&config, vec![0], &background).await.unwrap();
        let found = async || {
            endpoints.look_for_members().await;
            endpoints.servers().len() - 1
        };
        assert_eq!(found().await, 0);
        server.promote(&learner).unwrap();
        let is_found = async || found().await == 1;
        assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, is_found).await);
    }

    #[tokio::test]
    async fn a_server_that_was_found_is_dropped_when_it_is_no_member_any_more() {
        let background = Background::start("test").unwrap();
        let server = |port: u16, found| {
            let dialer = Dialer::new(&("h".into(), port), None, Duration::from_secs(1)).unwrap();
            Server::new(dialer, &background, found)
        };
        let mut servers: Arc<[_]> = [server(1, None)].into();
        // A cluster whose members are replaced one by one.
        for id in 2..100 {
            servers = with_members(&servers, &[id], vec![server(id as u16, Some(id))]);
        }
        let names: Vec<String> = servers.iter().map(|server| server.dialer.name()).collect();
        assert_eq!(names, ["h:1", "h:99"]);
    }
}
