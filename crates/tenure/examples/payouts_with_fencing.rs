//! A holder that was frozen writes too late. The database refuses it, because it has seen a larger
//! fencing token.
//!
//! ```text
//! cargo run --example payouts_with_fencing
//! ```

use std::sync::Arc;

use tenure::{Chaos, Client, Faults, MemoryStore, Token};

/// Stands for a table with a column for the token. In SQL:
/// `UPDATE account SET balance = $1, fence = $2 WHERE id = 7 AND fence <= $2`.
struct Account {
    balance: i64,
    fence: Option<Token>,
}

impl Account {
    /// False: a later holder has written.
    fn pay_out(&mut self, amount: i64, token: Token) -> bool {
        if self.fence.is_some_and(|seen| token < seen) {
            return false;
        }
        self.fence = Some(token);
        self.balance -= amount;
        true
    }
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    // `fenced` refuses a store without tokens, so `token()` below is not an Option.
    let payouts = Client::new(chaos.clone())?.mutex("payouts")?.fenced()?;
    let mut account = Account { balance: 100, fence: None };

    let first = payouts.acquire().await?;
    println!("first holder:  token {}", first.token());

    // The first holder freezes (a long pause, a swapped-out machine), and its lease ends.
    chaos.lose("payouts").await?;

    let second = payouts.acquire().await?;
    println!("second holder: token {}", second.token());
    println!("second holder pays out 30: accepted = {}", account.pay_out(30, second.token()));
    second.release().await?;

    // The first holder wakes up in the middle of its write. It had no chance to look at the clock.
    println!("first holder pays out 30:  accepted = {}", account.pay_out(30, first.token()));
    println!("balance: {}, still held by the first: {}", account.balance, first.is_valid());
    assert_eq!(account.balance, 70);
    Ok(())
}
