//! A store that is watched for as long as a screen or page shows it: `tenure top` and the page draw from the board
//! that a task keeps up to date.

pub(crate) mod board;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::{Client, LockName};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::board::Board;
use crate::connection::Connection;
use crate::exit::{self, Failure, line};
use crate::release;

/// How often the doctor is asked.
const DIAGNOSE_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure a connection is tried again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// A board, and the task that keeps it up to date. The task ends when this is dropped.
pub(crate) struct Live {
    shared: Arc<Shared>,
    changed: watch::Receiver<()>,
    task: JoinHandle<()>,
}

struct Shared {
    board: Mutex<Board>,
    /// The locks that each screen or page shows.
    focus: Mutex<Focus>,
    client: Mutex<Option<Client>>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Live {
    /// Watches the store of `url`.
    ///
    /// # Errors
    /// A failure that will not go away by itself. A store that cannot be reached is shown on the board.
    pub(crate) async fn start(url: &str, prefix: &str, every: Duration) -> Result<Self, Failure> {
        let first = match Connection::open(url).await {
            Err(failure) if failure.code != exit::UNAVAILABLE => return Err(failure),
            first => first,
        };
        let shared = Arc::new(Shared {
            board: Mutex::default(),
            focus: Mutex::default(),
            client: Mutex::default(),
        });
        let (sender, changed) = watch::channel(());
        let source = Source { url: url.into(), prefix: prefix.into(), every };
        let task = tokio::spawn(source.follow(Arc::clone(&shared), sender, first));
        Ok(Self { shared, changed, task })
    }

    /// What is known.
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.shared.board)
    }

    /// Tells of changes of the board from now on.
    pub(crate) fn changes(&self) -> Changes {
        Changes(self.changed.clone())
    }

    /// The number of a new screen or page.
    pub(crate) fn viewer(&self) -> u64 {
        lock(&self.shared.focus).viewer()
    }

    /// Keeps these locks up to date before others, for as long as this screen or page is drawn anew.
    pub(crate) fn focus(&self, viewer: u64, locks: Vec<LockName>) {
        lock(&self.shared.focus).set(viewer, locks, Instant::now());
    }

    /// Takes a lock by force from those of these owners that hold it: they were shown to the operator.
    ///
    /// # Errors
    /// What the store said.
    pub(crate) async fn evict(
        &self,
        name: &LockName,
        owners: &[String],
        reason: &str,
    ) -> tenure::Result<Forced> {
        let client = lock(&self.shared.client).clone();
        let Some(client) = client else { return Ok(Forced::Unreached) };
        let holders = client.inspect(name.as_str()).await?.holders;
        let is_held = !holders.is_empty();
        let shown = holders.into_iter().filter(|holder| owners.contains(&holder.owner));
        match release::evict_each(&client, name, shown, reason).await?.len() {
            0 if is_held => Ok(Forced::Changed),
            0 => Ok(Forced::NotHeld),
            _ => Ok(Forced::Evicted),
        }
    }
}

/// What came of a release by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forced {
    Evicted,
    NotHeld,
    Changed,
    Unreached,
}

impl Forced {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Evicted => "evicted the holders that were shown",
            Self::NotHeld => "the lock is not held: nothing was released",
            Self::Changed => "the holder has changed: nothing was released",
            Self::Unreached => "the store has not been reached: nothing was released",
        }
    }
}

/// The locks that are looked at, by screen or page.
#[derive(Default)]
struct Focus {
    last: u64,
    shown: BTreeMap<u64, (Instant, Vec<LockName>)>,
}

impl Focus {
    /// A page that is not drawn for so long has been closed.
    const FRESH: Duration = Duration::from_secs(5);
    const VIEWERS: usize = 128;

    fn viewer(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set(&mut self, viewer: u64, locks: Vec<LockName>, now: Instant) {
        self.shown.retain(|_, (at, _)| now.saturating_duration_since(*at) < Self::FRESH);
        if self.shown.len() >= Self::VIEWERS && !self.shown.contains_key(&viewer) {
            self.shown.pop_first();
        }
        self.shown.insert(viewer, (now, locks));
    }

    /// What is shown: the first line of each page, then the second, and so on, because a watch follows a bounded
    /// number of locks.
    fn locks(&self) -> Vec<LockName> {
        let longest = self.shown.values().map(|(_, locks)| locks.len()).max().unwrap_or_default();
        let line =
            |place: usize| self.shown.values().filter_map(move |(_, locks)| locks.get(place));
        (0..longest).flat_map(line).cloned().collect()
    }
}

/// Tells of changes of a board.
pub(crate) struct Changes(watch::Receiver<()>);

impl Changes {
    /// Resolves when the board has changed since the last call.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The task has panicked: what is known stays as it is.
            std::future::pending().await
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is watched.
struct Source {
    url: String,
    prefix: String,
    every: Duration,
}

impl Source {
    async fn follow(
        self,
        shared: Arc<Shared>,
        changed: watch::Sender<()>,
        first: Result<Connection, Failure>,
    ) {
        let mut connection = first;
        let client = loop {
            match connection {
                Ok(connection) => break connection.client,
                Err(failure) => {
                    let is_refusal = failure.code != exit::UNAVAILABLE;
                    lock(&shared.board).fail(failure.message, is_refusal);
                }
            }
            changed.send_replace(());
            sleep(RECONNECT_AFTER).await;
            connection = Connection::open(&self.url).await;
        };
        *lock(&shared.client) = Some(client.clone());
        let health = diagnose(&client, &shared, &changed);
        let watching = async {
            let mut watch = client.watch(&self.prefix).every(self.every);
            loop {
                watch.focus(lock(&shared.focus).locks());
                let seen = watch.next_batch().await;
                let mut board = lock(&shared.board);
                match seen {
                    Ok(events) => board.update(events, watch.locks()),
                    Err(error) => board.fail(line(&error), !error.is_transient()),
                }
                board.source = Some(watch.source());
                drop(board);
                changed.send_replace(());
            }
        };
        tokio::join!(health, watching);
    }
}

/// Asks the doctor now and then: it takes and releases a lock of its own.
async fn diagnose(client: &Client, shared: &Shared, changed: &watch::Sender<()>) {
    loop {
        let found = client.diagnose().await;
        // A fault of the store is shown by the watch.
        if let Ok(findings) = found {
            let mut board = lock(&shared.board);
            (board.findings, board.diagnosed) = (findings, Some(Instant::now()));
            drop(board);
            changed.send_replace(());
        }
        sleep(DIAGNOSE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<LockName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn each_page_has_its_locks_followed_until_it_is_closed() {
        let (mut focus, now) = (Focus::default(), Instant::now());
        let (first, second) = (focus.viewer(), focus.viewer());
        focus.set(first, names(&["a", "b", "c"]), now);
        focus.set(second, names(&["x", "y"]), now);
        assert_eq!(focus.locks(), names(&["a", "x", "b", "y", "c"]));
        focus.set(first, names(&["d"]), now + Focus::FRESH);
        assert_eq!(focus.locks(), names(&["d"]), "the second is drawn no more");
        for _ in 0..2 * Focus::VIEWERS {
            let viewer = focus.viewer();
            focus.set(viewer, names(&["e"]), now + Focus::FRESH);
        }
        assert_eq!(focus.shown.len(), Focus::VIEWERS);
    }
}
