//! A process with many buyers: it is told what to do line by line, and ends with its standard input.
//!
//! | in | out |
//! |---|---|
//! | `prepare WAY SALE BUYERS EARLY` | `ready` |
//! | `go` | `read`, when the early buyers of an unlocked sale have read; `done N` now and then |
//! | `write`, after `read` | |
//! | | `sold N CONFLICTS WAITS` at the end, or `failed CODE MESSAGE` |

use std::sync::Arc;

use tokio::sync::{Barrier, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::shop::{self, Order, Shop, Way};
use crate::exit::{self, Failure, Outcome};
use crate::output::Output;

/// How many orders a process handles at a time; the other buyers wait at its door. More at a time would
/// measure how long a store takes to refuse them.
const CLERKS: usize = 8;

pub(super) async fn execute(store: &str, output: &Output) -> Outcome {
    let mut lines = standard_input();
    while let Some(line) = lines.recv().await {
        let outcome = match line.split(' ').collect::<Vec<_>>()[..] {
            ["prepare", way, sale, buyers, early] => {
                let numbers = (buyers.parse(), early.parse());
                match (Way::named(way), numbers) {
                    (Some(way), (Ok(buyers), Ok(early))) => {
                        sell(store, way, sale, (buyers, early), &mut lines, output).await
                    }
                    _ => Err(nonsense(&line)),
                }
            }
            _ => Err(nonsense(&line)),
        };
        if let Err(failure) = outcome {
            let _ = output.line(format_args!("failed {} {}", failure.code, failure.message));
            return Ok(failure.code);
        }
    }
    Ok(exit::OK)
}

async fn sell(
    store: &str,
    way: Way,
    sale: &str,
    (buyers, early): (usize, usize),
    lines: &mut mpsc::Receiver<String>,
    output: &Output,
) -> Result<(), Failure> {
    let say = |words: &str| output.line(words).map_err(|_| Failure::new(exit::INTERNAL, ""));
    let shop = Arc::new(Shop::new(way, shop::connect(way, store).await?, sale));
    say("ready")?;
    expect(lines, "go").await?;
    let early = if way == Way::Unlocked { early } else { 0 };
    // The early buyers and this task meet twice: when all have read, and when they may write.
    let (has_read, may_write) =
        (Arc::new(Barrier::new(early + 1)), Arc::new(Barrier::new(early + 1)));
    let (mut orders, clerks) = (JoinSet::new(), Arc::new(Semaphore::new(early.max(CLERKS))));
    let order = |is_early: bool, orders: &mut JoinSet<_>| {
        let (shop, clerks) = (shop.clone(), clerks.clone());
        let (has_read, may_write) = (has_read.clone(), may_write.clone());
        let pause = async move {
            if is_early {
                has_read.wait().await;
                may_write.wait().await;
            }
        };
        orders.spawn(async move {
            let _clerk = clerks.acquire().await;
            shop.order(1, pause).await
        });
    };
    (0..early).for_each(|_| order(true, &mut orders));
    if early > 0 {
        has_read.wait().await;
        say("read")?;
        expect(lines, "write").await?;
        may_write.wait().await;
    }
    (early..buyers).for_each(|_| order(false, &mut orders));
    let (mut total, mut done) = (Order::default(), 0);
    let share = (buyers / 20).max(1);
    while let Some(order) = orders.join_next().await {
        let failed = |error| Failure::new(exit::INTERNAL, format!("a buyer failed: {error}"));
        let Order { sold, conflicts, waits } = order.map_err(failed)??;
        total.sold += sold;
        total.conflicts += conflicts;
        total.waits += waits;
        done += 1;
        if done % share == 0 {
            say(&format!("done {done}"))?;
        }
    }
    say(&format!("sold {} {} {}", total.sold, total.conflicts, total.waits))
}

async fn expect(lines: &mut mpsc::Receiver<String>, word: &str) -> Result<(), Failure> {
    match lines.recv().await {
        Some(line) if line == word => Ok(()),
        Some(line) => Err(nonsense(&line)),
        None => Err(Failure::new(exit::OK, "")),
    }
}

fn nonsense(line: &str) -> Failure {
    Failure::new(exit::USAGE, format!("{line:?} is no order of `tenure demo`"))
}

/// The lines of standard input. At its end the process ends, whatever its buyers do: then the process that
/// started it is gone.
fn standard_input() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(8);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
        std::process::exit(i32::from(exit::OK));
    });
    lines
}
