//! `tenure demo oversell`: a shop that sells more than it has, and four ways not to.
//!
//! `shop` has the ways to sell; `two_buyers` shows each of them step by step; `crowd` starts processes of
//! buyers, which run `process`.

mod crowd;
mod process;
mod shop;
mod two_buyers;

use std::time::Duration;

use serde::Serialize;
use tenure::OwnerId;

use crate::args;
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::show;
use crowd::{Crowd, Sale};
use shop::{Shop, Way};

const ADVICE: &str = "\
What to pick:
  counter with a floor   a number that goes up and down: one step, nothing to retry or wait for
  compare and swap       any small value, with few changes at a time: conflicts cost retries
  mutex                  work that takes long, or changes several things: orders wait their turn,
                         and each hold has a fencing token
  WATCH / MULTI / EXEC   the same as compare and swap, for more round trips: use the script instead
  without a lock         never, where two processes may write";

/// A way to sell that the store does not have.
#[derive(Serialize)]
struct Missing {
    way: &'static str,
    applicable: bool,
    reason: &'static str,
}

pub(crate) async fn execute(store: &str, arguments: &args::Oversell, output: &Output) -> Outcome {
    if arguments.as_buyers {
        return process::execute(store, output).await;
    }
    if u64::from(arguments.buyers) <= arguments.stock {
        let why = "nothing can be oversold: choose more --buyers than --stock";
        return Err(Failure::new(exit::USAGE, why));
    }
    if arguments.processes > arguments.buyers {
        return Err(Failure::new(exit::USAGE, "choose at least as many --buyers as --processes"));
    }
    Connection::with(store, async |connection| {
        if connection.url.scheme().name() == "memory" {
            let why = "other processes do not see a memory: store: choose another one";
            return Err(Failure::new(exit::USAGE, why));
        }
        // Reports a store without values before anything else is printed.
        connection.client.counter("demo")?;
        show(store, connection, arguments, output).await
    })
    .await
}

async fn show(
    store: &str,
    connection: &Connection,
    arguments: &args::Oversell,
    output: &Output,
) -> Outcome {
    let told = tell_of_two_buyers(store, connection, output).await?;
    if let Err(closed) = told {
        return closed.outcome();
    }
    let (rows, wrong) = match sell_to_a_crowd(store, connection, arguments, output).await? {
        Ok(sales) => sales,
        Err(closed) => return closed.outcome(),
    };
    if !output.is_json() {
        let headings = ["WAY", "SOLD", "OVERSOLD", "CONFLICTS", "WAITS", "TIME"];
        let written =
            output.table(&headings, rows).and_then(|()| output.line(format!("\n{ADVICE}")));
        if let Err(closed) = written {
            return closed.outcome();
        }
    }
    match wrong {
        None => Ok(exit::OK),
        Some(way) => {
            let why = format!("the sale {:?} went wrong: report it, with the table", way.title());
            Err(Failure::new(exit::INTERNAL, why))
        }
    }
}

type Written<T = ()> = Result<T, output::Closed>;

async fn tell_of_two_buyers(
    store: &str,
    connection: &Connection,
    output: &Output,
) -> Result<Written, Failure> {
    if !output.is_json()
        && let Err(closed) = output.line(two_buyers::INTRODUCTION)
    {
        return Ok(Err(closed));
    }
    for way in Way::ALL {
        let written = match way.missing_on(&connection.url) {
            Some(reason) => {
                let missing = Missing { way: way.name(), applicable: false, reason };
                output
                    .result(&missing, format_args!("{}\n  not applicable: {reason}\n", way.title()))
            }
            None => {
                let shop = Shop::new(way, shop::connect(way, store).await?, &fresh_name());
                let story = two_buyers::order(&shop).await;
                clear(&shop).await;
                story?.print(output, way)
            }
        };
        if written.is_err() {
            return Ok(written);
        }
    }
    Ok(Ok(()))
}

/// The rows of the table, and a sale that did not come out as it must.
async fn sell_to_a_crowd(
    store: &str,
    connection: &Connection,
    arguments: &args::Oversell,
    output: &Output,
) -> Result<Written<(Vec<Vec<String>>, Option<Way>)>, Failure> {
    let args::Oversell { buyers, processes, stock, .. } = *arguments;
    let introduction = format!(
        "{buyers} buyers in {processes} processes order one teapot each. {stock} are in stock.\n"
    );
    if !output.is_json()
        && let Err(closed) = output.line(introduction)
    {
        return Ok(Err(closed));
    }
    let mut crowd = Crowd::start(store, processes)?;
    let (mut rows, mut wrong) = (Vec::new(), None);
    for way in Way::ALL {
        if let Some(reason) = way.missing_on(&connection.url) {
            let dash = || "-".to_owned();
            let reason = format!("not applicable: {reason}");
            rows.push(vec![way.title().into(), dash(), dash(), dash(), dash(), reason]);
            continue;
        }
        let name = fresh_name();
        let shop = Shop::new(way, shop::connect(way, store).await?, &name);
        let sale = crowd.sell(&shop, &name, arguments).await;
        clear(&shop).await;
        let sale = sale?;
        let is_right = match way {
            Way::Unlocked => sale.oversold > 0,
            _ => sale.sold == stock,
        };
        wrong = wrong.or((!is_right).then_some(way));
        rows.push(row(way, &sale));
        if output.is_json()
            && let Err(closed) = output.object(&sale)
        {
            return Ok(Err(closed));
        }
    }
    Ok(Ok((rows, wrong)))
}

fn row(way: Way, sale: &Sale) -> Vec<String> {
    let number = |count: Option<u64>| count.map_or_else(|| "-".into(), |count| count.to_string());
    vec![
        way.title().into(),
        sale.sold.to_string(),
        sale.oversold.to_string(),
        number(sale.conflicts),
        number(sale.waits),
        show::duration(Duration::from_millis(sale.millis)),
    ]
}

/// A name that no other run of the demo has.
fn fresh_name() -> String {
    let id = OwnerId::random().to_string();
    id.chars().take(8).collect()
}

/// Removes what a sale has left. What cannot be removed expires.
async fn clear(shop: &Shop) {
    if let Err(error) = shop.close().await {
        output::note(&format!("a value of the demo is left to its expiry: {}", exit::line(&error)));
    }
}
