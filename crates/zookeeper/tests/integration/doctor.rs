//! What a store finds when it diagnoses real servers.

use crate::common::{config, config_of, store};
use tenure_core::store::Store;
use tenure_core::{Finding, Severity};
use tenure_testkit::{Certificates, GENEROUS, ZooKeeperEnsemble, ZooKeeperServer, eventually};
use tenure_zookeeper::{Access, Tls, ZooKeeperConfig, ZooKeeperStore};

async fn findings(config: &ZooKeeperConfig) -> Vec<Finding> {
    store(config).await.diagnose().await.unwrap()
}

fn has(findings: &[Finding], severity: Severity, word: &str) -> bool {
    findings.iter().any(|one| one.severity == severity && one.what.contains(word))
}

on_servers! {
    async fn a_single_open_server_gets_advice_and_is_not_called_unsafe() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let found = findings(&config_of(&server)).await;
        assert!(has(&found, Severity::Advice, "its loss stops all locks"), "{found:?}");
        assert!(has(&found, Severity::Fine, "recent enough"), "{found:?}");
        assert!(has(&found, Severity::Fine, "as long as 598s"), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
        assert!(found.iter().all(|one| one.severity < Severity::Unsafe), "{found:?}");
        // The nodes are there by now.
        let found = findings(&config_of(&server)).await;
        assert!(has(&found, Severity::Advice, "open to the world"), "{found:?}");
        assert!(has(&found, Severity::Fine, "end of its numbers"), "{found:?}");
        // The self-test lock leaves nothing behind.
        assert_eq!(store(&config_of(&server)).await.list("").await.unwrap(), []);
    }
}

on_servers! {
    async fn limits_and_silence_are_named() {
        // No setting silences `srvr`.
        let settings = ["maxSessionTimeout=12000", "4lw.commands.whitelist=ruok"];
        let server = ZooKeeperServer::start(&settings).unwrap();
        let mut login = config_of(&server);
        (login.username, login.password) = (Some("app".into()), Some("secret".into()));
        login.access = Access::Creator;
        let found = findings(&login).await;
        assert!(has(&found, Severity::Advice, "a TTL above 10s is refused"), "{found:?}");
        assert!(has(&found, Severity::Advice, "word conf is off"), "{found:?}");
        assert!(has(&found, Severity::Advice, "without encryption"), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
    }
}

on_servers! {
    async fn servers_are_asked_over_tls_too() {
        let files = Certificates::make().unwrap();
        let server = ZooKeeperServer::start_with_tls(&[], &files).unwrap();
        let mut config = config_of(&server);
        config.servers[0].1 = server.tls_port().unwrap();
        config.tls = Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
        let found = findings(&config).await;
        assert!(has(&found, Severity::Fine, "recent enough"), "{found:?}");
        assert!(has(&found, Severity::Fine, "as long as 598s"), "{found:?}");
        assert!(!has(&found, Severity::Advice, "four-letter word"), "{found:?}");
    }
}

on_servers! {
    async fn an_ensemble_is_counted_and_a_dead_server_is_named() {
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let all = config(&ensemble.addresses());
        let found = findings(&all).await;
        assert!(has(&found, Severity::Fine, "all of 3 servers serve: 1 may fail"), "{found:?}");
        let mut two = all.clone();
        two.servers.pop();
        assert!(has(&findings(&two).await, Severity::Advice, "names 2 of 3"));
        ensemble.members()[2].kill9().unwrap();
        // The dead server may have been the leader: the others elect another first.
        let serves = || async { ZooKeeperStore::connect(all.clone()).await.is_ok() };
        assert!(eventually(GENEROUS, serves).await);
        let found = findings(&all).await;
        let dead = format!(":{}", all.servers[2].1);
        assert!(has(&found, Severity::Advice, &dead), "{found:?}");
        assert!(has(&found, Severity::Fine, "self-test lock"), "{found:?}");
    }
}

on_servers! {
    async fn a_server_that_hangs_does_not_serve() {
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let all = config(&ensemble.addresses());
        let hung = (ensemble.leader().unwrap() + 1) % 3;
        ensemble.members()[hung].stop().unwrap();
        let hangs = format!(":{} (it takes connections, but does not answer)", all.servers[hung].1);
        // The hanging server may be asked first, and the others may be slow.
        let told = eventually(GENEROUS, || async {
            let Ok(store) = ZooKeeperStore::connect(all.clone()).await else { return false };
            store.diagnose().await.is_ok_and(|found| {
                has(&found, Severity::Advice, &hangs)
                    && !has(&found, Severity::Fine, "servers serve")
                    && !has(&found, Severity::Advice, "four-letter word")
            })
        });
        assert!(told.await);
    }
}
