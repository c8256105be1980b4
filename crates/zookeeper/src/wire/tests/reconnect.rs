//! Sessions that lose their connection to real servers.

use std::time::Duration;

use tenure_testkit::{
    Certificates, GENEROUS, Proxy, Way, ZooKeeperEnsemble, ZooKeeperServer, eventually,
};
use tenure_tls::Tls;

use super::{LIFE, Target, node, open, over, reconnected, reported, session, target};
use crate::wire::{
    Acl, Create, CreateMode, Event, Exists, Fault, GetChildren, GetData, Session, SetData,
};

/// A port that leads nowhere.
const NOWHERE: u16 = 1;

fn set(path: &str) -> SetData {
    SetData { path: path.into(), data: b"new".into(), version: None }
}

#[tokio::test]
async fn watches_survive_a_reconnect_and_report_what_happened_meanwhile() {
    if ZooKeeperServer::is_missing("watches_survive_a_reconnect") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (one, other) = (session(proxy.port()).await, session(server.port()).await);
    for path in ["/changed", "/deleted", "/parent", "/later"] {
        other.send(node(path, CreateMode::Persistent)).await.unwrap();
    }
    let (_, created) = one.send_watched(Exists::new("/created")).await.unwrap();
    let (_, changed) = one.send_watched(GetData::new("/changed")).await.unwrap();
    let (_, deleted) = one.send_watched(Exists::new("/deleted")).await.unwrap();
    let (_, children) = one.send_watched(GetChildren::new("/parent")).await.unwrap();
    let (_, later) = one.send_watched(GetData::new("/later")).await.unwrap();
    let (_, created_later) = one.send_watched(Exists::new("/created later")).await.unwrap();

    proxy.lead_to(NOWHERE);
    let gone = || async { !one.is_connected() };
    assert!(eventually(GENEROUS, gone).await);
    other.send(node("/created", CreateMode::Persistent)).await.unwrap();
    other.send(set("/changed")).await.unwrap();
    other.send(crate::wire::Delete { path: "/deleted".into(), version: None }).await.unwrap();
    other.send(node("/parent/child", CreateMode::Persistent)).await.unwrap();
    proxy.lead_to(server.port());
    assert_eq!(reported(created).await, Event::Created);
    assert_eq!(reported(changed).await, Event::DataChanged);
    assert_eq!(reported(deleted).await, Event::Deleted);
    assert_eq!(reported(children).await, Event::ChildrenChanged);

    reconnected(&one, 1).await;
    other.send(set("/later")).await.unwrap();
    other.send(node("/created later", CreateMode::Persistent)).await.unwrap();
    assert_eq!(reported(later).await, Event::DataChanged);
    assert_eq!(reported(created_later).await, Event::Created);
    assert!(!one.is_over());
}

#[tokio::test]
async fn a_session_survives_a_restart_of_its_server_with_its_nodes_and_its_login() {
    if ZooKeeperServer::is_missing("a_session_survives_a_restart") {
        return;
    }
    let mut server = ZooKeeperServer::start(&[]).unwrap();
    let mut login = target(&[server.port()]);
    login.login = Some(("app".into(), "secret".into()));
    let session = open(login, LIFE).await.unwrap();
    let id = session.id();
    let private = Create { acl: Acl::creator_all(), ..node("/a", CreateMode::Ephemeral) };
    session.send(private).await.unwrap();
    server.restart().unwrap();
    reconnected(&session, 1).await;
    assert_eq!(session.id(), id);
    let (_, stat) = session.send(GetData::new("/a")).await.unwrap();
    assert_eq!(stat.ephemeral_owner, id);
}

#[tokio::test]
async fn a_request_that_did_not_arrive_is_not_sent_again() {
    if ZooKeeperServer::is_missing("a_request_that_did_not_arrive") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let session = session(proxy.port()).await;
    proxy.set(Way::Black);
    let before = proxy.swallowed();
    let lost = session.send(node("/a", CreateMode::Persistent));
    let swallowed = || async { proxy.swallowed() > before };
    assert!(eventually(GENEROUS, swallowed).await);
    proxy.heal();
    assert!(matches!(lost.await, Err(Fault::Broken(_))));
    reconnected(&session, 1).await;
    assert_eq!(session.send(Exists::new("/a")).await, Ok(None));
}

#[tokio::test]
async fn a_server_that_is_silent_is_left_for_another() {
    if ZooKeeperServer::is_missing("a_server_that_is_silent_is_left") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let proxies = [(); 2].map(|()| Proxy::start(server.port()).unwrap());
    let ports = proxies.each_ref().map(Proxy::port);
    let session = open(target(&ports), Duration::from_secs(9)).await.unwrap();
    session.send(node("/a", CreateMode::Ephemeral)).await.unwrap();
    // One server after the other is cut off, so that the session must move at least once.
    for proxy in &proxies {
        proxy.set(Way::Black);
        let moved = || async { session.ready().await.is_ok() && is_served(&session).await };
        assert!(eventually(GENEROUS, moved).await);
        proxy.heal();
    }
    assert!(session.connection() > 1);
    let stat = session.send(Exists::new("/a")).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, session.id());
}

async fn is_served(session: &Session) -> bool {
    session.send(Exists::new("/a")).await.is_ok()
}

#[tokio::test]
async fn a_session_that_is_cut_off_ends_on_both_sides() {
    if ZooKeeperServer::is_missing("a_session_that_is_cut_off_ends") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let looks = session(server.port()).await;
    let cut_off = open(target(&[proxy.port()]), Duration::from_secs(2)).await.unwrap();
    cut_off.send(node("/a", CreateMode::Ephemeral)).await.unwrap();
    let (_, deleted) = looks.send_watched(Exists::new("/a")).await.unwrap();
    let (_, watch) = cut_off.send_watched(Exists::new("/a")).await.unwrap();
    proxy.set(Way::Black);
    assert_eq!(reported(deleted).await, Event::Deleted);
    proxy.heal();
    over(&cut_off).await;
    assert_eq!(reported(watch).await, Event::SessionOver);
}

#[tokio::test]
async fn each_connection_reads_the_files_for_tls_anew() {
    if ZooKeeperServer::is_missing("each_connection_reads_the_files_for_tls_anew") {
        return;
    }
    let files = Certificates::make().unwrap();
    let server = ZooKeeperServer::start_with_tls(&[], &files).unwrap();
    let proxy = Proxy::start(server.tls_port().unwrap()).unwrap();
    let tls =
        Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
    let session = open(Target { tls, ..target(&[proxy.port()]) }, LIFE).await.unwrap();
    let good = std::fs::read(files.ca()).unwrap();
    std::fs::write(files.ca(), "no certificate").unwrap();
    proxy.heal();
    let gone = || async { !session.is_connected() };
    assert!(eventually(GENEROUS, gone).await);
    // With the file as it is there is no connection.
    assert_eq!(session.connection(), 1);
    assert!(!session.is_over());
    std::fs::write(files.ca(), good).unwrap();
    reconnected(&session, 1).await;
    session.send(Exists::new("/")).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_session_survives_the_loss_of_any_one_server() {
    if ZooKeeperServer::is_missing("a_session_survives_the_loss_of_any_one_server") {
        return;
    }
    let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
    let ports: Vec<_> = ensemble.members().iter().map(|member| member.port()).collect();
    let session = open(target(&ports), LIFE).await.unwrap();
    session.send(node("/a", CreateMode::Ephemeral)).await.unwrap();
    for member in ensemble.members() {
        member.kill9().unwrap();
        let served =
            || async { session.ready().await.is_ok() && session.send(set("/a")).await.is_ok() };
        assert!(eventually(3 * GENEROUS, served).await);
        member.restart().unwrap();
        member.until_it_serves().unwrap();
    }
    assert!(session.connection() > 1 && !session.is_over());
}
