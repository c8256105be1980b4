//! Many buyers in several processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;

use super::shop::{Order, Shop, Way};
use crate::args;
use crate::exit::{self, Failure};
use crate::progress::Bar;

/// How many buyers of each process read before any of them writes, where they do so without a lock. Two in
/// all are enough to sell too much: the sale never looks right by chance.
const EARLY: u32 = 10;

/// How long a process may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// What a sale came to.
#[derive(Serialize)]
pub(super) struct Sale {
    part: &'static str,
    way: &'static str,
    buyers: u32,
    processes: u32,
    stock: u64,
    pub(super) sold: u64,
    pub(super) oversold: u64,
    /// `None` where the store does not tell.
    pub(super) conflicts: Option<u64>,
    /// `None` where there is nothing to wait for.
    pub(super) waits: Option<u64>,
    pub(super) millis: u64,
}

/// The processes, with a line to each and the lines of all.
pub(super) struct Crowd {
    processes: Vec<Process>,
    lines: mpsc::Receiver<(usize, String)>,
}

/// Killed and reaped when it is dropped.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Crowd {
    /// Starts the processes. They get the URL of the store in their environment, which other users cannot
    /// read.
    pub(super) fn start(store: &str, count: u32) -> Result<Self, Failure> {
        let failed = |error| Failure::system("start a process of buyers", &error);
        let program = std::env::current_exe().map_err(failed)?;
        let (sender, lines) = mpsc::channel(64);
        let mut processes = Vec::new();
        for index in 0..count as usize {
            let mut command = Command::new(&program);
            command.args(["demo", "oversell", "--as-buyers"]).env("TENURE_STORE", store);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(failed)?;
            let (orders, output) = (child.stdin.take(), child.stdout.take());
            processes.push(Process { child, orders });
            let sender = sender.clone();
            std::thread::spawn(move || {
                let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
                for line in lines.map_while(Result::ok) {
                    if sender.blocking_send((index, line)).is_err() {
                        return;
                    }
                }
                let _ = sender.blocking_send((index, "ended".into()));
            });
        }
        Ok(Self { processes, lines })
    }

    /// Sells `stock` to all buyers.
    pub(super) async fn sell(
        &mut self,
        shop: &Shop,
        sale: &str,
        arguments: &args::Oversell,
    ) -> Result<Sale, Failure> {
        let args::Oversell { buyers, processes, stock, .. } = *arguments;
        shop.open(stock).await?;
        let way = shop.way;
        for index in 0..processes {
            let share = buyers / processes + u32::from(index < buyers % processes);
            let order = format!("prepare {} {sale} {share} {}", way.name(), EARLY.min(share));
            self.tell(index as usize, &order)?;
        }
        self.all_say("ready").await?;
        let (begun, mut bar) = (Instant::now(), Bar::new(way.title(), u64::from(buyers)));
        self.tell_all("go")?;
        if way == Way::Unlocked {
            self.all_say("read").await?;
            self.tell_all("write")?;
        }
        let total = self.results(&mut bar).await?;
        let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Order { sold, conflicts, waits } = total;
        Ok(Sale {
            part: "crowd",
            way: way.name(),
            buyers,
            processes,
            stock,
            sold,
            oversold: sold.saturating_sub(stock),
            conflicts: matches!(way, Way::Watch | Way::Swap).then_some(conflicts),
            waits: (way == Way::Mutex).then_some(waits),
            millis,
        })
    }

    async fn results(&mut self, bar: &mut Bar) -> Result<Order, Failure> {
        let mut done = vec![0; self.processes.len()];
        let (mut total, mut missing) = (Order::default(), self.processes.len());
        while missing > 0 {
            let (index, line) = self.line().await?;
            let words: Vec<&str> = line.split(' ').collect();
            let numbers: Vec<u64> =
                words[1..].iter().filter_map(|word| word.parse().ok()).collect();
            match (words[0], &numbers[..]) {
                ("done", [count]) => {
                    done[index] = *count;
                    bar.show(done.iter().sum());
                }
                ("sold", [sold, conflicts, waits]) => {
                    total.sold += sold;
                    total.conflicts += conflicts;
                    total.waits += waits;
                    missing -= 1;
                }
                _ => return Err(surprise(&line)),
            }
        }
        Ok(total)
    }

    async fn all_say(&mut self, word: &str) -> Result<(), Failure> {
        for _ in 0..self.processes.len() {
            let (_, line) = self.line().await?;
            if line != word {
                return Err(surprise(&line));
            }
        }
        Ok(())
    }

    async fn line(&mut self) -> Result<(usize, String), Failure> {
        let line = tokio::time::timeout(SILENCE, self.lines.recv()).await.ok().flatten();
        let (index, line) = line.ok_or_else(|| {
            let why = "the processes of buyers do not answer: is the store reachable?";
            Failure::new(exit::UNAVAILABLE, why)
        })?;
        let mut words = line.splitn(3, ' ');
        if words.next() == Some("failed") {
            let code = words.next().and_then(|code| code.parse().ok()).unwrap_or(exit::INTERNAL);
            return Err(Failure::new(code, words.next().unwrap_or_default()));
        }
        Ok((index, line))
    }

    fn tell_all(&mut self, line: &str) -> Result<(), Failure> {
        (0..self.processes.len()).try_for_each(|index| self.tell(index, line))
    }

    fn tell(&mut self, index: usize, line: &str) -> Result<(), Failure> {
        let told = self.processes[index].orders.as_mut().map(|orders| writeln!(orders, "{line}"));
        let failed = |error| Failure::system("talk to a process of buyers", &error);
        told.unwrap_or(Ok(())).map_err(failed)
    }
}

fn surprise(line: &str) -> Failure {
    Failure::new(exit::INTERNAL, format!("a process of buyers said {line:?}"))
}
