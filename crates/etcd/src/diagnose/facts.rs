//! What the members report.

use std::time::Duration;

use crate::endpoints::{IfUnanswered, Link};
use crate::engine::EtcdEngine;
use crate::rpc::auth_client::AuthClient;
use crate::rpc::cluster_client::ClusterClient;
use crate::rpc::lease_client::LeaseClient;
use crate::rpc::maintenance_client::MaintenanceClient;
use crate::rpc::{
    AlarmRequest, AlarmType, AuthenticateRequest, LeaseGrantRequest, MemberListRequest,
    StatusRequest,
};

/// What is known of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What each member that the store knows answers.
    pub(crate) known: Vec<(String, Answer)>,
    /// How many members there are, and how many of them vote. `None`: the user may not ask.
    pub(crate) members: Option<(usize, usize)>,
    /// The active alarms. `None`: the user may not ask.
    pub(crate) alarms: Option<Vec<AlarmType>>,
    /// Whether users have to log in.
    pub(crate) guarded: bool,
    pub(crate) encrypted: bool,
    /// The shortest TTL of a lease. `None`: no lease was granted.
    pub(crate) shortest_lease: Option<Duration>,
}

/// What one member answers, or why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Status { version: String, id: u64, leader: u64 },
    Silence(String),
}

pub(crate) async fn collect(engine: &EtcdEngine) -> Facts {
    let mut known = Vec::new();
    for (name, link) in engine.endpoints.each_configured() {
        known.push((name, status(link, engine.endpoints.step_limit()).await));
    }
    let list =
        |link| async move { ClusterClient::new(link).member_list(MemberListRequest {}).await };
    let members = engine.endpoints.call(DIAGNOSE, IfUnanswered::AskAnother, list).await;
    let members = members.map(|list| {
        let voters = list.members.iter().filter(|member| !member.is_learner);
        (list.members.len(), voters.count())
    });
    let alarm = |link| async move { MaintenanceClient::new(link).alarm(AlarmRequest {}).await };
    // Only root may ask for alarms.
    let alarms = engine.endpoints.call(DIAGNOSE, IfUnanswered::AskAnother, alarm).await.ok();
    let grant = |link| async move {
        LeaseClient::new(link).lease_grant(LeaseGrantRequest { ttl: 1 }).await
    };
    let shortest = engine.endpoints.call(DIAGNOSE, IfUnanswered::AskAnother, grant).await.ok();
    let shortest = shortest.and_then(|lease| u64::try_from(lease.ttl).ok());
    Facts {
        known,
        members: members.ok(),
        alarms: alarms.map(|reply| reply.alarms.iter().map(|alarm| alarm.alarm()).collect()),
        guarded: is_guarded(engine.endpoints.link(), engine.endpoints.step_limit()).await,
        encrypted: engine.config.tls.is_some(),
        shortest_lease: shortest.map(Duration::from_secs),
    }
}

const DIAGNOSE: &str = "diagnose etcd";

async fn status(link: Link, limit: Duration) -> Answer {
    let mut client = MaintenanceClient::new(link);
    match tokio::time::timeout(limit, client.status(StatusRequest {})).await {
        Ok(Ok(reply)) => {
            let reply = reply.into_inner();
            let id = reply.header.map_or(0, |header| header.member_id);
            Answer::Status { version: reply.version, id, leader: reply.leader }
        }
        Ok(Err(status)) => Answer::Silence(status.message().to_owned()),
        Err(_) => Answer::Silence(format!("no reply within {limit:?}")),
    }
}

/// Whether authentication is enabled: the refusal of a wrong login shows it.
async fn is_guarded(link: Link, limit: Duration) -> bool {
    let wrong = AuthenticateRequest { name: "tenure-doctor".into(), password: String::new() };
    let asked = tokio::time::timeout(limit, AuthClient::new(link).authenticate(wrong)).await;
    !matches!(asked, Ok(Err(status)) if status.message().contains("authentication is not enabled"))
}
