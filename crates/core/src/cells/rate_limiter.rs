//! Rate limits that many processes share.

use std::fmt;

use tenure_proto::Backoff;

use super::contract::{CellSpace, Expiry, SwapId, Take, Taken};
use super::rate::{Decision, Rate, micros};
use super::slot::{Outcome, Seen, Slot};
use crate::{Client, Error, ErrorKind, LockName, Result};

use std::time::Duration;

/// A limit on how often something is done, shared by all processes that use its name.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure::{Client, MemoryStore, Rate};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let limiter = client.rate_limiter("mails/alice", Rate::gcra(2, Duration::from_secs(3600)))?;
/// assert!(limiter.take(1).await?.allowed);
/// assert_eq!(limiter.take(1).await?.remaining, 0);
/// let refused = limiter.take(1).await?;
/// assert!(!refused.allowed && refused.retry_after > Duration::from_secs(1700));
/// # Ok(())
/// # }
/// ```
///
/// # Which clock decides
/// Redis decides by the server's clock, in one round trip. The local and the memory store have one clock
/// for all. On ZooKeeper the leader's clock decides, and reading it takes a write. etcd has no clock to
/// read: there each client uses its own machine's, so keep the machines' clocks in step. A clock that is
/// ahead by some time lets through, once, as much more as the rate allows in that time; and then the
/// other clients wait as much longer.
///
/// All processes should name the same rate; where they differ, each is judged by its own.
#[derive(Clone)]
pub struct RateLimiter {
    slot: Slot,
    rate: Rate,
}

/// How often a request is retried because other requests came first.
const MAX_CONFLICTS: u32 = 1_000;

impl RateLimiter {
    pub(crate) fn new(client: &Client, name: &str, rate: Rate) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Limit, name)?;
        rate.check().map_err(|error| error.about(&slot.key.name))?;
        Ok(Self { slot, rate })
    }

    /// The limiter's name.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// Asks for a request of this cost to be let through. One that is not let through takes nothing.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a cost of zero, or one that is never let through;
    /// [`Busy`](ErrorKind::Busy) if other requests came first 1,000 times; faults of the store. After a
    /// fault with [`Effect::Unknown`](crate::Effect) the request may have been counted.
    ///
    /// # Cancel safety
    /// Dropped halfway, the request may have been counted, or may yet be.
    pub async fn take(&self, cost: u64) -> Result<Decision> {
        self.ask(cost, false).await
    }

    /// Whether a request of this cost would be let through now. It takes nothing.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn peek(&self, cost: u64) -> Result<Decision> {
        self.ask(cost, true).await.map_err(Error::without_effect)
    }

    async fn ask(&self, cost: u64, peek: bool) -> Result<Decision> {
        let most = self.rate.most();
        if cost == 0 || cost > most {
            let why = format!("a cost of {cost} is never let through: choose 1 to {most}");
            return Err(self.error(ErrorKind::Invalid, why));
        }
        let take = Take { rule: self.rate.rule(cost), peek };
        let call = self.slot.cells()?.take(&self.slot.key, &take);
        let taken = self.slot.inner.call(self.slot.key.space.write(), call).await;
        let taken = match taken.map_err(|error| error.about(self.name()))? {
            Some(taken) => taken,
            None => self.take_by_swaps(&take).await?,
        };
        Ok(self.rate.describe(cost, taken))
    }

    async fn take_by_swaps(&self, take: &Take) -> Result<Taken> {
        let mut backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(50));
        for conflicts in 0..MAX_CONFLICTS {
            if conflicts > 0 {
                tokio::time::sleep(backoff.next(SwapId::random().get())).await;
            }
            let time = self.slot.inner.call(self.slot.key.space.read(), self.slot.cells()?.time());
            let (seen, now) = tokio::join!(self.slot.read(), time);
            let (seen, now) = (seen?, micros(now.map_err(|error| error.about(self.name()))?));
            let before = self.state(&seen)?;
            let taken = take.rule.decide((before.first, before.second), now);
            if take.peek || !taken.allowed {
                let state = if take.peek { (before.first, before.second) } else { taken.state };
                return Ok(Taken { state, ..taken });
            }
            // An expiry costs some engines a call: it is set for twice as long as the state matters, and
            // renewed when half of that has passed.
            let horizon = micros(self.rate.horizon());
            let young = now.saturating_sub(before.dated) < horizon;
            let (dated, expiry) = match seen.version.is_some() && young {
                true => (before.dated, Expiry::Keep),
                false => (now, Expiry::After(self.rate.horizon() * 2 + Duration::from_secs(1))),
            };
            let state = State { first: taken.state.0, second: taken.state.1, dated };
            if let Outcome::Done(_) = self.slot.swap(&seen, Some(state.write()), expiry).await? {
                return Ok(taken);
            }
        }
        let why = format!("other requests came first, {MAX_CONFLICTS} times in a row: try later");
        Err(self.error(ErrorKind::Busy, why))
    }

    fn state(&self, seen: &Seen) -> Result<State> {
        let Some(bytes) = seen.value() else { return Ok(State::default()) };
        State::read(bytes).ok_or_else(|| self.slot.damaged("the stored value"))
    }

    fn error(&self, kind: ErrorKind, why: String) -> Error {
        Error::new(kind, self.slot.key.space.write(), why).about(self.name())
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", self.name()).field("rate", &self.rate).finish()
    }
}

/// What is stored: three decimal numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    first: u64,
    second: u64,
    /// When the expiry was last set, in microseconds since the Unix epoch.
    dated: u64,
}

impl State {
    fn write(self) -> Vec<u8> {
        format!("{} {} {}", self.first, self.second, self.dated).into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut numbers = std::str::from_utf8(bytes).ok()?.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let state = Self { first: next()?, second: next()?, dated: next()? };
        numbers.next().is_none().then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_back_and_other_text_is_not() {
        let state = State { first: 1, second: u64::MAX, dated: 0 };
        assert_eq!(State::read(&state.write()), Some(state));
        for bad in [&b""[..], b"1 2", b"1 2 3 4", b"1 2 x", b"-1 2 3", &[0xff]] {
            assert_eq!(State::read(bad), None, "{bad:?}");
        }
    }
}
