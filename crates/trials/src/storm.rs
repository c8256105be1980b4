//! A storm: tasks that acquire and give up locks in every way, while faults are injected. It knows
//! which guards are valid, and notices two that exclude each other.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::store::Eviction;
use tenure_core::{Client, Guard, Mode, Options, OwnerId, Result};
use tenure_testkit::Dice;
use tokio::task::JoinHandle;

use crate::ELECTION;

/// The locks: one for readers and writers, one for permits.
const LOCKS: [&str; 2] = ["a", "b"];

const PERMITS: u32 = 2;

/// The longest TTL.
const TTL: Duration = Duration::from_secs(6);

/// The state that all tasks of a storm share.
pub(crate) struct Storm {
    locks: Mutex<BTreeMap<&'static str, Register>>,
    counts: Mutex<BTreeMap<String, u64>>,
    wrongs: Mutex<Vec<String>>,
    over: AtomicBool,
    clients: Vec<Client>,
}

/// The guards of a lock, and whether they believe that they hold it.
#[derive(Default)]
struct Register {
    held: HashMap<OwnerId, Held>,
    last: u64,
}

#[derive(Clone)]
struct Held {
    guard: Arc<Guard>,
    evicted: Arc<AtomicBool>,
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

impl Storm {
    /// Starts `each` tasks for each client, and one that evicts holders.
    pub(crate) fn start(clients: Vec<Client>, each: usize, dice: &mut Dice) -> Running {
        let storm = Arc::new(Self {
            locks: Mutex::default(),
            counts: Mutex::default(),
            wrongs: Mutex::default(),
            over: AtomicBool::new(false),
            clients,
        });
        let takers = storm.clients.iter().flat_map(|client| std::iter::repeat_n(client, each));
        let mut tasks: Vec<JoinHandle<()>> = takers
            .map(|client| tokio::spawn(Arc::clone(&storm).take_part(client.clone(), dice.fork())))
            .collect();
        tasks.push(tokio::spawn(Arc::clone(&storm).evict(dice.fork())));
        Running { storm, tasks }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Counts an event for the summary.
    pub(crate) fn count(&self, what: impl Into<String>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.into()).or_default() += 1;
    }

    fn wrong(&self, what: String) {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    async fn take_part(self: Arc<Self>, client: Client, mut dice: Dice) {
        while !self.is_over() {
            let lock = LOCKS[usize::from(dice.below(3) == 0)];
            let limit = dice.millis(1_000, 20_000);
            let acquiring = acquire(&client, lock, &mut dice);
            match self.drive(acquiring, limit, &mut dice).await {
                Some(Ok(guard)) => self.hold(lock, guard, &mut dice).await,
                Some(Err(error)) => self.count(format!("acquire: {:?}", error.kind())),
                None => self.count("acquire: dropped"),
            }
            if dice.below(30) == 0 {
                client.close().await;
                self.count("closed");
            }
            tokio::time::sleep(dice.millis(0, 60)).await;
        }
        for lock in LOCKS {
            self.take_once(&client, lock).await;
        }
    }

    /// Drives an acquire to its end, or drops it on the way, or stops polling it for a while.
    async fn drive(
        &self,
        mut acquiring: Acquiring,
        limit: Duration,
        dice: &mut Dice,
    ) -> Option<Result<Guard>> {
        let first = match dice.below(10) {
            0 | 1 => return tokio::time::timeout(dice.millis(0, 50), acquiring).await.ok(),
            2 => dice.millis(0, 30),
            _ => return tokio::time::timeout(limit, acquiring).await.ok(),
        };
        if let Ok(done) = tokio::time::timeout(first, &mut acquiring).await {
            return Some(done);
        }
        self.count("acquire: not polled");
        tokio::time::sleep(dice.millis(100, 9_000)).await;
        tokio::time::timeout(limit, acquiring).await.ok()
    }

    async fn hold(&self, lock: &'static str, guard: Guard, dice: &mut Dice) {
        let owner = guard.owner();
        let held = self.enter(lock, guard);
        // Often so long that a server fails meanwhile, and must keep the hold.
        let long = match dice.below(24) {
            0..3 => dice.millis(1_000, 9_000),
            3..6 => dice.millis(100, 1_000),
            _ => dice.millis(0, 15),
        };
        tokio::select! {
            () = tokio::time::sleep(long) => {}
            why = held.guard.lost() => self.count(format!("lost: {why:?}")),
        }
        self.leave(lock, owner);
        // The task that evicts may still use it; then it is dropped afterwards.
        let Ok(guard) = Arc::try_unwrap(held.guard) else { return };
        match dice.below(5) {
            0 => drop(guard),
            1 => drop(tokio::time::timeout(dice.millis(0, 20), guard.release()).await),
            _ => match guard.release().await {
                Ok(()) => self.count("released"),
                Err(error) => self.count(format!("release: {:?}", error.kind())),
            },
        }
    }

    /// Records a new guard, and checks it against the other valid ones.
    fn enter(&self, lock: &'static str, guard: Guard) -> Held {
        let held = Held { guard: Arc::new(guard), evicted: Arc::default() };
        let new = &held.guard;
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let register = locks.entry(lock).or_default();
        let valid = |other: &&Held| {
            // A holder that was evicted may not know it yet.
            !other.evicted.load(Ordering::SeqCst) && other.guard.is_valid()
        };
        let beside: Vec<&Held> = register.held.values().filter(valid).collect();
        let token = new.token().map_or(0, |token| token.get());
        if new.is_valid() {
            let meets = |other: &&Held| !get_along(other.guard.mode(), new.mode());
            if let Some(other) = beside.iter().copied().find(meets) {
                self.wrong(format!("{lock}: {new:?} beside {:?}", other.guard));
            }
            if beside.len() >= PERMITS as usize && matches!(new.mode(), Mode::Permits { .. }) {
                self.wrong(format!("{lock}: more than {PERMITS} permits"));
            }
            if new.mode() == Mode::Exclusive && token <= register.last {
                self.wrong(format!("{lock}: token {token} after {}", register.last));
            }
            register.last = register.last.max(token);
        }
        self.count(format!("granted: {:?}", new.mode()));
        register.held.insert(new.owner(), held.clone());
        held
    }

    fn leave(&self, lock: &'static str, owner: OwnerId) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry(lock).or_default().held.remove(&owner);
    }

    async fn evict(self: Arc<Self>, mut dice: Dice) {
        while !self.is_over() {
            tokio::time::sleep(dice.millis(1_000, 8_000)).await;
            let victim = {
                let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
                let mut held = locks.values().flat_map(|register| register.held.values());
                held.next().cloned()
            };
            let Some(Held { guard, evicted }) = victim else { continue };
            evicted.store(true, Ordering::SeqCst);
            let order = Eviction::new(guard.name().clone(), guard.owner(), "a storm");
            drop(guard);
            let client = &self.clients[dice.below(self.clients.len() as u64) as usize];
            let _late = tokio::time::timeout(ELECTION / 12, client.store().evict(&order)).await;
            self.count("evicted");
        }
    }

    /// After the storm every client gets every lock.
    async fn take_once(&self, client: &Client, lock: &'static str) {
        let options = Options::new().ttl(TTL);
        let acquiring = async {
            loop {
                let mutex = client.mutex(lock)?.with(options.clone());
                match mutex.acquire().await {
                    Err(error) if error.is_transient() => {}
                    outcome => return outcome,
                }
            }
        };
        match tokio::time::timeout(ELECTION, acquiring).await {
            Ok(Ok(guard)) => {
                let owner = guard.owner();
                drop(self.enter(lock, guard));
                self.leave(lock, owner);
            }
            Ok(Err(error)) => self.wrong(format!("{lock}: {error}")),
            Err(_) => {
                let state = client.inspect(lock).await;
                self.wrong(format!("{lock}: a task is stuck: {state:#?}"));
            }
        }
    }
}

/// A storm, and its tasks.
pub(crate) struct Running {
    storm: Arc<Storm>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    /// The shared state.
    pub(crate) fn storm(&self) -> &Storm {
        &self.storm
    }

    /// Ends the storm after the servers have recovered: every client gets every lock once more, closes, and
    /// leaves nothing behind. Returns a summary; the error lists the violations, after what the servers know,
    /// by `account`, while the clients' sessions are still open.
    pub(crate) async fn end(self, account: impl Fn() -> String) -> Result<String, String> {
        self.storm.over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            let ended = tokio::time::timeout(4 * ELECTION, task).await;
            if !ended.is_ok_and(|ended| ended.is_ok()) {
                self.storm.wrong("a task hangs, or panicked".into());
            }
        }
        let mut known = String::new();
        if !self.storm.wrongs.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            known = account();
        }
        for client in &self.storm.clients {
            client.close().await;
        }
        let looks = &self.storm.clients[0];
        let empty = tenure_testkit::eventually(ELECTION / 2, || async {
            looks.list("").await.is_ok_and(|left| left.is_empty())
        });
        if !empty.await {
            self.storm.wrong(format!("left behind: {:?}", looks.list("").await));
        }
        let mut summary = String::new();
        for (what, count) in &*self.storm.counts.lock().unwrap_or_else(PoisonError::into_inner) {
            // Writing to a string cannot fail.
            let _ = writeln!(summary, "{count:6} {what}");
        }
        let wrongs = self.storm.wrongs.lock().unwrap_or_else(PoisonError::into_inner);
        match wrongs.is_empty() {
            true => Ok(summary),
            false => Err(format!("{known}\n{wrongs:#?}\n{summary}")),
        }
    }
}

fn get_along(one: Mode, other: Mode) -> bool {
    let kinds = (one, other);
    matches!(kinds, (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. }))
}

fn acquire(client: &Client, lock: &'static str, dice: &mut Dice) -> Acquiring {
    let ttl = TTL - dice.millis(0, 2_000);
    let options = Options::new().ttl(ttl).poll_cap(dice.millis(300, 2_000));
    let (client, common, only_try) = (client.clone(), dice.below(10) < 7, dice.below(10) == 0);
    Box::pin(async move {
        match (lock, common, only_try) {
            (_, true, false) => client.mutex(lock)?.with(options).acquire().await,
            (_, true, true) => client.mutex(lock)?.with(options).try_acquire().await,
            ("a", false, false) => {
                client.rw_lock(lock)?.with(options).read().await.map(Guard::from)
            }
            ("a", false, true) => {
                client.rw_lock(lock)?.with(options).try_read().await.map(Guard::from)
            }
            (_, _, false) => client.semaphore(lock, PERMITS)?.with(options).acquire().await,
            (_, _, true) => client.semaphore(lock, PERMITS)?.with(options).try_acquire().await,
        }
    })
}
