//! A flash sale: ten teapots, orders of 5 and 8, and four ways to sell no more than there is. `tenure demo
//! oversell` shows the same with a thousand buyers in several processes.
//!
//! ```text
//! cargo run --example flash_sale              # in memory
//! cargo run --example flash_sale -- redis://127.0.0.1
//! ```

use tenure::{Client, Error, ErrorKind};

const STOCK: u64 = 10;

/// An order that is not carried out.
enum Refused {
    SoldOut,
    Store(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let client = tenure::connect(&store).await?;
    println!("{STOCK} teapots, orders of 5 and 8 at the same time");
    println!("without a lock:       sold {}", unlocked(&client).await?);
    println!("mutex:                sold {}", under_a_mutex(&client).await?);
    println!("compare and swap:     sold {}", compare_and_swap(&client).await?);
    println!("counter with a floor: sold {}", counter(&client).await?);
    client.close().await;
    Ok(())
}

/// Wrong: both read before either writes, and the second write hides the first.
async fn unlocked(client: &Client) -> tenure::Result<u64> {
    let stock = client.cell::<u64>("sale/unlocked")?;
    stock.set(&STOCK).await?;
    let (first, second) = (stock.get().await?.unwrap_or(0), stock.get().await?.unwrap_or(0));
    let mut sold = 0;
    for (seen, count) in [(first, 5), (second, 8)] {
        if seen >= count {
            stock.set(&(seen - count)).await?;
            sold += count;
        }
    }
    stock.remove().await?;
    Ok(sold)
}

/// For work that takes long or changes several things: one order at a time.
async fn under_a_mutex(client: &Client) -> tenure::Result<u64> {
    let stock = client.cell::<u64>("sale/mutex")?;
    stock.set(&STOCK).await?;
    let order = async |count| {
        let sell = async |_: &tenure::Guard| {
            let seen = stock.get().await?.unwrap_or(0);
            if seen < count {
                return Ok(0);
            }
            stock.set(&(seen - count)).await?;
            Ok(count)
        };
        client.mutex("sale/mutex")?.run(sell).await?
    };
    let (first, second) = tokio::join!(order(5), order(8));
    stock.remove().await?;
    Ok(first? + second?)
}

/// For a small value: the change is refused if the value has changed, and made anew.
async fn compare_and_swap(client: &Client) -> tenure::Result<u64> {
    let stock = client.cell::<u64>("sale/swap")?;
    stock.set(&STOCK).await?;
    let order = async |count| {
        let take = |seen: Option<u64>| seen.unwrap_or(0).checked_sub(count).ok_or(Refused::SoldOut);
        match stock.clone().try_update(take).await {
            Ok(_) => Ok(count),
            Err(Refused::SoldOut) => Ok(0),
            Err(Refused::Store(error)) => Err(error),
        }
    };
    let (first, second) = tokio::join!(order(5), order(8));
    stock.remove().await?;
    Ok(first? + second?)
}

/// For a number: one step, which stops at zero.
async fn counter(client: &Client) -> tenure::Result<u64> {
    // It goes by itself, as there is nothing else to remove a counter.
    let stock = client.counter("sale/counter")?.ttl(std::time::Duration::from_secs(60));
    let left = stock.get().await?;
    stock.add(STOCK.cast_signed() - left).await?;
    let order = async |count: u64| match stock.subtract(count.cast_signed(), 0).await {
        Ok(_) => Ok(count),
        Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(0),
        Err(error) => Err(error),
    };
    let (first, second) = tokio::join!(order(5), order(8));
    Ok(first? + second?)
}
