//! A guard row by which PostgreSQL refuses late transactions.
//!
//! [`admit`] comes first in a transaction. It compares and records the token in one row for each lock, and
//! holds that row until the transaction ends. So of two holders the older one is refused, or it commits
//! before the newer one writes.
//!
//! ```no_run
//! # async fn example(
//! #     mut client: tokio_postgres::Client,
//! #     guard: tenure::Guard,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::gate::postgres;
//!
//! postgres::create_table(&client).await?; // once
//!
//! let transaction = client.transaction().await?;
//! let token = guard.token().ok_or("the store gives no tokens")?;
//! postgres::admit(&transaction, guard.name(), token).await?;
//! transaction.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 7", &[]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A write to a single row needs no guard row if it has a column for the token:
//! `UPDATE reports SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2`. No row changed: refused.

use tenure_core::{LockName, Token};
use tokio_postgres::{Error, GenericClient, Transaction};

use crate::GateError;

/// The statement of [`create_table`], for programs that keep their schema elsewhere.
pub const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS tenure_fence (lock text PRIMARY KEY, token bigint NOT NULL)";

/// Makes the table `tenure_fence`, if there is none.
///
/// # Errors
/// Faults of the database.
pub async fn create_table(client: &impl GenericClient) -> Result<(), Error> {
    client.execute(TABLE, &[]).await.map(drop)
}

/// Records `token` as the highest one of `lock`, until the transaction ends, and for good if it commits.
///
/// # Errors
/// [`GateError::Stale`] if a higher token was recorded: roll back. [`GateError::Resource`] for faults of the
/// database.
///
/// # Cancel safety
/// Dropped, it may or may not have recorded the token: roll back.
pub async fn admit(
    transaction: &Transaction<'_>,
    lock: &LockName,
    token: Token,
) -> Result<(), GateError<Error>> {
    // Under READ COMMITTED the condition is checked on the row as its last writer left it, after waiting for
    // that transaction.
    const ADMIT: &str = "INSERT INTO tenure_fence AS seen (lock, token) VALUES ($1, $2) \
        ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token WHERE seen.token <= EXCLUDED.token";
    let resource = |source| GateError::Resource { lock: lock.clone(), source };
    // Stores give tokens below 2^63, which is as far as a bigint goes.
    let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
    let admitted =
        transaction.execute(ADMIT, &[&lock.as_str(), &number]).await.map_err(resource)?;
    if admitted == 1 {
        return Ok(());
    }
    const NEWEST: &str = "SELECT token FROM tenure_fence WHERE lock = $1";
    let row = transaction.query_one(NEWEST, &[&lock.as_str()]).await.map_err(resource)?;
    let newest = u64::try_from(row.try_get::<_, i64>(0).map_err(resource)?).unwrap_or_default();
    Err(GateError::Stale { lock: lock.clone(), token, newest: Token::new(newest) })
}
