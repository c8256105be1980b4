//! What the store says about its directory.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use tenure_core::store::Store;
use tenure_core::{Client, Finding, Severity};
use tenure_local::LocalStore;

async fn unsafe_ones(store: &LocalStore) -> Vec<Finding> {
    let findings = store.diagnose().await.unwrap();
    findings.into_iter().filter(|finding| finding.severity == Severity::Unsafe).collect()
}

#[tokio::test]
async fn a_new_directory_has_no_problems_and_its_processes_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let _other = LocalStore::open(dir.path()).unwrap();
    assert_eq!(unsafe_ones(&store).await, []);
    let findings = store.diagnose().await.unwrap();
    let has = |text: &str| findings.iter().any(|finding| finding.what.contains(text));
    assert!(has("2 of 4096 process slots") && has("0 of 262143 locks"), "{findings:?}");
}

#[tokio::test]
async fn a_directory_that_other_users_can_write_is_unsafe_until_its_mode_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    for path in [dir.path().to_owned(), dir.path().join("table"), dir.path().join("tokens")] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        let found = unsafe_ones(&store).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].remedy.starts_with("chmod go-w /"), "{found:?}");
        fs::set_permissions(&path, before).unwrap();
    }
    assert_eq!(unsafe_ones(&store).await, []);
}

#[tokio::test]
async fn a_file_deleted_or_replaced_while_in_use_is_unsafe() {
    for name in ["table", "members", "tokens"] {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        let path = dir.path().join(name);
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        fs::copy(dir.path().join("elsewhere"), &path).unwrap();
        fs::remove_file(dir.path().join("elsewhere")).unwrap();
        let found = unsafe_ones(&store).await;
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].what.contains(&format!("/{name} was deleted")), "{found:?}");
    }
}

#[tokio::test]
async fn freed_records_are_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let client = Client::new(Arc::new(store.clone())).unwrap();
    let used = async || {
        let findings = store.diagnose().await.unwrap();
        let room = findings.iter().find(|finding| finding.what.contains("in the table")).unwrap();
        room.what.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let a = client.mutex("a").unwrap().acquire().await.unwrap();
    let one = used().await;
    let b = client.mutex("b").unwrap().acquire().await.unwrap();
    assert_eq!(used().await, 2 * one);
    a.release().await.unwrap();
    assert_eq!(used().await, one);
    b.release().await.unwrap();
    assert_eq!(used().await, 0);
}
