//! The command on locks in the layout of Redisson.

use serde_json::Value;
use tenure_testkit::{RedisServer, lacks};

use crate::common::Store;

/// A thread of a Java program.
const JAVA: &str = "99999999-0000-0000-0000-000000000000:17";

#[tokio::test]
async fn the_command_shows_releases_and_takes_locks_of_redisson() {
    if lacks("redis-server", "the command on locks of Redisson") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let url = format!("redis://127.0.0.1:{}?dialect=redisson", server.port());
    let store = Store::new();
    let run = |words: &[&str]| store.run(&[&["--store", &url], words].concat());
    // As RLock writes it, entered twice.
    server.command(&["HSET", "orders", JAVA, "2"]).unwrap();
    server.command(&["PEXPIRE", "orders", "60000"]).unwrap();
    assert_eq!(run(&["run", "-n", "orders", "--", "true"]).code, Some(75));
    let status = run(&["status", "orders", "--json"]).ok();
    let status: Value = serde_json::from_str(&status).unwrap();
    let holder = &status["holders"][0];
    assert_eq!((&holder["owner"], &holder["entered"]), (&JAVA.into(), &2.into()), "{status}");
    assert!(holder["expires_in_ms"].as_u64().unwrap() > 30_000, "{status}");
    let text = run(&["status", "orders"]).ok();
    assert!(text.contains("Redisson, entered 2 times"), "{text}");
    assert!(run(&["ls"]).ok().contains("orders"));
    run(&["release", "--force", "orders", "--reason", "it hangs"]).ok();
    assert_eq!(server.command(&["EXISTS", "orders"]).unwrap(), "0");
    let ran = run(&["run", "orders", "--", "sh", "-c", "echo token $TENURE_TOKEN"]).ok();
    assert!(ran.contains("token 2"), "the eviction has taken 1: {ran}");
    assert_eq!(server.command(&["GET", "redisson_lock_token:{orders}"]).unwrap(), "2");
    let doctor = run(&["doctor"]);
    assert!(doctor.stdout.contains("the user has all rights that locks need"), "{doctor:?}");
    assert!(doctor.stdout.contains("fine    a self-test lock"), "{doctor:?}");
    // Something else is named and left alone.
    server.command(&["SET", "orders", "0123456789abcdef0123456789abcdef"]).unwrap();
    let refused = run(&["run", "-n", "orders", "--", "true"]);
    assert!(refused.stderr.contains("redis-py"), "{refused:?}");
}
