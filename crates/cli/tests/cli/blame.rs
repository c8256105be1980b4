//! `blame`.

use rustix::process::Signal;
use serde_json::Value;

use crate::common::*;

fn blame(store: &Store, options: &[&str]) -> Vec<Value> {
    let printed = store.run(&[&["blame", "--json"], options].concat()).ok();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn blame_names_the_holder_of_a_stall_after_it_is_over() {
    let store = Store::new();
    let (mut holder, token, _) = store.hold(&["--label", "nightly »report«"], "a").await;
    let mut waiter = store.start(&["run", "--label", "deploy", "a", "--", "true"]);
    store.wait_for_waiters("a", 1).await;
    let present = || async { !blame(&store, &[]).is_empty() };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, present).await);
    let [waiting] = &blame(&store, &["a"])[..] else { panic!("one waits") };
    assert_eq!((&waiting["waiting"], &waiting["lock"]), (&true.into(), &"a".into()));
    signal(&holder, Signal::TERM);
    assert_eq!((code(&mut holder).await, code(&mut waiter).await), (Some(0), Some(0)));

    let [wait] = &blame(&store, &["--since", "10m"])[..] else { panic!("one waited") };
    assert_eq!((&wait["waiting"], &wait["waits"]), (&false.into(), &1.into()));
    assert_eq!((&wait["blocker"]["pid"], &wait["token"]), (&holder.pid().into(), &token.into()));
    assert_eq!(
        (&wait["waiter"]["pid"], &wait["waiter"]["label"]),
        (&waiter.pid().into(), &"deploy".into())
    );
    assert!(wait["total_ms"].as_u64().unwrap() >= 1_000);
    let table = store.run(&["blame"]).ok();
    assert!(table.contains(&format!(":{} (nightly »report«)", holder.pid())), "{table}");
    let none = store.run(&["blame", "b"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""));
    assert!(none.stderr.contains("no wait of more than a second"), "{none:?}");
}
