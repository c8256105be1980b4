//! One cell of a client: reads and swaps that outlast faults, and tell whether a swap took place.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_proto::Backoff;

use super::contract::{CellKey, CellSpace, Cells, Expiry, Stored, Swap, SwapId, Swapped, Version};
use super::envelope::{Envelope, OVERHEAD};
use crate::client::Inner;
use crate::{Client, Effect, Error, ErrorKind, Holder, LockName, Moment, Result, now};

/// How many call timeouts a read or a swap outlasts while the store fails.
const CALLS: u32 = 5;

/// The interval at which a wait reads the cell although it heard of no change.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// How long a removed cell stays, so that the history of its swaps does: a swap whose reply was lost
/// is sent again for a shorter time.
pub(crate) const REMOVED_FOR: Duration = Duration::from_secs(60 * 60);

/// A cell, and the client that reaches it.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: CellKey,
}

/// What a cell was seen to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// `None`: there was no such cell.
    pub(crate) version: Option<Version>,
    envelope: Envelope,
}

/// What came of a swap.
pub(crate) enum Outcome {
    /// The cell has the new value.
    Done(Seen),
    /// It has another one, and the swap did not and will not take place.
    Conflict(Seen),
}

impl Seen {
    /// The value, unless the cell is absent or was removed.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.envelope.payload.as_deref()
    }
}

impl Slot {
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the store keeps no values, and bad names.
    pub(crate) fn new(client: &Client, space: CellSpace, name: &str) -> Result<Self> {
        Self::of(Arc::clone(&client.inner), space, LockName::new(name)?)
    }

    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the store keeps no values.
    pub(crate) fn of(inner: Arc<Inner>, space: CellSpace, name: LockName) -> Result<Self> {
        inner.store.cells().map_err(|error| error.about(&name))?;
        Ok(Self { inner, key: CellKey::new(space, name) })
    }

    pub(crate) fn cells(&self) -> Result<&dyn Cells> {
        self.inner.store.cells()
    }

    /// Refuses a value that the store does not keep, before anything is sent.
    pub(crate) fn check_size(&self, bytes: usize) -> Result<()> {
        self.key.check_size(bytes, self.cells()?.max_value_bytes().saturating_sub(OVERHEAD))
    }

    /// Reads the cell, through an outage of a few call timeouts.
    pub(crate) async fn read(&self) -> Result<Seen> {
        let mut outage = Outage::new(self.inner.call_timeout);
        loop {
            let sent = now();
            let cells = self.cells()?;
            match self.inner.call(self.key.space.read(), cells.read(&self.key)).await {
                Ok(stored) => return self.open(stored),
                Err(error) => {
                    let error = error.without_effect().about(&self.key.name);
                    outage.pause(error, sent).await?;
                }
            }
        }
    }

    /// The holders of a lock, through an outage of a few call timeouts.
    pub(crate) async fn holders(&self, lock: &LockName) -> Result<Vec<Holder>> {
        let mut outage = Outage::new(self.inner.call_timeout);
        loop {
            let sent = now();
            match self.inner.call("inspect", self.inner.store.holders(lock)).await {
                Ok(holders) => return Ok(holders),
                Err(error) => outage.pause(error.without_effect().about(lock), sent).await?,
            }
        }
    }

    /// The present time by the cells' clock, through an outage of a few call timeouts.
    pub(crate) async fn time(&self) -> Result<Duration> {
        let mut outage = Outage::new(self.inner.call_timeout);
        loop {
            let sent = now();
            match self.inner.call(self.key.space.read(), self.cells()?.time()).await {
                Ok(time) => return Ok(time),
                Err(error) => {
                    outage.pause(error.without_effect().about(&self.key.name), sent).await?;
                }
            }
        }
    }

    /// Replaces what was seen. A call whose reply was lost is sent again with the same id, and counts
    /// once.
    ///
    /// # Errors
    /// With an unknown effect only if the store stayed silent, or if more swaps came after the one that
    /// was not answered than a cell remembers.
    pub(crate) async fn swap(
        &self,
        seen: &Seen,
        payload: Option<Vec<u8>>,
        expiry: Expiry,
    ) -> Result<Outcome> {
        let id = SwapId::random();
        self.swap_by(id, seen, payload, expiry).await
    }

    /// As [`swap`](Self::swap), with this id.
    pub(crate) async fn swap_by(
        &self,
        id: SwapId,
        seen: &Seen,
        payload: Option<Vec<u8>>,
        expiry: Expiry,
    ) -> Result<Outcome> {
        let cells = self.cells()?;
        self.check_size(payload.as_ref().map_or(0, Vec::len))?;
        let envelope = Envelope::after(&seen.envelope, id, payload);
        let swap = Swap { id, expected: seen.version, value: envelope.seal(), expiry };
        let mut outage = Outage::new(self.inner.call_timeout);
        let mut in_doubt = false;
        loop {
            let sent = now();
            match self.inner.call(self.key.space.write(), cells.swap(&self.key, &swap)).await {
                Ok(Swapped::Done(version)) => {
                    return Ok(Outcome::Done(Seen { version: Some(version), envelope }));
                }
                Ok(Swapped::Conflict(current)) => {
                    let current = self.open(current).map_err(|error| doubtful(error, in_doubt))?;
                    return self.judge(id, seen, current, in_doubt);
                }
                Err(error) => {
                    in_doubt |= error.effect() == Effect::Unknown;
                    let error = doubtful(error.about(&self.key.name), in_doubt);
                    outage.pause(error, sent).await?;
                }
            }
        }
    }

    /// Swaps until a swap succeeds. `step` gets what the cell has, and returns the new value, where `None`
    /// removes it, and when it expires. Returns what the cell has then, and how often another change came
    /// first.
    ///
    /// `last` is what the caller saw last. It may be replaced by now: that is no conflict, and an error of
    /// `step` on it does not count.
    ///
    /// # Errors
    /// Those of `step`; [`Busy`](ErrorKind::Busy) after `max_conflicts`; otherwise as [`swap`](Self::swap).
    pub(crate) async fn update<E: From<Error>>(
        &self,
        last: Option<Seen>,
        max_conflicts: u32,
        mut step: impl FnMut(&Seen) -> Result<(Option<Vec<u8>>, Expiry), E>,
    ) -> Result<(Seen, u32), E> {
        let mut fresh = last.is_none();
        let mut seen = match last {
            Some(seen) => seen,
            None => self.read().await?,
        };
        let mut backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(50));
        let mut conflicts = 0;
        loop {
            let (payload, expiry) = match step(&seen) {
                Err(_) if !fresh => {
                    (seen, fresh) = (self.read().await?, true);
                    continue;
                }
                next => next?,
            };
            seen = match self.swap(&seen, payload, expiry).await? {
                Outcome::Done(seen) => return Ok((seen, conflicts)),
                Outcome::Conflict(current) => current,
            };
            if !std::mem::replace(&mut fresh, true) {
                continue;
            }
            conflicts += 1;
            if conflicts >= max_conflicts {
                let why = format!("others changed it first, {conflicts} times in a row: try later");
                let error = Error::new(ErrorKind::Busy, self.key.space.write(), why);
                return Err(error.about(&self.key.name).into());
            }
            if conflicts > 1 {
                tokio::time::sleep(backoff.next(SwapId::random().get())).await;
                // What the conflict showed is old by now.
                seen = self.read().await?;
            }
        }
    }

    /// The cell has changed since it was seen: no request with the version of then takes effect any
    /// more. So if one had an unknown effect, the ids tell what it was.
    fn judge(&self, id: SwapId, seen: &Seen, current: Seen, in_doubt: bool) -> Result<Outcome> {
        if in_doubt && current.envelope.wrote(id) {
            return Ok(Outcome::Done(current));
        }
        if !in_doubt || current.envelope.covers(&seen.envelope) {
            return Ok(Outcome::Conflict(current));
        }
        let why = "no reply came, and the cell has been changed too often since to tell: read it";
        let error = Error::new(ErrorKind::Unreachable, self.key.space.write(), why);
        Err(error.with_unknown_effect().about(&self.key.name))
    }

    pub(crate) fn open(&self, stored: Option<Stored>) -> Result<Seen> {
        let Some(Stored { value, version }) = stored else { return Ok(Seen::default()) };
        let envelope = Envelope::open(&value).ok_or_else(|| self.damaged("the stored value"))?;
        Ok(Seen { version: Some(version), envelope })
    }

    /// The stored value cannot be read.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        let why = format!("{what} is not in tenure's format: delete it, or use another name");
        Error::new(ErrorKind::Damaged, self.key.space.read(), why).about(&self.key.name)
    }

    /// Waits until the cell may differ from what was seen, and at the most for `limit`.
    pub(crate) async fn changed(&self, seen: &Seen, limit: Duration) {
        Changes::of(self).wait(seen, limit).await;
    }
}

/// Waits for one change of a cell in several steps. The wait goes on between them, so an engine that polls
/// slows down as it does for one long wait.
pub(crate) struct Changes {
    slot: Slot,
    /// The version that the wait began with.
    pending: Option<(Option<Version>, BoxFuture<'static, Result<()>>)>,
}

impl Changes {
    pub(crate) fn of(slot: &Slot) -> Self {
        Self { slot: slot.clone(), pending: None }
    }

    /// Waits until the cell may differ from what was seen, and at the most for `limit`.
    pub(crate) async fn wait(&mut self, seen: &Seen, limit: Duration) {
        let begun = now();
        if self.pending.as_ref().is_none_or(|(version, _)| *version != seen.version) {
            let (slot, version) = (self.slot.clone(), seen.version);
            let changed = async move { slot.cells()?.changed(&slot.key, version).await };
            self.pending = Some((version, Box::pin(changed)));
        }
        let Some((_, changed)) = &mut self.pending else { return };
        let Ok(outcome) = tokio::time::timeout(limit, changed).await else { return };
        self.pending = None;
        if let Err(error) = outcome {
            // The next read says what is wrong, if it still is.
            tracing::debug!(cell = %self.slot.key.name, %error, "could not wait for a change");
            tokio::time::sleep(limit.saturating_sub(now().since(begun))).await;
        }
    }
}

fn doubtful(error: Error, in_doubt: bool) -> Error {
    if in_doubt { error.with_unknown_effect() } else { error }
}

/// Pauses between the tries of one call, until it has been tried for long enough.
pub(crate) struct Outage {
    limit: Duration,
    began: Option<Moment>,
    backoff: Backoff,
}

impl Outage {
    pub(crate) fn new(call_timeout: Duration) -> Self {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        Self { limit: call_timeout * CALLS, began: None, backoff }
    }

    /// Sleeps before the next try of a call that was sent at `sent`.
    ///
    /// # Errors
    /// `error`, if it is not transient or has lasted for too long.
    pub(crate) async fn pause(&mut self, error: Error, sent: Moment) -> Result<()> {
        let outage = now().since(*self.began.get_or_insert(sent));
        if !error.is_transient() || outage >= self.limit {
            return Err(error);
        }
        tracing::debug!(%error, "trying again");
        tokio::time::sleep(self.backoff.next(SwapId::random().get())).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_in_several_steps_is_one_wait_until_the_cell_changes() {
        let client = Client::new(Arc::new(crate::MemoryStore::new())).unwrap();
        let slot = Slot::new(&client, CellSpace::Cell, "a").unwrap();
        let seen = slot.read().await.unwrap();
        let mut changes = Changes::of(&slot);
        let wait = |changes: &Changes| {
            changes.pending.as_ref().map(|(_, wait)| (&raw const **wait).cast::<()>())
        };
        changes.wait(&seen, Duration::from_millis(1)).await;
        let first = wait(&changes);
        assert!(first.is_some(), "it goes on");
        changes.wait(&seen, Duration::from_millis(1)).await;
        assert_eq!(wait(&changes), first, "the same one");
        let swapped = slot.swap(&seen, Some(b"x".to_vec()), Expiry::Never).await.unwrap();
        let Outcome::Done(now) = swapped else { panic!("nothing came first") };
        tokio::time::timeout(Duration::from_secs(20), changes.wait(&seen, Duration::MAX))
            .await
            .unwrap();
        assert!(wait(&changes).is_none(), "it has ended");
        changes.wait(&now, Duration::from_millis(1)).await;
        assert!(wait(&changes).is_some());
    }
}
