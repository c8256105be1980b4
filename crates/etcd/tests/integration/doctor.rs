//! What a store finds when it diagnoses real clusters.

use crate::common::{config, config_of, store};
use tenure_core::store::Store;
use tenure_core::{Finding, Severity};
use tenure_etcd::{EtcdConfig, EtcdStore};
use tenure_testkit::{EtcdCluster, EtcdServer, GENEROUS, eventually};

async fn findings(config: &EtcdConfig) -> Vec<Finding> {
    store(config).await.diagnose().await.unwrap()
}

fn has(findings: &[Finding], severity: Severity, word: &str) -> bool {
    findings.iter().any(|one| one.severity == severity && one.what.contains(word))
}

on_servers! {
    async fn a_single_member_without_logins_gets_advice_and_is_not_called_unsafe() {
        let server = EtcdServer::start(&[]).unwrap();
        let found = findings(&config_of(&server)).await;
        assert!(has(&found, Severity::Advice, "the loss of one stops"), "{found:?}");
        assert!(has(&found, Severity::Advice, "no user has to log in"), "{found:?}");
        assert!(has(&found, Severity::Fine, "no alarm"), "{found:?}");
        assert!(has(&found, Severity::Fine, "as short as 2s"), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
        assert!(found.iter().all(|one| one.severity < Severity::Unsafe), "{found:?}");
        // The self-test lock leaves nothing behind.
        assert_eq!(store(&config_of(&server)).await.list("").await.unwrap(), []);
    }
}

on_servers! {
    async fn a_cluster_is_counted_and_a_dead_member_is_named() {
        let mut cluster = EtcdCluster::start().unwrap();
        let all = config(&cluster.addresses());
        let found = findings(&all).await;
        assert!(has(&found, Severity::Fine, "all 3 members answer"), "{found:?}");
        assert!(has(&found, Severity::Fine, "agree on a leader"), "{found:?}");
        let mut two = all.clone();
        two.servers.pop();
        assert!(has(&findings(&two).await, Severity::Advice, "names 2 of 3"));
        cluster.members()[2].kill9().unwrap();
        // The dead member may have been the leader: the others elect another first.
        let serves = || async { EtcdStore::connect(all.clone()).await.is_ok() };
        assert!(eventually(GENEROUS, serves).await);
        let found = findings(&all).await;
        let dead = format!(":{}", all.servers[2].1);
        assert!(has(&found, Severity::Advice, &dead), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
    }
}

on_servers! {
    async fn a_full_server_is_unsafe() {
        // The smallest quota there is: a few writes fill it.
        let server = EtcdServer::start(&["--quota-backend-bytes=65536"]).unwrap();
        let filler = "x".repeat(20_000);
        for round in 0..40 {
            if server.control(&["put", &format!("filler{round}"), &filler]).is_err() {
                break;
            }
        }
        let found = findings(&config_of(&server)).await;
        assert!(has(&found, Severity::Unsafe, "NOSPACE"), "{found:?}");
        assert!(has(&found, Severity::Unsafe, "self-test lock"), "{found:?}");
    }
}

on_servers! {
    async fn old_versions_and_alarms_are_reported_as_far_as_the_user_may_ask() {
        let server = EtcdServer::start(&["--election-timeout=10000"]).unwrap();
        for words in [
            &["role", "add", "root"][..],
            &["user", "add", "root:secret"],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "readwrite", "tenure/", "--prefix=true"],
            &["user", "add", "locker:secret"],
            &["user", "grant-role", "locker", "locks"],
            &["auth", "enable"],
        ] {
            server.control(words).unwrap();
        }
        let mut config = config_of(&server);
        config.username = Some("locker".into());
        config.password = Some("secret".into());
        let found = findings(&config).await;
        assert!(has(&found, Severity::Advice, "without encryption"), "{found:?}");
        assert!(has(&found, Severity::Advice, "whatever its TTL"), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
    }
}
