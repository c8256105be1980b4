//! `tenure demo oversell`.

use serde_json::Value;
use tenure_testkit::{EtcdServer, RedisServer, ZooKeeperServer, lacks};

use crate::common::{Ran, Store};

const SMALL: [&str; 8] =
    ["demo", "oversell", "--buyers", "40", "--processes", "2", "--stock", "15"];

fn objects(ran: Ran) -> Vec<Value> {
    ran.ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The objects of a part of the demo, by the way to sell.
fn of<'a>(objects: &'a [Value], part: &str, way: &str) -> &'a Value {
    objects.iter().find(|it| it["part"] == part && it["way"] == way).unwrap()
}

fn check_sales(objects: &[Value], ways: &[&str]) {
    let unlocked = of(objects, "two buyers", "unlocked");
    assert_eq!((&unlocked["sold"], &unlocked["oversold"]), (&13.into(), &3.into()));
    let unlocked = of(objects, "crowd", "unlocked");
    assert!(unlocked["oversold"].as_u64().unwrap() > 0, "{unlocked}");
    for way in ways {
        let two = of(objects, "two buyers", way);
        assert_eq!((&two["sold"], &two["oversold"]), (&5.into(), &0.into()), "{two}");
        let crowd = of(objects, "crowd", way);
        assert_eq!((&crowd["sold"], &crowd["oversold"]), (&15.into(), &0.into()), "{crowd}");
    }
}

#[test]
fn only_the_sale_without_a_lock_oversells() {
    let store = Store::new();
    let objects = objects(store.run(&[&SMALL[..], &["--json"]].concat()));
    check_sales(&objects, &["mutex", "swap", "counter"]);
    let missing = objects.iter().find(|it| it["way"] == "watch").unwrap();
    assert_eq!(missing["applicable"], false);
}

#[test]
fn on_redis_watch_is_one_of_the_ways_and_no_value_is_left() {
    if lacks("redis-server", "on_redis_watch_is_one_of_the_ways_and_no_value_is_left") {
        return;
    }
    let (store, server) = (Store::new(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://127.0.0.1:{}", server.port());
    let objects = objects(store.run(&[&["--store", &url, "--json"], &SMALL[..]].concat()));
    check_sales(&objects, &["mutex", "watch", "swap", "counter"]);
    let keys = server.command(&["KEYS", "*demo*"]).unwrap();
    assert_eq!(keys.trim(), "", "left behind");
}

fn check_on(url: &str) {
    let objects = objects(Store::new().run(&[&["--store", url, "--json"], &SMALL[..]].concat()));
    check_sales(&objects, &["mutex", "swap", "counter"]);
}

#[test]
fn only_the_sale_without_a_lock_oversells_on_etcd() {
    if lacks("etcd", "the shop on etcd") {
        return;
    }
    let server = EtcdServer::start(&[]).unwrap();
    check_on(&format!("etcd://127.0.0.1:{}", server.port()));
}

#[test]
fn only_the_sale_without_a_lock_oversells_on_zookeeper() {
    if ZooKeeperServer::is_missing("the shop on ZooKeeper") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    check_on(&format!("zk://127.0.0.1:{}", server.port()));
}

#[test]
fn the_table_and_the_advice_are_plain_text_without_a_terminal() {
    let store = Store::new();
    let ran = store.run(&SMALL);
    assert_eq!(ran.stderr, "", "a progress bar is for terminals");
    let said = ran.ok();
    assert!(said.contains("sold 13 of 10: 3 teapots do not exist"), "{said}");
    assert!(said.contains("WAY ") && said.contains("What to pick:"), "{said}");
    assert!(!said.contains('\x1b'), "{said}");
}

#[test]
fn a_sale_that_cannot_be_shown_is_a_usage_error() {
    let store = Store::new();
    store.run(&["demo", "oversell", "--buyers", "10", "--stock", "10"]).failed(64);
    store
        .run(&["demo", "oversell", "--buyers", "3", "--stock", "1", "--processes", "4"])
        .failed(64);
    store.run(&["--store", "memory:", "demo", "oversell"]).failed(64);
}
