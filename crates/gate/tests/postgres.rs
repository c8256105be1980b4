//! The guard row, on a real PostgreSQL.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod database;

use database::{connect, server};
use tenure_core::{LockName, Token};
use tenure_gate::{GateError, postgres};
use tenure_testkit::{GENEROUS, eventually};
use tokio_postgres::Client;

async fn stock(client: &Client) -> i32 {
    client.query_one("SELECT stock FROM shop", &[]).await.unwrap().get(0)
}

async fn prepare(client: &Client) {
    postgres::create_table(client).await.unwrap();
    postgres::create_table(client).await.unwrap();
    client
        .batch_execute("CREATE TABLE shop (stock int); INSERT INTO shop VALUES (10)")
        .await
        .unwrap();
}

async fn sell(client: &mut Client, token: u64) -> Result<(), GateError<tokio_postgres::Error>> {
    let lock = LockName::new("shop").unwrap();
    let transaction = client.transaction().await.unwrap();
    postgres::admit(&transaction, &lock, Token::new(token)).await?;
    transaction.execute("UPDATE shop SET stock = stock - 5", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

#[tokio::test]
async fn a_transaction_with_a_lower_token_changes_nothing() {
    let Some(server) = server("a_transaction_with_a_lower_token_changes_nothing") else { return };
    let mut client = connect(&server).await;
    prepare(&client).await;
    sell(&mut client, 34).await.unwrap();
    let late = sell(&mut client, 33).await.unwrap_err();
    assert!(matches!(late, GateError::Stale { newest, .. } if newest == Token::new(34)), "{late}");
    assert_eq!(stock(&client).await, 5);
    sell(&mut client, 34).await.unwrap();
    assert_eq!(stock(&client).await, 0);
}

#[tokio::test]
async fn a_late_transaction_waits_for_the_one_that_was_admitted_and_is_refused_then() {
    const TEST: &str = "a_late_transaction_waits_for_the_one_that_was_admitted_and_is_refused_then";
    let Some(server) = server(TEST) else { return };
    let (mut new, mut old, look) =
        (connect(&server).await, connect(&server).await, connect(&server).await);
    prepare(&new).await;
    sell(&mut new, 1).await.unwrap();
    let lock = LockName::new("shop").unwrap();
    let transaction = new.transaction().await.unwrap();
    postgres::admit(&transaction, &lock, Token::new(3)).await.unwrap();
    let late = tokio::spawn(async move { sell(&mut old, 2).await });
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let waits = || async { look.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 1 };
    assert!(eventually(GENEROUS, waits).await, "the late transaction does not wait");
    transaction.commit().await.unwrap();
    assert!(late.await.unwrap().unwrap_err().is_stale());
    assert_eq!(stock(&look).await, 5);
}

#[tokio::test]
async fn a_transaction_that_rolls_back_takes_its_token_back() {
    let Some(server) = server("a_transaction_that_rolls_back_takes_its_token_back") else { return };
    let mut client = connect(&server).await;
    prepare(&client).await;
    let lock = LockName::new("shop").unwrap();
    let transaction = client.transaction().await.unwrap();
    postgres::admit(&transaction, &lock, Token::new(9)).await.unwrap();
    transaction.rollback().await.unwrap();
    sell(&mut client, 8).await.unwrap();
}
