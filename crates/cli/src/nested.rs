//! Locks that are held by the `tenure run` around this process, and are entered instead of taken:
//! `tenure run a -- tenure run a -- command`.
//!
//! `TENURE_HELD` lists the holds that a command runs under, as JSON. The store has the last word on
//! each: an owner id is never used twice, so a holder with that id is the hold in the list.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::{Moment, now};
use tenure::{
    Client, Error, ErrorKind, Holder, LockName, LockState, LossReason, Mode, OwnerId, Result, Token,
};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::held::Held;
use crate::stores::registry;
use crate::{args, process, show};

/// The variable that lists the holds around a process.
pub(crate) const VARIABLE: &str = "TENURE_HELD";

/// How often the store is asked at least whether an entered lock is still held.
const LOOK: Duration = Duration::from_secs(5);

/// One hold around this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    lock: String,
    owner: String,
    token: Option<u64>,
    store: String,
    ttl_ms: u64,
    /// The process that holds it.
    pid: u32,
}

/// The list for a command that runs under `held`.
pub(crate) fn list(held: &Held, connection: &Connection) -> Result<String, Failure> {
    let mut entries = entries()?;
    // A store of one process holds nothing that another could enter.
    if let Held::Own(guard) = held
        && connection.client.store().capabilities().cross_process
    {
        entries.push(Entry {
            lock: guard.name().as_str().into(),
            owner: guard.owner().to_string(),
            token: guard.token().map(|token| token.get()),
            store: connection.url.to_string(),
            ttl_ms: u64::try_from(guard.ttl().as_millis()).unwrap_or(u64::MAX),
            pid: std::process::id(),
        });
    }
    let text = serde_json::to_string(&entries);
    text.map_err(|error| Failure::system("list the locks that are held", &error.into()))
}

fn entries() -> Result<Vec<Entry>, Failure> {
    parse(std::env::var_os(VARIABLE).unwrap_or_default().as_encoded_bytes())
}

fn parse(text: &[u8]) -> Result<Vec<Entry>, Failure> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(text).map_err(|error| {
        let why = format!("{VARIABLE} in the environment is not what tenure writes ({error})");
        Failure::new(exit::USAGE, format!("{why}: unset it, unless it was cut off"))
    })
}

/// Enters the lock if a `tenure run` around this process holds it, and the store confirms that.
/// `None` if there is none: then the lock is to be taken.
pub(crate) async fn enter(
    connection: &Connection,
    arguments: &args::Lock,
) -> Result<Option<Entered>, Failure> {
    let mut entries = entries()?;
    entries.retain(|entry| entry.lock == arguments.name);
    if entries.is_empty() {
        return Ok(None);
    }
    let before = now();
    let state = connection.client.inspect(&arguments.name).await?;
    for entry in &entries {
        if let Some(holder) = find(&state, &entry.owner) {
            check_mode(holder, arguments)?;
            let view = View::of(holder, before);
            return Entered::new(connection, entry, view, arguments.max_hold).map(Some);
        }
    }
    let here = |entry: &&Entry| {
        let theirs = registry().parse(&entry.store);
        theirs.is_ok_and(|theirs| theirs.same_store(&connection.url))
    };
    match entries.iter().find(here) {
        Some(entry) => {
            let (lock, pid) = (&entry.lock, entry.pid);
            let why = format!(
                "the lock {lock:?}, under which process {pid} started this command, is no longer \
                 held by it: nothing was started. Take the lock again from outside, or unset \
                 {VARIABLE} to take it here"
            );
            Err(Failure::new(exit::LOST, why))
        }
        None => Ok(None),
    }
}

fn find<'a>(state: &'a LockState, owner: &str) -> Option<&'a Holder> {
    state.holders.iter().find(|holder| holder.owner == owner)
}

fn check_mode(holder: &Holder, arguments: &args::Lock) -> Result<(), Failure> {
    let wanted = match arguments.permits {
        Some(of) => Mode::Permits { take: arguments.take, of },
        None if arguments.shared => Mode::Shared,
        None => Mode::Exclusive,
    };
    if holder.mode == wanted {
        return Ok(());
    }
    let (name, held, wanted) = (&arguments.name, show::mode(holder.mode), show::mode(wanted));
    let why = format!(
        "the lock {name:?} is held as {held} by the `tenure run` around this command, so it cannot \
         be taken as {wanted} under it: use the same mode, or another lock"
    );
    Err(Failure::new(exit::USAGE, why))
}

/// A lock that the `tenure run` around this process holds. It is watched and never released.
#[derive(Debug)]
pub(crate) struct Entered {
    name: LockName,
    owner: OwnerId,
    token: Option<Token>,
    ttl: Duration,
    view: watch::Receiver<View>,
    watcher: AbortHandle,
}

/// What is known of the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// It was held when the store was last asked, and lasts until then without a renewal. `None`:
    /// the store does not say.
    Held {
        until: Option<Moment>,
    },
    Lost(LossReason),
}

impl View {
    /// What the store said when it was asked at `asked`.
    fn of(holder: &Holder, asked: Moment) -> Self {
        Self::Held { until: holder.expires_in.map(|left| asked + left) }
    }

    fn remaining(self) -> Duration {
        match self {
            Self::Held { until: Some(until) } => until.since(now()),
            Self::Held { until: None } => Duration::MAX,
            Self::Lost(_) => Duration::ZERO,
        }
    }
}

impl Entered {
    fn new(
        connection: &Connection,
        entry: &Entry,
        view: View,
        max_hold: Option<Duration>,
    ) -> Result<Self, Failure> {
        let name = LockName::new(&entry.lock)?;
        let owner = entry.owner.parse::<OwnerId>()?;
        let token = entry.token.map(Token::new);
        let (sender, receiver) = watch::channel(view);
        let client = connection.client.clone();
        let holder = process::ancestor(entry.pid);
        let watched = entry.clone();
        let watcher = tokio::spawn(async move {
            let reason = tokio::select! {
                biased;
                () = process::end_of(holder) => LossReason::NotHeld,
                () = passed(max_hold) => LossReason::MaxHold,
                reason = look_after(&client, &watched, &sender) => reason,
            };
            sender.send_replace(View::Lost(reason));
        });
        let (watcher, ttl) = (watcher.abort_handle(), Duration::from_millis(entry.ttl_ms));
        Ok(Self { name, owner, token, ttl, view: receiver, watcher })
    }

    pub(crate) const fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) const fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(crate) const fn token(&self) -> Option<Token> {
        self.token
    }

    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.view.borrow().remaining()
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) async fn danger(&self) {
        let mut view = self.view.clone();
        loop {
            let left = view.borrow_and_update().remaining().saturating_sub(self.ttl / 2);
            if left.is_zero() {
                return;
            }
            let _ = timeout(left, view.changed()).await;
        }
    }

    pub(crate) async fn lost(&self) -> LossReason {
        let mut view = self.view.clone();
        let lost = view.wait_for(|view| matches!(view, View::Lost(_))).await;
        match lost.map(|view| *view) {
            Ok(View::Lost(reason)) => reason,
            // The watcher has ended without a word, which it never does.
            _ => LossReason::Expired,
        }
    }

    /// Ends the use of the lock, which stays with its holder; fails if it was no longer held.
    pub(crate) fn leave(self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        let why = "the `tenure run` around this command no longer held it: check the work";
        Err(Error::new(ErrorKind::Lost, "end the command under", why).about(&self.name))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

async fn passed(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Asks the store again and again, often enough to see each renewal in time; returns when the lock is
/// lost.
async fn look_after(client: &Client, entry: &Entry, view: &watch::Sender<View>) -> LossReason {
    loop {
        let last = *view.borrow();
        // The holder renews at a third of its term. Seen this often, half a term never seems to have
        // passed without a renewal that came.
        sleep((last.remaining() / 6).clamp(Duration::from_millis(20), LOOK)).await;
        let asked = now();
        // After a suspension the time is over, and the hold may be good all the same.
        let limit = last.remaining().max(Duration::from_millis(100));
        match timeout(limit, client.inspect(&entry.lock)).await {
            Ok(Ok(state)) => match find(&state, &entry.owner) {
                Some(holder) => drop(view.send_replace(View::of(holder, asked))),
                None => return LossReason::NotHeld,
            },
            Ok(Err(_)) | Err(_) if last.remaining().is_zero() => return LossReason::Expired,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_tenure_did_not_write_is_a_usage_error() {
        assert_eq!(parse(b"").unwrap(), []);
        let text = br#"[{"lock":"a","owner":"ab","token":null,"store":"local","ttl_ms":30000,"pid":7,"new":1}]"#;
        let entry = &parse(text).unwrap()[0];
        assert_eq!((entry.lock.as_str(), entry.pid, entry.token), ("a", 7, None));
        for bad in [&b"a"[..], b"{}", br#"[{"lock":"a"}]"#, b"\xff", &text[..30]] {
            let failure = parse(bad).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.message.contains("TENURE_HELD"), "{}", failure.message);
        }
    }
}
