//! The scripts of the Redis gate, on a real server.

use tenure_core::{LockName, Token};
use tenure_gate::redis::{SET, gated, refusal};
use tenure_testkit::{RedisServer, lacks};

#[test]
fn redis_refuses_a_lower_token_in_the_step_that_writes() {
    if lacks("redis-server", "redis_refuses_a_lower_token_in_the_step_that_writes") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let set = |token: &str, value: &str| {
        server.command(&["EVAL", SET, "2", "{stock}:fence", "{stock}", token, value]).unwrap()
    };
    assert_eq!(set("9", "a"), "written");
    assert_eq!(set("10", "b"), "written");
    assert_eq!(set("10", "c"), "written");
    let reply = set("9", "late");
    assert_eq!(reply, "stale 10");
    // Numbers beyond what a double can represent.
    assert_eq!(set("9223372036854775807", "d"), "written");
    assert_eq!(set("9223372036854775806", "late"), "stale 9223372036854775807");
    assert_eq!(server.command(&["GET", "{stock}"]).unwrap(), "d");

    let lock = LockName::new("stock").unwrap();
    assert!(refusal(&reply, &lock, Token::new(9)).unwrap().is_stale());
    assert!(refusal("written", &lock, Token::new(9)).is_none());
}

#[test]
fn a_custom_script_runs_only_with_a_current_token() {
    if lacks("redis-server", "a_custom_script_runs_only_with_a_current_token") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let debit = gated("return redis.call('DECRBY', KEYS[2], ARGV[2])");
    let run = |token: &str| {
        server.command(&["EVAL", &debit, "2", "{7}:fence", "{7}", token, "5"]).unwrap()
    };
    assert_eq!(run("2"), "-5");
    assert_eq!(run("1"), "stale 2");
    for malformed in ["", "x", "1e3", "-1", "01", " 2"] {
        assert!(run(malformed).starts_with("-ERR"), "{malformed:?}");
    }
    server.command(&["SET", "{7}:fence", "damaged"]).unwrap();
    assert!(run("3").starts_with("-ERR"));
    assert_eq!(server.command(&["GET", "{7}"]).unwrap(), "-5");
}
