//! Two orders that cannot both be carried out, step by step.

use serde::Serialize;
use tenure::{Error, ErrorKind};

use super::shop::{Refused, Shop, Way};
use crate::output::{Closed, Output};

const STOCK: u64 = 10;
const ANN: u64 = 5;
const BOB: u64 = 8;

pub(super) const INTRODUCTION: &str = "Ten teapots are in stock. Ann orders 5 and Bob orders 8, at \
     the same time. One of them must be refused.\n";

/// What happened, and what was sold.
#[derive(Serialize)]
pub(super) struct Story {
    part: &'static str,
    way: &'static str,
    stock: u64,
    steps: Vec<String>,
    pub(super) sold: u64,
    pub(super) oversold: u64,
}

impl Story {
    pub(super) fn print(&self, output: &Output, way: Way) -> Result<(), Closed> {
        let steps: String = self.steps.iter().map(|step| format!("  {step}\n")).collect();
        let verdict = match self.oversold {
            0 => format!("sold {} of {STOCK}", self.sold),
            more => format!("sold {} of {STOCK}: {more} teapots do not exist", self.sold),
        };
        output.result(self, format_args!("{}\n{steps}  => {verdict}\n", way.title()))
    }
}

/// Both order from this shop.
pub(super) async fn order(shop: &Shop) -> Result<Story, Error> {
    shop.open(STOCK).await?;
    let (steps, sold) = match shop.way {
        Way::Unlocked => unlocked(shop).await?,
        Way::Mutex => locked(shop).await?,
        Way::Watch | Way::Swap => compared(shop).await?,
        Way::Counter => counted(shop).await?,
    };
    let (way, oversold) = (shop.way.name(), sold.saturating_sub(STOCK));
    Ok(Story { part: "two buyers", way, stock: STOCK, steps, sold, oversold })
}

async fn unlocked(shop: &Shop) -> Result<(Vec<String>, u64), Error> {
    let (mut steps, mut sold) = (Vec::new(), 0);
    let cells = [(shop.cell()?, "Ann", ANN), (shop.cell()?, "Bob", BOB)];
    let mut read = Vec::new();
    for (cell, who, _) in &cells {
        let stock = cell.get().await?.unwrap_or(0);
        steps.push(format!("{who} reads the stock: {stock}"));
        read.push(stock);
    }
    for ((cell, who, count), stock) in cells.iter().zip(read) {
        let left = stock.saturating_sub(*count);
        cell.set(&left).await?;
        steps.push(format!("{who} takes {count} and writes {stock} - {count} = {left}"));
        sold += count;
    }
    Ok((steps, sold))
}

async fn locked(shop: &Shop) -> Result<(Vec<String>, u64), Error> {
    let (mut steps, cell) = (Vec::new(), shop.cell()?);
    let (ann, bob) = (shop.mutex()?, shop.mutex()?);
    let guard = ann.acquire().await?;
    steps.push("Ann takes the lock".into());
    steps.push(match bob.try_acquire().await {
        Err(error) if error.kind() == ErrorKind::Busy => "Bob has to wait for it".into(),
        other => return Err(other.err().unwrap_or_else(|| surprise("the lock was granted twice"))),
    });
    let stock = cell.get().await?.unwrap_or(0);
    cell.set(&(stock - ANN.min(stock))).await?;
    steps.push(format!(
        "Ann reads {stock}, writes {}, and releases the lock",
        stock - ANN.min(stock)
    ));
    guard.release().await?;
    let guard = bob.acquire().await?;
    let stock = cell.get().await?.unwrap_or(0);
    steps.push(format!("Bob takes the lock and reads {stock}: {BOB} are too many, refused"));
    guard.release().await?;
    let sold = if stock < BOB { ANN } else { ANN + BOB };
    Ok((steps, sold))
}

async fn compared(shop: &Shop) -> Result<(Vec<String>, u64), Error> {
    let (mut steps, mut sold) = (Vec::new(), 0);
    let (ann, bob) = (shop.cell()?, shop.cell()?);
    for (cell, who) in [(&ann, "Ann"), (&bob, "Bob")] {
        let stock = cell.get().await?.unwrap_or(0);
        steps.push(format!("{who} reads the stock: {stock}"));
    }
    let take = |count| move |stock: Option<u64>| stock.unwrap_or(0).saturating_sub(count);
    let left = ann.update(take(ANN)).await?.value;
    steps.push(format!("Ann replaces what she read by {left}"));
    sold += ANN;
    let mut seen = Vec::new();
    let order = bob.try_update(|stock| {
        let stock = stock.unwrap_or(0);
        seen.push(stock);
        stock.checked_sub(BOB).ok_or(Refused::SoldOut)
    });
    match order.await {
        Err(Refused::SoldOut) => {}
        Err(Refused::Store(error)) => return Err(error),
        Ok(_) => sold += BOB,
    }
    let first = seen.first().copied().unwrap_or(0);
    let would_be = first.saturating_sub(BOB);
    let change = match shop.way {
        Way::Watch => "EXEC does nothing, as the watched key has changed",
        _ => "the store refuses, as the stock has changed",
    };
    if seen.len() > 1 {
        steps.push(format!("Bob would replace it by {would_be}: {change}"));
    }
    let now = seen.last().copied().unwrap_or(0);
    steps.push(format!("Bob looks again, sees {now}: {BOB} are too many, refused"));
    Ok((steps, sold))
}

async fn counted(shop: &Shop) -> Result<(Vec<String>, u64), Error> {
    let (mut steps, mut sold) = (Vec::new(), 0);
    let counter = shop.counter()?;
    for (who, count) in [("Ann", ANN), ("Bob", BOB)] {
        match counter.subtract(count.cast_signed(), 0).await {
            Ok(left) => {
                steps.push(format!("{who} subtracts {count}, not below 0: {left} are left"));
                sold += count;
            }
            Err(error) if error.kind() == ErrorKind::OutOfRange => {
                let left = counter.get().await?;
                steps.push(format!(
                    "{who} subtracts {count}, not below 0: refused, {left} are left"
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((steps, sold))
}

fn surprise(why: &str) -> Error {
    Error::new(ErrorKind::Internal, "sell", format!("{why}: report it"))
}
