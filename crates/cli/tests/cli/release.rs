//! `tenure release`.

use crate::common::{Store, code};

#[tokio::test]
async fn a_lock_is_released_in_the_name_of_its_owner_and_of_nobody_else() {
    let store = Store::new();
    let (mut holder, _, owner) = store.hold(&["--ttl", "3s"], "a").await;
    let stranger = "0".repeat(32);
    let ran = store.run(&["release", "a", "--owner", &stranger]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 1);
    assert_eq!(store.run(&["release", "a", "--owner", &owner]).ok(), "released a\n");
    store.run(&["run", "-n", "a", "--", "true"]).ok();
    assert_eq!(code(&mut holder).await, Some(76), "the holder is told");
}

#[tokio::test]
async fn a_lock_is_taken_by_force_with_a_reason_and_the_token_advances() {
    let store = Store::new();
    let (mut holder, token, owner) = store.hold(&["--ttl", "3s"], "a").await;
    let evicted = store.run(&["release", "a", "--force", "--reason", "it hangs"]).ok();
    assert!(evicted.contains(&owner) && evicted.contains(&holder.pid().to_string()), "{evicted}");
    let next = store.run(&["run", "-n", "a", "-c", "echo $TENURE_TOKEN"]).ok();
    assert!(next.trim().parse::<u64>().unwrap() > token + 1, "{token} {next}");
    assert_eq!(code(&mut holder).await, Some(76), "the holder is told");
    let again = store.run(&["release", "a", "--force", "--reason", "it hangs"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), "nobody holds a\n"));
}

#[test]
fn force_needs_a_reason() {
    let store = Store::new();
    assert!(store.run(&["release", "a", "--force"]).failed(64).contains("--reason"));
    store.run(&["release", "a"]).failed(64);
    store.run(&["release", "a", "--owner", "xyz"]).failed(64);
}
