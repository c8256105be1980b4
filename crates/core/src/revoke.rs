//! Cooperative revocation: asking the holders of a lock to let go.
//!
//! A request is a small value beside the lock ([`CellSpace::Revocation`]), which names the holds that it
//! is for. It expires within a minute unless the asker, which waits for the holders, writes it again. So
//! a dead asker leaves nothing behind, and a holder that begins to listen late still hears the request. A
//! holder that listens marks the request as heard.

mod request;

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use request::Request;
use tokio::time::{sleep, timeout};

use crate::cells::contract::{CellClock, CellSpace, Expiry};
use crate::cells::slot::{Outage, Outcome, REMOVED_FOR, Seen, Slot};
use crate::client::Inner;
use crate::lease::Lease;
use crate::{
    AuditEvent, AuditRecord, Client, Error, ErrorKind, Eviction, Hold, Holder, LockName, LockState,
    Mode, Moment, Origin, OwnerId, Released, Result, now,
};

/// A request to let go, as the holder hears it ([`Guard::revoked`](crate::Guard::revoked)).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Revocation {
    /// Why the asker wants the lock, in one line.
    pub reason: String,
    /// The process that asks.
    pub by: Arc<Origin>,
    /// When the lock is taken by force. `None`: never, by this asker.
    deadline: Option<Moment>,
}

impl Revocation {
    /// How much time is left until the lock is taken by force. `None`: the asker waits for as long as it
    /// takes.
    ///
    /// The store's clock dates the request. etcd has none to read: there the time counts from when the
    /// holder heard it.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(now()))
    }
}

/// A request to the present holders of a lock to let go, from [`Client::revoke`]. Await it to send it.
#[must_use = "nothing is sent before it is awaited"]
#[derive(Clone, Debug)]
pub struct Revoke {
    client: Client,
    name: String,
    reason: String,
    grace: Option<Duration>,
    limit: Option<Duration>,
}

/// A holder that was asked to let go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RevokedHolder {
    /// The holder, as the store showed it when it was asked.
    pub holder: Holder,
    /// Whether the holder confirmed that it had heard the request. Holders that do not listen, and those
    /// of other projects' clients, do not.
    pub heard: bool,
    /// Whether it holds the lock no more. False only if the wait was [limited](Revoke::within).
    pub released: bool,
    /// Whether it had to be evicted. If not, it let go by itself, or lost the lock otherwise.
    pub evicted: bool,
}

impl Client {
    /// Asks the present holders of a lock to let go, and waits until none of them holds it any more.
    ///
    /// A holder hears it through [`Guard::revoked`](crate::Guard::revoked), and decides what to do. With
    /// [`grace`](Revoke::grace), the lock is taken by force after that time, as by
    /// [`evict`](Self::evict). The store keeps a record with the `reason`, as for an eviction. At most
    /// 1,000 holders are asked with one call.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tenure::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let guard = client.mutex("index")?.acquire().await?;
    /// let work = tokio::spawn(async move {
    ///     tokio::select! {
    ///         request = guard.revoked() => println!("stopping: {}", request?.reason),
    ///         _ = std::future::pending::<()>() => {} // the work
    ///     }
    ///     guard.release().await
    /// });
    ///
    /// let asked = client.revoke("index", "deploy").grace(Duration::from_secs(30)).await?;
    /// assert!(asked[0].heard && !asked[0].evicted);
    /// # work.await.unwrap()
    /// # }
    /// ```
    pub fn revoke(&self, name: &str, reason: &str) -> Revoke {
        let (name, reason) = (name.into(), reason.into());
        Revoke { client: self.clone(), name, reason, grace: None, limit: None }
    }

    /// The records of evictions and revocations of a lock, newest first: the last 100 at the least.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, [`ErrorKind::Unsupported`] if the store cannot show its
    /// records, and faults of the store.
    ///
    /// # Cancel safety
    /// Safe to drop: it changes nothing.
    pub async fn audit(&self, name: &str) -> Result<Vec<AuditRecord>> {
        let name = LockName::new(name)?;
        let records = self.inner.call("read the records of", self.inner.store.audit(&name)).await;
        records.map_err(|error| error.without_effect().about(&name))
    }
}

impl Revoke {
    /// Takes the lock by force from the holders that still have it after this time. Without it, the
    /// holders are waited for as long as it takes.
    ///
    /// The time counts from the moment at which the store has the request.
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Waits for the holders no longer than this. What is left of the grace period is not waited for, and
    /// nothing is forced.
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// Resolves when no holder that was asked holds the lock any more, or the [limit](Revoke::within) has
/// passed, with what became of each; with nothing if the lock was not held.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the store keeps no values, in which a request could be left;
/// [`ErrorKind::Invalid`] for a bad name; faults of the store that last for five call timeouts.
///
/// # Cancel safety
/// Dropping it stops the waiting, and nothing is forced. The request stays for a minute at most.
impl IntoFuture for Revoke {
    type Output = Result<Vec<RevokedHolder>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// How many holders one request can name.
const MAX_HOLDERS: usize = 1_000;
/// How long a request lasts if its asker does not write it again.
const REQUEST_FOR: Duration = Duration::from_secs(60);
/// How often the asker writes it again.
const WRITE_EVERY: Duration = Duration::from_secs(20);
/// The pauses between two looks at the lock: they grow from the first to the second.
const LOOK: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How often a holder looks for a request on a store that does not push.
const LISTEN_EVERY: Duration = Duration::from_secs(1);
/// How often it looks on a store that pushes, in case that a message was lost.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often a write is retried because other writes came first.
const MAX_CONFLICTS: usize = 10;

impl Revoke {
    async fn run(self) -> Result<Vec<RevokedHolder>> {
        let Self { client, name, reason, grace, limit } = self;
        let slot = Slot::new(&client, CellSpace::Revocation, &name).map_err(|error| match error
            .kind()
        {
            ErrorKind::Unsupported => unsupported(&error),
            _ => error,
        })?;
        let name = slot.key.name.clone();
        let mut holders = inspect(&slot).await?.holders;
        holders.truncate(MAX_HOLDERS);
        let Some(first) = holders.first() else { return Ok(Vec::new()) };
        let record = AuditRecord::new(
            AuditEvent::Revoked,
            &match holders.len() {
                1 => first.owner.clone(),
                number => format!("{number} holders"),
            },
            first.token.filter(|_| holders.len() == 1),
            &reason,
        );
        let asked = slot.time().await?;
        let mut asker = Asker {
            request: Request::new(asked, grace, &record, &holders),
            slot,
            asked: holders
                .into_iter()
                .map(|holder| RevokedHolder {
                    holder,
                    heard: false,
                    released: true,
                    evicted: false,
                })
                .collect(),
        };
        asker.write(true).await?;
        let [force_at, give_up_at] = [grace, limit].map(|time| time.map(|time| now() + time));
        // Once for the whole request, however often it is written.
        let recorded = client.inner.store.add_audit_record(&name, &record);
        if let Err(error) = client.inner.call("write a record of", recorded).await
            && error.kind() != ErrorKind::Unsupported
        {
            tracing::warn!(lock = %name, %error, "the revocation is not in the lock's records");
        }
        let outcome = asker.wait(force_at, give_up_at, &reason).await;
        asker.remove().await;
        outcome.map(|()| asker.asked)
    }
}

/// An asker that waits for the holders.
struct Asker {
    slot: Slot,
    request: Request,
    asked: Vec<RevokedHolder>,
}

impl Asker {
    /// Waits until no holder that was asked is left, or until `give_up_at`; evicts those that are left at
    /// `force_at`.
    async fn wait(
        &mut self,
        force_at: Option<Moment>,
        give_up_at: Option<Moment>,
        reason: &str,
    ) -> Result<()> {
        let [mut pause, longest] = LOOK;
        let mut written = now();
        loop {
            let state = inspect(&self.slot).await?;
            let left: Vec<usize> =
                (0..self.asked.len()).filter(|at| self.asked[*at].follow(&state)).collect();
            // A holder that has let go may have confirmed the request just before.
            self.read_confirmations().await?;
            if left.is_empty() {
                return Ok(());
            }
            let until = |moment: Option<Moment>| moment.map(|moment| moment.since(now()));
            if until(force_at) == Some(Duration::ZERO) {
                return self.evict(&left, reason).await;
            }
            if until(give_up_at) == Some(Duration::ZERO) {
                for at in left {
                    self.asked[at].released = false;
                }
                return Ok(());
            }
            let time_left = [force_at, give_up_at].into_iter().filter_map(until).min();
            if now().since(written) >= WRITE_EVERY {
                self.write(false).await?;
                written = now();
            }
            sleep(pause.min(time_left.unwrap_or(pause)).max(Duration::from_millis(1))).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn evict(&mut self, left: &[usize], reason: &str) -> Result<()> {
        for at in left {
            let asked = &mut self.asked[*at];
            let name = self.slot.key.name.clone();
            let eviction = Eviction::new(name, &asked.holder.owner, reason);
            let eviction = eviction.with_token(asked.holder.token);
            let mut outage = Outage::new(self.slot.inner.call_timeout);
            loop {
                let sent = now();
                let evict = self.slot.inner.store.evict(&eviction);
                match self.slot.inner.call("evict", evict).await {
                    Ok(released) => {
                        asked.evicted |= released == Released::Released;
                        break;
                    }
                    Err(error) => {
                        // An eviction that was carried out without an answer finds nothing next time.
                        asked.evicted |= error.effect() == crate::Effect::Unknown;
                        outage.pause(error.about(&eviction.name), sent).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the request. The first write replaces the request of another asker; later ones leave alone
    /// a request that has replaced this one.
    async fn write(&mut self, first: bool) -> Result<()> {
        let mut seen = self.slot.read().await?;
        for _ in 0..MAX_CONFLICTS {
            let present = Request::read(&seen);
            if let Some(present) = &present {
                if present.id != self.request.id && !first {
                    return Ok(());
                }
                self.request.copy_confirmations(present);
            }
            let text = self.request.write().into_bytes();
            match self.slot.swap(&seen, Some(text), Expiry::After(REQUEST_FOR)).await? {
                Outcome::Done(_) => return Ok(()),
                Outcome::Conflict(current) => seen = current,
            }
        }
        let why =
            format!("other processes changed the request first, {MAX_CONFLICTS} times: try again");
        Err(Error::new(ErrorKind::Busy, self.slot.key.space.write(), why)
            .about(&self.slot.key.name))
    }

    async fn read_confirmations(&mut self) -> Result<()> {
        if self.asked.iter().all(|asked| asked.heard) {
            return Ok(());
        }
        if let Some(present) = Request::read(&self.slot.read().await?) {
            self.request.copy_confirmations(&present);
        }
        for asked in &mut self.asked {
            asked.heard |=
                self.request.targets.iter().any(|target| {
                    target.heard && asked.holder.owner == target.hold.owner.to_string()
                });
        }
        Ok(())
    }

    /// Removes the request, unless it is another asker's by now. If that fails, the request expires.
    async fn remove(&self) {
        let removed = async {
            let seen = self.slot.read().await?;
            if Request::read(&seen).is_some_and(|present| present.id == self.request.id) {
                self.slot.swap(&seen, None, Expiry::After(REMOVED_FOR)).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = removed.await {
            tracing::debug!(lock = %self.slot.key.name, %error, "the request is left to expire");
        }
    }
}

impl RevokedHolder {
    /// Whether it still holds the lock. A writer that has become a reader does, with another token.
    fn follow(&mut self, state: &LockState) -> bool {
        let Holder { owner, token, mode, .. } = &self.holder;
        let is_same = |holder: &&Holder| {
            let downgraded = *mode == Mode::Exclusive && holder.mode == Mode::Shared;
            // Clients of other projects may use an owner again, for a later hold.
            let downgraded = downgraded && owner.parse::<OwnerId>().is_ok();
            holder.owner == *owner && (holder.token == *token || downgraded)
        };
        let Some(holder) = state.holders.iter().find(is_same) else { return false };
        self.holder = holder.clone();
        true
    }
}

/// The lock as the store shows it, through an outage of a few call timeouts.
async fn inspect(slot: &Slot) -> Result<LockState> {
    let mut outage = Outage::new(slot.inner.call_timeout);
    loop {
        let sent = now();
        match slot.inner.call("inspect", slot.inner.store.inspect(&slot.key.name)).await {
            Ok(state) => return Ok(state),
            Err(error) => {
                outage.pause(error.without_effect().about(&slot.key.name), sent).await?;
            }
        }
    }
}

fn unsupported(error: &Error) -> Error {
    let why = format!(
        "a request would be a value beside the lock ({error}): stop the holder by other means, or \
         evict it"
    );
    Error::new(ErrorKind::Unsupported, "ask to let go", why)
}

/// Resolves with the request to let go of this hold.
pub(crate) async fn revoked(inner: &Arc<Inner>, lease: &Lease) -> Result<Revocation> {
    if let Some(heard) = lease.revocation.get() {
        return Ok(heard.clone());
    }
    let slot = Slot::of(Arc::clone(inner), CellSpace::Revocation, lease.claim.name.clone());
    let slot = slot.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => unsupported(&error),
        _ => error,
    })?;
    let listening = listen(&slot, Hold::new(lease.claim.owner, lease.token));
    tokio::select! {
        biased;
        heard = listening => {
            let heard = heard?;
            Ok(lease.revocation.get_or_init(|| heard).clone())
        }
        reason = lease.lost() => {
            let why = "the lock was lost before a request to let go came";
            Err(Error::lost(reason, slot.key.space.read(), why).about(&slot.key.name))
        }
    }
}

async fn listen(slot: &Slot, hold: Hold) -> Result<Revocation> {
    loop {
        match slot.read().await {
            Ok(seen) => {
                if let Some(request) = Request::read(&seen)
                    && request.is_for(hold)
                {
                    return Ok(hear(slot, seen, request, hold).await);
                }
                match slot.cells()?.pushes() {
                    true => slot.changed(&seen, CHECK_EVERY).await,
                    false => sleep(LISTEN_EVERY).await,
                }
            }
            Err(error) if error.is_transient() => sleep(LISTEN_EVERY).await,
            Err(error) => return Err(error),
        }
    }
}

/// Marks the request as heard, and dates it on the clock of this machine.
async fn hear(slot: &Slot, mut seen: Seen, request: Request, hold: Hold) -> Revocation {
    let found = now();
    // Where asker and holder read different clocks, the time counts from now.
    let shared = slot.cells().is_ok_and(|cells| cells.clock() == CellClock::Shared);
    let ago = match (request.grace, shared) {
        (Some(_), true) => {
            // The holder is told in any case, after no more than one call.
            let time =
                timeout(slot.inner.call_timeout, slot.time()).await.ok().and_then(Result::ok);
            time.map_or(Duration::ZERO, |time| time.saturating_sub(request.asked))
        }
        _ => Duration::ZERO,
    };
    let deadline = request.grace.map(|grace| found + grace.saturating_sub(ago));
    let (reason, by) = (request.reason.clone(), Arc::new(request.by.clone()));
    // A hint for the asker: whatever goes wrong, the holder is told of the request.
    let confirm = async {
        let mut request = request;
        for _ in 0..MAX_CONFLICTS {
            request.mark_heard(hold.owner);
            let text = request.write().into_bytes();
            match slot.swap(&seen, Some(text), Expiry::Keep).await? {
                Outcome::Done(_) => break,
                Outcome::Conflict(current) => seen = current,
            }
            match Request::read(&seen).filter(|request| request.is_for(hold)) {
                Some(present) => request = present,
                None => break,
            }
        }
        Ok::<_, Error>(())
    };
    let left = (slot.inner.call_timeout).saturating_sub(now().since(found));
    if !matches!(timeout(left, confirm).await, Ok(Ok(()))) {
        tracing::debug!(lock = %slot.key.name, "could not confirm that a revocation was heard");
    }
    tracing::info!(lock = %slot.key.name, %reason, "asked to let go");
    Revocation { reason, by, deadline }
}
