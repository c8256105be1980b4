//! `tenure release`.

use crate::common::{Store, code};

#[tokio::test]
async fn release_with_owner_releases_only_the_lock_of_that_owner() {
    let store = Store::new();
    let (mut holder, _, owner) = store.hold(&["--ttl", "3s"], "a").await;
    let unrelated = "0".repeat(32);
    let ran = store.run(&["release", "a", "--owner", &unrelated]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 1);
    assert_eq!(store.run(&["release", "a", "--owner", &owner]).ok(), "released a\n");
    store.run(&["run", "-n", "a", "--", "true"]).ok();
    assert_eq!(code(&mut holder).await, Some(76), "the holder is notified");
}

#[tokio::test]
async fn release_with_force_evicts_the_holder_and_advances_the_token() {
    let store = Store::new();
    let (mut holder, token, owner) = store.hold(&["--ttl", "3s"], "a").await;
    let evicted = store.run(&["release", "a", "--force", "--reason", "it hangs"]).ok();
    assert!(evicted.contains(&owner) && evicted.contains(&holder.pid().to_string()), "{evicted}");
    let next = store.run(&["run", "-n", "a", "-c", "echo $TENURE_TOKEN"]).ok();
    assert!(next.trim().parse::<u64>().unwrap() > token + 1, "{token} {next}");
    assert_eq!(code(&mut holder).await, Some(76), "the holder is notified");
    let again = store.run(&["release", "a", "--force", "--reason", "it hangs"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), "a is not held\n"));
}

#[test]
fn release_with_force_requires_a_reason() {
    let store = Store::new();
    assert!(store.run(&["release", "a", "--force"]).failed(64).contains("--reason"));
    store.run(&["release", "a"]).failed(64);
    store.run(&["release", "a", "--owner", "xyz"]).failed(64);
}
