//! A count that many processes count down, and wait for.

use std::fmt;
use std::time::Duration;

use super::contract::{CellSpace, Expiry};
use super::parties::party_leases;
use super::slot::{Changes, POLL, Seen, Slot};
use crate::{
    Client, Error, ErrorKind, Guard, LockName, Moment, Options, OwnerId, Result, Semaphore,
    Validity, now,
};

/// A count that processes count down, and wait for to be zero: for work that may begin when so many others
/// have finished.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, Error, ErrorKind, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let imported = client.latch("import/2026-11-18", 2)?;
/// assert_eq!(imported.count_down().await?, 1); // in one process, when its part is done
/// assert_eq!(imported.count_down().await?, 0); // in another
/// imported.wait().await?; // in all that need both parts
///
/// let refused = imported.count_down().await.unwrap_err(); // a third one
/// assert_eq!(refused.kind(), ErrorKind::Invalid);
/// # Ok(())
/// # }
/// ```
///
/// A party that [joins](Self::join) has a lease until it counts down. If it dies or leaves before that,
/// the waiters get an error ([`Broken`](ErrorKind::Broken)) instead of waiting for it.
///
/// A latch is for one use, and expires: a day after the first [`count_down`](Self::count_down) or
/// [`wait`](Self::wait), unless [`ttl`](Self::ttl) says otherwise. So a party that died without having joined
/// does not hang the others for ever, and nothing is left in the store. All users of a latch should
/// name the same count; where they differ, each goes by its own.
///
/// A call whose reply is lost is sent again, and still counts once. etcd, ZooKeeper and memory notify a
/// waiter of changes; on Redis and local it polls, five times a second after the first second.
#[derive(Clone)]
pub struct Latch {
    slot: Slot,
    count: u32,
    leases: Semaphore,
    ttl: Duration,
}

/// A party of a [`Latch`], from [`Latch::join`]: it has a lease until it counts down, so the others do
/// not wait for it if it dies. Dropping it without counting down breaks the latch.
#[must_use = "the latch is broken as soon as the party is dropped"]
pub struct LatchParty {
    latch: Latch,
    guard: Guard,
}

/// How long a latch stays, unless [`Latch::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How often a change is made anew after others came first.
const MAX_CONFLICTS: u32 = 10_000;

const JOIN: &str = "join the latch";
const COUNT: &str = "count down the latch";
const WAIT: &str = "wait for the latch";

impl Latch {
    /// How many parties can have [joined](Self::join) and not counted down yet. Every join and count writes the
    /// list of them, and every waiter reads it.
    pub const MAX_PARTIES: u32 = 1_000;

    pub(crate) fn new(client: &Client, name: &str, count: u32) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Latch, name)?;
        if count == 0 {
            let why = "it would be open from the beginning: choose a count of one or more";
            return Err(Error::new(ErrorKind::Invalid, COUNT, why).about(&slot.key.name));
        }
        let permits = count.min(Self::MAX_PARTIES);
        let leases = client.semaphore(&party_leases(slot.key.space, name), permits)?;
        Ok(Self { slot, count, leases, ttl: TTL })
    }

    /// The same latch; parties that [join](Self::join) have a lease with these options. The TTL bounds how long
    /// the others wait for a party that has died.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.leases = self.leases.with(options.without_keeping("a latch"));
        self
    }

    /// The same latch; if this handle is the first to use it, it expires after this time. A latch does not
    /// expire early, and goes a little later.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// How often it must still be counted down.
    ///
    /// # Errors
    /// Faults of the store that last for five call timeouts ([`Client::with_call_timeout`]).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn count(&self) -> Result<u32> {
        Ok(self.left(&self.state(&self.slot.read().await?)?))
    }

    /// Counts down by one, and returns what is left.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the count is zero already: nothing was changed. Faults of the
    /// store that last for five call timeouts; the count is as it was, unless the error has
    /// [`Effect::Unknown`](crate::Effect).
    ///
    /// # Cancel safety
    /// Dropped halfway, it may have been counted down, or may yet be.
    pub async fn count_down(&self) -> Result<u32> {
        self.count_for(None).await
    }

    /// Makes this process a party with a lease, which is renewed until it counts down. The lease is that of a
    /// permit of the semaphore `latch:` and the name.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) if as many parties have a lease as the latch counts, or as
    /// [may join](Self::MAX_PARTIES); otherwise as
    /// [`Semaphore::try_acquire`], and faults of the store that last for five call timeouts.
    ///
    /// # Cancel safety
    /// Dropped halfway, it may count as a party that has left, which breaks the latch.
    pub async fn join(&self) -> Result<LatchParty> {
        let guard = self.leases.try_acquire().await?;
        let owner = guard.owner();
        let join = |state: &mut State| {
            if state.parties.len() >= Self::MAX_PARTIES as usize {
                let why = format!(
                    "{} parties have joined: let others count down without joining, or use several latches",
                    Self::MAX_PARTIES
                );
                return Err(Error::new(ErrorKind::Busy, JOIN, why).about(self.name()));
            }
            state.parties.push(owner);
            Ok(())
        };
        guard.run(self.change(join)).await??;
        Ok(LatchParty { latch: self.clone(), guard })
    }

    /// Counts down by one. A party leaves the list in the same step: a waiter never sees one that has counted and
    /// is still expected to.
    async fn count_for(&self, party: Option<OwnerId>) -> Result<u32> {
        let count = |state: &mut State| {
            if state.counted >= self.count {
                let why = format!(
                    "it was counted down {} times, and its count is {}: more parties count than were \
                     named, or one counts twice",
                    state.counted, self.count
                );
                return Err(Error::new(ErrorKind::Invalid, COUNT, why).about(self.name()));
            }
            state.counted += 1;
            state.parties.retain(|other| Some(*other) != party);
            Ok(self.left(state))
        };
        self.change(count).await
    }

    /// Changes what is stored, and returns the last value of `step`.
    async fn change<T>(&self, mut step: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        let mut last = None;
        let changed = |seen: &Seen| {
            let mut state = self.state(seen)?;
            last = Some(step(&mut state)?);
            let first = seen.version.is_none();
            let expiry = if first { Expiry::After(self.ttl) } else { Expiry::Keep };
            Ok::<_, Error>((Some(state.write()), expiry))
        };
        self.slot.update(None, MAX_CONFLICTS, changed).await?;
        let why = "a change ended without a value: report it";
        last.ok_or_else(|| Error::new(ErrorKind::Internal, COUNT, why).with_unknown_effect())
    }

    fn state(&self, seen: &Seen) -> Result<State> {
        let Some(bytes) = seen.value() else { return Ok(State::default()) };
        State::read(bytes).ok_or_else(|| self.slot.damaged("the stored value"))
    }

    /// The parties of this state that have no lease.
    async fn dead(&self, mut state: State) -> Result<Vec<OwnerId>> {
        if !state.parties.is_empty() {
            let holders = self.slot.holders(self.leases.name()).await?;
            state.parties.retain(|party| {
                let owner = party.to_string();
                holders.iter().all(|holder| holder.owner != owner)
            });
        }
        Ok(state.parties)
    }

    /// Waits until the count is zero.
    ///
    /// # Errors
    /// [`Broken`](ErrorKind::Broken) if a party that had [joined](Self::join) died or left before it counted
    /// down: the latch will not open. Begin anew, with another name. [`TimedOut`](ErrorKind::TimedOut) if
    /// the latch expired before that; otherwise as [`count`](Self::count).
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn wait(&self) -> Result<()> {
        let (mut seen, mut checked) = (self.slot.read().await?, None::<Moment>);
        let mut changes = Changes::of(&self.slot);
        if seen.version.is_none() {
            // From now on it expires: an absent latch is one that has.
            self.change(|_| Ok(())).await?;
            seen = self.slot.read().await?;
        }
        loop {
            if seen.version.is_none() {
                let why = "it expired before it was counted down: a party died, or needs longer than \
                           the latch is kept (`Latch::ttl`)";
                let error = Error::new(ErrorKind::TimedOut, WAIT, why);
                return Err(error.about(self.name()));
            }
            let state = self.state(&seen)?;
            if self.left(&state) == 0 {
                return Ok(());
            }
            if checked.is_none_or(|checked| now().since(checked) >= POLL) {
                let dead = self.dead(state).await?;
                checked = Some(now());
                seen = self.slot.read().await?;
                // A party gives up its lease after it has counted: it was missed if it is still expected.
                let state = self.state(&seen)?;
                if dead.iter().any(|party| state.parties.contains(party)) && self.left(&state) > 0 {
                    let why = "a party died or left before it counted down, so it will not open: \
                               begin anew, with another name";
                    return Err(Error::new(ErrorKind::Broken, WAIT, why).about(self.name()));
                }
                continue;
            }
            changes.wait(&seen, POLL).await;
            seen = self.slot.read().await?;
        }
    }

    fn left(&self, state: &State) -> u32 {
        self.count.saturating_sub(state.counted)
    }
}

/// What is stored: a line with the number of counts, and a line for each party that has joined and not counted
/// down: its owner id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    counted: u32,
    parties: Vec<OwnerId>,
}

impl State {
    fn write(&self) -> Vec<u8> {
        let mut text = self.counted.to_string();
        for party in &self.parties {
            text += &format!("\n{party}");
        }
        text.into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let counted = lines.next()?.parse().ok()?;
        Some(Self { counted, parties: lines.map(|line| line.parse().ok()).collect::<Option<_>>()? })
    }
}

impl LatchParty {
    /// Counts down by one, gives up the lease, and returns what is left.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if the lease was lost before: the latch is broken for the others. Otherwise as
    /// [`Latch::count_down`]. After every error the lease is given up, and the latch is broken unless the count
    /// took effect.
    ///
    /// # Cancel safety
    /// Dropped halfway, it may have counted down. If it has not, the latch is broken.
    pub async fn count_down(self) -> Result<u32> {
        let Self { latch, guard } = self;
        let owner = guard.owner();
        let left = guard.run(latch.count_for(Some(owner))).await??;
        // It has counted: what becomes of the lease matters no more.
        let _ = guard.release().await;
        Ok(left)
    }

    /// A handle that tells whether the lease is still there.
    pub fn validity(&self) -> Validity {
        self.guard.validity()
    }

    /// The id of the lease. A program that knows it can release it: keep it out of logs.
    pub fn owner(&self) -> OwnerId {
        self.guard.owner()
    }
}

impl fmt::Debug for LatchParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchParty").field("latch", &self.latch).finish_non_exhaustive()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("name", self.name()).field("count", &self.count).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parties_beyond_the_limit_are_refused_whatever_the_count() {
        let client = Client::new(std::sync::Arc::new(crate::MemoryStore::new())).unwrap();
        let latch = client.latch("a", 5_000).unwrap();
        assert_eq!(latch.leases.permits(), Latch::MAX_PARTIES);
        // Parties that have died stay in the list without a lease.
        let parties = vec![OwnerId::random(); Latch::MAX_PARTIES as usize];
        let fill = |state: &mut State| {
            state.parties.clone_from(&parties);
            Ok(())
        };
        latch.change(fill).await.unwrap();
        let refused = latch.join().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert_eq!(latch.count_down().await.unwrap(), 4_999);
        client.close().await;
        assert!(client.list("").await.unwrap().is_empty(), "the refused party has no lease");
    }

    #[test]
    fn a_state_is_read_back_and_other_text_is_not() {
        let joined = State { counted: 3, parties: vec![OwnerId::random(), OwnerId::random()] };
        for state in [State::default(), joined] {
            assert_eq!(State::read(&state.write()), Some(state));
        }
        for bad in [&b""[..], b"-1", b"x", b"1\n", b"1\nab", b"1 2", &[0xff]] {
            assert_eq!(State::read(bad), None, "{bad:?}");
        }
    }
}
