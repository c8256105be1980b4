//! The fencing recipes of docs/fencing.md and docs/when-not-to-lock.md, as they stand there, on real servers.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod database;

use database::{connect, server};
use tenure_testkit::{RedisServer, lacks};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

const FENCING: &str = include_str!("../../../docs/fencing.md");
const WHEN_NOT: &str = include_str!("../../../docs/when-not-to-lock.md");

/// The blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[tokio::test]
async fn the_sql_recipes_refuse_a_stale_token() {
    let Some(server) = server("the_sql_recipes_refuse_a_stale_token") else { return };
    let client = connect(&server).await;
    for block in blocks(FENCING, "sql") {
        client.batch_execute(block).await.unwrap();
    }
    // One row: 90 was written with token 34 and 80 refused; 10 and 10 were paid out then.
    assert_eq!(balance(&client).await, (70, 35));
    // The guard row.
    let check = async |token: i64| {
        client.execute("SELECT tenure_fence_check('payouts', $1)", &[&token]).await
    };
    check(34).await.unwrap();
    refused(check(33).await);
    check(40).await.unwrap();
    refused(check(39).await);
    // The trigger.
    refused(client.execute("UPDATE account SET balance = 0", &[]).await);
    let stale = "BEGIN; SET LOCAL tenure.token = '34'; UPDATE account SET balance = 0; COMMIT";
    refused(client.batch_execute(stale).await);
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(balance(&client).await, (70, 35));
}

#[tokio::test]
async fn the_sql_that_needs_no_lock_works_once() {
    let Some(server) = server("the_sql_that_needs_no_lock_works_once") else { return };
    let client = connect(&server).await;
    let tables = "CREATE TABLE stock (item int, left_over int); INSERT INTO stock VALUES (42, 1); \
                  CREATE TABLE document (id int, body text, version int); \
                  INSERT INTO document VALUES (7, 'old text', 3); \
                  CREATE TABLE job (id int, payload text); INSERT INTO job VALUES (1, 'a')";
    client.batch_execute(tables).await.unwrap();
    let sql = blocks(WHEN_NOT, "sql").concat();
    client.batch_execute(&sql).await.unwrap();
    client.batch_execute(&sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")).await.unwrap();
    let rows = "SELECT (SELECT left_over FROM stock), (SELECT version FROM document), \
                (SELECT count(*)::int FROM payment), (SELECT count(*)::int FROM job)";
    let row = client.query_one(rows, &[]).await.unwrap();
    assert_eq!((0..4).map(|column| row.get(column)).collect::<Vec<i32>>(), [0, 4, 1, 0]);
}

#[test]
fn the_lua_recipe_refuses_a_stale_token() {
    if lacks("redis-server", "the_lua_recipe_refuses_a_stale_token") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let script = blocks(FENCING, "lua")[0];
    let write = |token: &str, value: &str| {
        let keys = ["{account:7}:fence", "{account:7}"];
        server.command(&["EVAL", script, "2", keys[0], keys[1], token, value]).unwrap()
    };
    assert_eq!(write("34", "90"), "written");
    assert_eq!(write("33", "80"), "stale 34");
    assert_eq!(write("34", "70"), "written");
    assert_eq!(write("100", "60"), "written");
    assert_eq!(write("99", "50"), "stale 100");
    assert_eq!(server.command(&["GET", "{account:7}"]).unwrap(), "60");
}

async fn balance(client: &Client) -> (i64, i64) {
    let row = client.query_one("SELECT balance, fence FROM account", &[]).await.unwrap();
    (row.get(0), row.get(1))
}

fn refused<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("a stale token was accepted");
    assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION), "{error}");
}
