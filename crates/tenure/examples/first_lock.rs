//! Takes a lock, works under it for three seconds, and releases it.
//!
//! ```text
//! cargo run --example first_lock                      # run it in two terminals: the second one waits
//! cargo run --example first_lock redis://localhost    # the same on another store
//! ```

use std::time::Duration;

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "local".into());
    let client = tenure::connect(&url).await?;
    let mutex = client.mutex("first-lock")?.fenced()?; // refuses a store without tokens

    println!("waiting for the lock …");
    mutex
        .run(async |guard| {
            println!("held, token {}", guard.token());
            // If the lock is lost, this work is dropped at its next await.
            for second in 1..=3 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                println!("worked for {second} s");
            }
        })
        .await?;
    println!("released");

    client.close().await;
    Ok(())
}
