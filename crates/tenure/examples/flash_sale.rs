//! A flash sale: ten teapots, and orders of 5 and 8 at the same time; then a hundred teapots, and a thousand
//! buyers in four processes. Without a lock it sells too much; four ways do not. `tenure demo oversell` shows the
//! same step by step, and says what to pick when.
//!
//! ```text
//! cargo run --example flash_sale              # between the processes of this machine
//! cargo run --example flash_sale -- redis://127.0.0.1
//! ```

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure::{Cell, Client, Counter, Error, ErrorKind, Result};

const PROCESSES: u64 = 4;
const BUYERS: u64 = 1000;
/// Each process serves so many at a time.
const CLERKS: u64 = 5;

/// How to take something out of the stock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Wrong: between the read and the write, another order may do the same.
    Unlocked,
    /// For work that takes long or changes several things: one order at a time.
    Mutex,
    /// Redis compares and swaps by WATCH, MULTI and EXEC: two round trips.
    Watch,
    /// For a small value: the change is refused if the value has changed, and made anew.
    Swap,
    /// For a number: one step, which stops at zero.
    Counter,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Unlocked, "without a lock"),
    (Way::Mutex, "mutex"),
    (Way::Watch, "WATCH / MULTI / EXEC"),
    (Way::Swap, "compare and swap"),
    (Way::Counter, "counter with a floor"),
];

struct Shop {
    way: Way,
    client: Client,
    name: String,
}

/// What came of orders.
#[derive(Default)]
struct Sold {
    pieces: u64,
    conflicts: u64,
    waits: u64,
}

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
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [store, way, name] => buy(store, way, name).await,
        [store] => compare(store).await,
        _ => compare("local").await,
    }
}

async fn compare(store: &str) -> Result<()> {
    println!(
        "{:<22} two orders: sold of 10   1,000 buyers: sold of 100   conflicts   waits   time",
        ""
    );
    for (way, title) in WAYS {
        if way == Way::Watch && !store.starts_with("redis") {
            println!("{title:<22} not applicable: only Redis has WATCH");
            continue;
        }
        let name = format!("flash-sale/{}", std::process::id());
        let shop = Shop::open(store, way, &name).await?;
        shop.fill(10).await?;
        let two = two_orders(&shop).await?;
        shop.fill(100).await?;
        let begun = Instant::now();
        let Sold { pieces, conflicts, waits } = crowd(store, title, &name);
        let time = begun.elapsed().as_millis();
        println!("{title:<22} {two:>23}   {pieces:>25}   {conflicts:>9}   {waits:>5}   {time} ms");
        shop.client.close().await;
    }
    Ok(())
}

/// Orders of 5 and 8 at the same time: how many are sold?
async fn two_orders(shop: &Shop) -> Result<u64> {
    if shop.way == Way::Unlocked {
        // Both read before either writes, and the second write hides the first.
        let stock = shop.cell()?;
        let (one, other) = (stock.get().await?.unwrap_or(0), stock.get().await?.unwrap_or(0));
        stock.set(&(one - 5)).await?;
        stock.set(&(other - 8)).await?;
        return Ok(5 + 8);
    }
    let (one, other) = tokio::join!(shop.order(5), shop.order(8));
    Ok(one?.pieces + other?.pieces)
}

/// Starts the processes, and adds up what they say.
fn crowd(store: &str, way: &str, name: &str) -> Sold {
    let program = std::env::current_exe().expect("this program has a path");
    let start = |_| {
        let mut command = Command::new(&program);
        command.args([store, way, name]).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let buyers: Vec<_> = (0..PROCESSES).map(start).collect();
    let mut sold = Sold::default();
    for buyer in buyers {
        let done = buyer.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&done.stdout);
        let numbers: Vec<u64> = said.split_whitespace().map_while(|it| it.parse().ok()).collect();
        let [pieces, conflicts, waits] = numbers[..] else { panic!("a buyer failed: {said}") };
        sold.pieces += pieces;
        sold.conflicts += conflicts;
        sold.waits += waits;
    }
    sold
}

/// One of the processes: each of its buyers orders one teapot.
async fn buy(store: &str, way: &str, name: &str) -> Result<()> {
    let (way, _) = WAYS.into_iter().find(|(_, title)| *title == way).expect("it is a way to sell");
    let shop = Shop::open(store, way, name).await?;
    let clerk = || async {
        let mut sold = Sold::default();
        for _ in 0..BUYERS / PROCESSES / CLERKS {
            let order = shop.order(1).await?;
            sold.pieces += order.pieces;
            sold.conflicts += order.conflicts;
            sold.waits += order.waits;
        }
        Ok::<_, Error>(sold)
    };
    let (a, b, c, d, e) = tokio::try_join!(clerk(), clerk(), clerk(), clerk(), clerk())?;
    let total = |of: fn(&Sold) -> u64| [&a, &b, &c, &d, &e].into_iter().map(of).sum::<u64>();
    println!("{} {} {}", total(|it| it.pieces), total(|it| it.conflicts), total(|it| it.waits));
    shop.client.close().await;
    Ok(())
}

impl Shop {
    async fn open(store: &str, way: Way, name: &str) -> Result<Self> {
        let more = if store.contains('?') { '&' } else { '?' };
        let client = match way {
            Way::Watch => tenure::connect(&format!("{store}{more}cells=watch")).await?,
            _ => tenure::connect(store).await?,
        };
        Ok(Self { way, client, name: name.into() })
    }

    // What is left of a sale goes by itself.

    fn cell(&self) -> Result<Cell<u64>> {
        Ok(self.client.cell(&self.name)?.ttl(Duration::from_secs(600)))
    }

    fn counter(&self) -> Result<Counter> {
        Ok(self.client.counter(&self.name)?.ttl(Duration::from_secs(600)))
    }

    async fn fill(&self, stock: u64) -> Result<()> {
        let counter = self.counter()?;
        counter.add(stock.cast_signed() - counter.get().await?).await?;
        self.cell()?.set(&stock).await
    }

    async fn order(&self, count: u64) -> Result<Sold> {
        match self.way {
            Way::Unlocked => self.read_and_write(count).await,
            Way::Mutex => self.under_a_mutex(count).await,
            Way::Watch | Way::Swap => self.compare_and_swap(count).await,
            Way::Counter => match self.counter()?.subtract(count.cast_signed(), 0).await {
                Ok(_) => Ok(Sold { pieces: count, ..Sold::default() }),
                Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(Sold::default()),
                Err(error) => Err(error),
            },
        }
    }

    async fn read_and_write(&self, count: u64) -> Result<Sold> {
        let stock = self.cell()?;
        match stock.get().await?.unwrap_or(0).checked_sub(count) {
            None => Ok(Sold::default()),
            Some(left) => {
                stock.set(&left).await?;
                Ok(Sold { pieces: count, ..Sold::default() })
            }
        }
    }

    async fn under_a_mutex(&self, count: u64) -> Result<Sold> {
        let mutex = self.client.mutex(&self.name)?;
        let (guard, waits) = match mutex.try_acquire().await {
            Err(error) if error.kind() == ErrorKind::Busy => (mutex.acquire().await?, 1),
            guard => (guard?, 0),
        };
        let sold = guard.run(self.read_and_write(count)).await??;
        guard.release().await?;
        Ok(Sold { waits, ..sold })
    }

    async fn compare_and_swap(&self, count: u64) -> Result<Sold> {
        let (stock, mut tries) = (self.cell()?, 0);
        let sold = stock.try_update(|stock| {
            tries += 1;
            stock.unwrap_or(0).checked_sub(count).ok_or(Refused::SoldOut)
        });
        let pieces = match sold.await {
            Ok(_) => count,
            Err(Refused::SoldOut) => 0,
            Err(Refused::Store(error)) => return Err(error),
        };
        Ok(Sold { pieces, conflicts: tries - 1, waits: 0 })
    }
}
