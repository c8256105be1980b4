//! Nested use: `tenure run a -- tenure run a -- command`. The inner `tenure` does not wait for the
//! lock but inherits it from the outer one.
//!
//! `TENURE_HELD` lists, as JSON, the locks that a command runs under. An entry counts only if the
//! store shows a holder with its owner id, which is unique: so the outer `tenure run` still holds it.

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
use crate::lock::Held;
use crate::stores::registry;
use crate::{args, process, show};

/// The variable that lists the locks that a command runs under.
pub(crate) const VARIABLE: &str = "TENURE_HELD";

/// The longest pause between two checks that an inherited lock is still held.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// One lock in [`VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    lock: String,
    owner: String,
    token: Option<u64>,
    store: String,
    ttl_ms: u64,
    /// The process that holds the lock.
    pid: u32,
}

/// The value of [`VARIABLE`] for a command that runs under `held`.
pub(crate) fn variable_for(held: &Held, connection: &Connection) -> Result<String, Failure> {
    let mut entries = entries()?;
    // The locks of a store that is private to one process cannot be inherited.
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
    text.map_err(|error| Failure::system(&format!("write {VARIABLE}"), &error.into()))
}

fn entries() -> Result<Vec<Entry>, Failure> {
    parse(std::env::var_os(VARIABLE).unwrap_or_default().as_encoded_bytes())
}

fn parse(text: &[u8]) -> Result<Vec<Entry>, Failure> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(text).map_err(|error| {
        let why = format!("the environment variable {VARIABLE} is malformed: {error}");
        Failure::new(exit::USAGE, format!("{why}; only tenure should set it: unset it"))
    })
}

/// Inherits the lock if a surrounding `tenure run` holds it and the store confirms that. Returns
/// `None` if there is none: then the lock must be acquired.
pub(crate) async fn inherit(
    connection: &Connection,
    arguments: &args::Lock,
) -> Result<Option<InheritedLock>, Failure> {
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
            let state = HoldState::seen(holder, before);
            return InheritedLock::new(connection, entry, state, arguments.max_hold).map(Some);
        }
    }
    let in_same_store = |entry: &&Entry| {
        let url = registry().parse(&entry.store);
        url.is_ok_and(|url| url.same_store(&connection.url))
    };
    match entries.iter().find(in_same_store) {
        Some(entry) => {
            let (lock, pid) = (&entry.lock, entry.pid);
            let why = format!(
                "the surrounding `tenure run` (pid {pid}) no longer holds the lock {lock:?}, so the \
                 command was not started: run the outer command again, or unset {VARIABLE} to \
                 acquire the lock here"
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
        "the surrounding `tenure run` holds the lock {name:?} as {held}, so it cannot be taken as \
         {wanted} inside it: use the same mode, or another lock"
    );
    Err(Failure::new(exit::USAGE, why))
}

/// A lock that a surrounding `tenure run` holds. This process checks that it is still held, and never
/// releases it.
#[derive(Debug)]
pub(crate) struct InheritedLock {
    name: LockName,
    owner: OwnerId,
    token: Option<Token>,
    ttl: Duration,
    state: watch::Receiver<HoldState>,
    checker: AbortHandle,
}

/// The result of the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldState {
    /// The lock was held. Without a renewal the lease ends at `until`; `None` if the store does not
    /// show its end.
    Held {
        until: Option<Moment>,
    },
    Lost(LossReason),
}

impl HoldState {
    /// The state in the store's answer to a request that was sent at `asked`.
    fn seen(holder: &Holder, asked: Moment) -> Self {
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

impl InheritedLock {
    fn new(
        connection: &Connection,
        entry: &Entry,
        state: HoldState,
        max_hold: Option<Duration>,
    ) -> Result<Self, Failure> {
        let name = LockName::new(&entry.lock)?;
        let owner = entry.owner.parse::<OwnerId>()?;
        let token = entry.token.map(Token::new);
        let (sender, receiver) = watch::channel(state);
        let client = connection.client.clone();
        let holder = process::open_ancestor(entry.pid);
        let checked = entry.clone();
        let checker = tokio::spawn(async move {
            let reason = tokio::select! {
                biased;
                () = process::wait_for_exit(holder) => LossReason::NotHeld,
                () = sleep_or_never(max_hold) => LossReason::MaxHold,
                reason = check_until_lost(&client, &checked, &sender) => reason,
            };
            sender.send_replace(HoldState::Lost(reason));
        });
        let (checker, ttl) = (checker.abort_handle(), Duration::from_millis(entry.ttl_ms));
        Ok(Self { name, owner, token, ttl, state: receiver, checker })
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
        self.state.borrow().remaining()
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) async fn danger(&self) {
        let mut state = self.state.clone();
        loop {
            let left = state.borrow_and_update().remaining().saturating_sub(self.ttl / 2);
            if left.is_zero() {
                return;
            }
            let _ = timeout(left, state.changed()).await;
        }
    }

    pub(crate) async fn lost(&self) -> LossReason {
        let mut state = self.state.clone();
        let lost = state.wait_for(|state| matches!(state, HoldState::Lost(_))).await;
        match lost.map(|state| *state) {
            Ok(HoldState::Lost(reason)) => reason,
            // The checker has panicked, so nothing is known of the lock any more.
            _ => LossReason::Expired,
        }
    }

    /// Stops using the lock, which stays with its holder. Fails if it was no longer held.
    pub(crate) fn leave(self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        let why = "the surrounding `tenure run` no longer held it: check the command's results";
        Err(Error::new(ErrorKind::Lost, "end the command under", why).about(&self.name))
    }
}

impl Drop for InheritedLock {
    fn drop(&mut self) {
        self.checker.abort();
    }
}

async fn sleep_or_never(duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Checks the lock in the store until it is lost.
async fn check_until_lost(
    client: &Client,
    entry: &Entry,
    state: &watch::Sender<HoldState>,
) -> LossReason {
    loop {
        let last = *state.borrow();
        // The holder renews after a third of its TTL. A check after a sixth of the remaining lease
        // sees that renewal before half the TTL has passed, which would count as danger.
        let pause = (last.remaining() / 6).clamp(Duration::from_millis(20), MAX_CHECK_INTERVAL);
        sleep(pause).await;
        let asked = now();
        // After a suspension nothing remains of the lease that was seen last, but the holder may have
        // renewed it.
        let limit = last.remaining().max(Duration::from_millis(100));
        match timeout(limit, client.inspect(&entry.lock)).await {
            Ok(Ok(lock)) => match find(&lock, &entry.owner) {
                Some(holder) => drop(state.send_replace(HoldState::seen(holder, asked))),
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
    fn a_malformed_list_of_held_locks_is_a_usage_error() {
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
