//! Every operation, against a real server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tenure_core::ErrorKind;
use tenure_core::store::Background;
use tenure_testkit::{Certificates, GENEROUS, ZooKeeperServer};
use tenure_tls::Tls;

use super::{LIFE, node, open, refusal, reported, session, target};
use crate::wire::{
    Acl, Check, Code, Create, CreateMode, Delete, Event, Exists, FailedOp, Fault, GetAcl,
    GetChildren, GetData, Multi, Op, OpReply, Session, SetData, Sync,
};

fn delete(path: &str, version: Option<i32>) -> Delete {
    Delete { path: path.into(), version }
}

fn set(path: &str, data: &str, version: Option<i32>) -> SetData {
    SetData { path: path.into(), data: data.into(), version }
}

fn check(path: &str, version: Option<i32>) -> Op {
    Op::Check(Check { path: path.into(), version })
}

#[tokio::test]
async fn every_operation_does_what_it_says() {
    if ZooKeeperServer::is_missing("every_operation_does_what_it_says") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let session = session(server.port()).await;
    assert_eq!(session.life(), LIFE);
    assert!(session.is_connected() && session.connection() == 1 && !session.is_over());

    let lock = session.send(node("/lock", CreateMode::Container)).await.unwrap();
    assert_eq!(lock.path, "/lock");
    let entry = session.send(node("/lock/n-", CreateMode::EphemeralSequential)).await.unwrap();
    assert_eq!(entry.path, "/lock/n-0000000000");
    assert_eq!(entry.stat.ephemeral_owner, session.id());
    assert!(entry.stat.czxid > lock.stat.czxid);
    let next = session.send(node("/lock/n-", CreateMode::EphemeralSequential)).await.unwrap();
    assert_eq!(next.path, "/lock/n-0000000001");
    let twice = session.send(node("/lock", CreateMode::Persistent)).await.unwrap_err();
    assert_eq!(twice, Fault::Refused(Code::NodeExists));
    assert!(twice.is_refusal() && twice.had_no_effect());

    let (names, stat) = session.send(GetChildren::new("/lock")).await.unwrap();
    let names: HashSet<_> = names.into_iter().collect();
    assert_eq!(names, ["n-0000000000", "n-0000000001"].map(String::from).into());
    assert_eq!((stat.num_children, stat.cversion), (2, 2));
    let (acl, _) = session.send(GetAcl { path: "/lock".into() }).await.unwrap();
    assert_eq!(acl, Acl::anyone_all());

    let set_once = session.send(set("/lock", "new", Some(0))).await.unwrap();
    assert_eq!((set_once.version, set_once.czxid), (1, lock.stat.czxid));
    let stale = session.send(set("/lock", "newer", Some(0))).await.unwrap_err();
    assert_eq!(stale, Fault::Refused(Code::BadVersion));
    let (data, read) = session.send(GetData::new("/lock")).await.unwrap();
    assert_eq!((&*data, read.mzxid), (&b"new"[..], set_once.mzxid));
    assert_eq!(session.send(Exists::new("/lock")).await.unwrap().unwrap().version, 1);
    assert_eq!(session.send(Exists::new("/none")).await, Ok(None));
    assert_eq!(session.send(GetData::new("/none")).await, Err(Fault::Refused(Code::NoNode)));
    session.send(Sync { path: "/lock".into() }).await.unwrap();

    assert_eq!(session.send(delete("/lock", None)).await, Err(Fault::Refused(Code::NotEmpty)));
    session.send(delete("/lock/n-0000000001", None)).await.unwrap();
    session.send(delete("/lock/n-0000000000", Some(0))).await.unwrap();
    session.send(delete("/lock", None)).await.unwrap();
    session.close().await;
    assert!(session.is_over());
    assert_eq!(session.send(Exists::new("/")).await, Err(Fault::Over));
    assert_eq!(session.ready().await, Err(Fault::Over));
}

#[tokio::test]
async fn a_multi_does_all_or_nothing_and_names_the_operation_that_failed() {
    if ZooKeeperServer::is_missing("a_multi_does_all_or_nothing") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let session = session(server.port()).await;
    let create = |path: &str| Op::Create(node(path, CreateMode::EphemeralSequential));
    let ops = vec![
        Op::Create(node("/a", CreateMode::Persistent)),
        create("/n-"),
        create("/n-"),
        Op::SetData(set("/a", "x", Some(0))),
        check("/a", Some(1)),
        Op::Delete(delete("/a", None)),
    ];
    let replies = session.send(Multi { ops }).await.unwrap().unwrap();
    let paths: Vec<_> = replies
        .iter()
        .filter_map(|reply| match reply {
            OpReply::Created(created) => Some(&*created.path),
            _ => None,
        })
        .collect();
    assert_eq!(paths, ["/a", "/n-0000000001", "/n-0000000002"]);
    assert!(matches!(&replies[3..], [OpReply::Set(_), OpReply::Checked, OpReply::Deleted]));

    let ops =
        vec![Op::Create(node("/b", CreateMode::Persistent)), check("/none", None), create("/n-")];
    let failed = session.send(Multi { ops }).await.unwrap().unwrap_err();
    assert_eq!(failed, FailedOp { index: 1, code: Code::NoNode });
    assert_eq!(session.send(Exists::new("/b")).await, Ok(None));
    assert_eq!(session.send(Multi::default()).await, Ok(Ok(vec![])));
}

/// Each request depends on the one before, so that only the right order lets all of them succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_carried_out_in_the_order_in_which_they_are_sent() {
    if ZooKeeperServer::is_missing("requests_are_carried_out_in_order") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let session = session(server.port()).await;
    let chains = (0..4).map(|chain| {
        let session = session.clone();
        tokio::spawn(async move {
            let path = format!("/{chain}");
            let created = session.send(node(&path, CreateMode::Persistent));
            let calls: Vec<_> = (0..300)
                .map(|version| session.send(set(&path, &version.to_string(), Some(version))))
                .collect();
            // A call that is given up is carried out in its place.
            drop(session.send(set(&path, "given up", Some(300))));
            let last = session.send(set(&path, "last", Some(301)));
            created.await.unwrap();
            for (version, reply) in join_all(calls).await.into_iter().enumerate() {
                assert_eq!(usize::try_from(reply.unwrap().version), Ok(version + 1));
            }
            assert_eq!(last.await.unwrap().version, 302);
        })
    });
    for chain in join_all(chains).await {
        chain.unwrap();
    }
}

#[tokio::test]
async fn a_watch_reports_what_happens_first() {
    if ZooKeeperServer::is_missing("a_watch_reports_what_happens_first") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let (one, other) = (session(server.port()).await, session(server.port()).await);

    let (missing, created) = one.send_watched(Exists::new("/a")).await.unwrap();
    assert_eq!(missing, None);
    // What a failed read would have watched is not watched.
    let failed = one.send_watched(GetData::new("/a")).await.map(drop);
    assert_eq!(failed, Err(Fault::Refused(Code::NoNode)));
    let failed = one.send_watched(GetChildren::new("/a")).await.map(drop);
    assert_eq!(failed, Err(Fault::Refused(Code::NoNode)));
    other.send(node("/a", CreateMode::Persistent)).await.unwrap();
    assert_eq!(reported(created).await, Event::Created);

    // Several watches on one node, of several kinds, one of which is given up.
    let (_, first) = one.send_watched(GetData::new("/a")).await.unwrap();
    let (_, second) = one.send_watched(Exists::new("/a")).await.unwrap();
    let (_, given_up) = one.send_watched(Exists::new("/a")).await.unwrap();
    let (_, mut children) = one.send_watched(GetChildren::new("/a")).await.unwrap();
    drop(given_up);
    other.send(set("/a", "new", None)).await.unwrap();
    assert_eq!(reported(first).await, Event::DataChanged);
    assert_eq!(reported(second).await, Event::DataChanged);
    assert_eq!((&mut children).now_or_never(), None);
    other.send(node("/a/b", CreateMode::Persistent)).await.unwrap();
    assert_eq!(reported(children).await, Event::ChildrenChanged);

    let (_, exists) = one.send_watched(Exists::new("/a/b")).await.unwrap();
    let (_, data) = one.send_watched(GetData::new("/a/b")).await.unwrap();
    let (_, children) = one.send_watched(GetChildren::new("/a/b")).await.unwrap();
    other.send(delete("/a/b", None)).await.unwrap();
    for watch in [exists, data, children] {
        assert_eq!(reported(watch).await, Event::Deleted);
    }

    let (_, last) = one.send_watched(GetData::new("/a")).await.unwrap();
    one.close().await;
    assert_eq!(reported(last).await, Event::SessionOver);
}

#[tokio::test]
async fn a_session_that_is_closed_or_dropped_takes_its_nodes_along_at_once() {
    if ZooKeeperServer::is_missing("a_session_that_is_closed_or_dropped") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let looks = session(server.port()).await;
    for close in [true, false] {
        let owner = session(server.port()).await;
        owner.send(node("/mine", CreateMode::Ephemeral)).await.unwrap();
        let (_, gone) = looks.send_watched(Exists::new("/mine")).await.unwrap();
        if close {
            let other_handle = owner.clone();
            owner.close().await;
            assert!(other_handle.is_over());
            assert_eq!(looks.send(Exists::new("/mine")).await, Ok(None));
        }
        drop(owner);
        assert_eq!(reported(gone).await, Event::Deleted);
    }
}

#[test]
fn a_session_outlives_the_runtime_that_it_was_opened_on() {
    if ZooKeeperServer::is_missing("a_session_outlives_the_runtime") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let opened_on = runtime();
    let session = opened_on.block_on(session(server.port()));
    drop(opened_on);
    runtime().block_on(async {
        session.send(node("/a", CreateMode::Ephemeral)).await.unwrap();
        assert_eq!(session.connection(), 1);
        session.close().await;
    });
}

#[tokio::test]
async fn a_user_logs_in_and_others_do_not_get_in() {
    if ZooKeeperServer::is_missing("a_user_logs_in") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let mut user = target(&[server.port()]);
    user.login = Some(("app".into(), "secret".into()));
    let (user, other) = (open(user, LIFE).await.unwrap(), session(server.port()).await);
    let private = Create { acl: Acl::creator_all(), ..node("/a", CreateMode::Persistent) };
    user.send(private).await.unwrap();
    user.send(GetData::new("/a")).await.unwrap();
    let denied = other.send(GetData::new("/a")).await.unwrap_err();
    assert_eq!(denied, Fault::Refused(Code::NoAuth));
}

#[tokio::test]
async fn tls_is_spoken_and_verified() {
    if ZooKeeperServer::is_missing("tls_is_spoken_and_verified") {
        return;
    }
    let files = Certificates::make().unwrap();
    let server = ZooKeeperServer::start_with_tls(&[], &files).unwrap();
    let plain = target(&[server.tls_port().unwrap()]);
    let secure = |ca, identity| {
        let tls = Some(Tls { ca: Some(ca), identity, ..Tls::default() });
        super::Target { tls, ..plain.clone() }
    };
    let session = open(secure(files.ca(), Some(files.of("client"))), LIFE).await.unwrap();
    let calls: Vec<_> =
        (0..100).map(|_| session.send(node("/n-", CreateMode::EphemeralSequential))).collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().path, format!("/n-{number:010}"));
    }

    let within = |target, timeout| refusal(super::Target { timeout, ..target });
    let short = Duration::from_secs(3);
    let others = Certificates::make().unwrap();
    let distrusted = within(secure(others.ca(), Some(files.of("client"))), 30 * GENEROUS);
    let distrusted = tokio::time::timeout(GENEROUS, distrusted).await;
    let distrusted = distrusted.expect("the refusal comes before the timeout");
    for error in [distrusted, within(secure(files.ca(), None), short).await] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("TLS failed"), "{error}");
    }
    let error = refusal(secure("/nowhere.pem".into(), None)).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    // Without TLS the server hangs up, or says nothing.
    let error = within(plain.clone(), short).await;
    assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
    assert!(error.to_string().contains("zks://"), "{error}");
}

#[tokio::test]
async fn the_servers_bound_the_session_timeout() {
    if ZooKeeperServer::is_missing("the_servers_bound_the_session_timeout") {
        return;
    }
    let server =
        ZooKeeperServer::start(&["minSessionTimeout=20000", "maxSessionTimeout=30000"]).unwrap();
    for (wanted, granted) in [(1, 20), (25, 25), (100, 30)]
        .map(|(wanted, granted)| (Duration::from_secs(wanted), Duration::from_secs(granted)))
    {
        let background = Background::start("tenure-test").unwrap();
        let target = Arc::new(target(&[server.port()]));
        let session = Session::open(target, wanted, &background).await.unwrap();
        assert_eq!(session.life(), granted);
    }
}
