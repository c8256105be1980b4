//! Elections, latches, barriers and revocations for threads.

use std::fmt;
use std::time::Duration;

use super::{Validity, block_on};
use crate::{
    Background, BarrierWaitResult, CellValue, Fence, Leader, LockName, LossReason, Mode, Options,
    OwnerId, Result, Revocation, RevokedHolder, Token, Wait,
};

/// One leader among many candidates, as [`crate::Election`].
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::MemoryStore;
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let election = client.election::<String>("scheduler")?;
/// let mut leaders = election.observe(); // usually in other processes
/// assert!(leaders.next().unwrap()?.is_none());
///
/// let leadership = election.campaign(&"10.0.0.5:8080".into())?; // waits until it is elected
/// let leader = leaders.next().unwrap()?.expect("there is one");
/// assert_eq!(leader.value, "10.0.0.5:8080");
///
/// leadership.run(|leadership| {
///     // Ask leadership.is_valid() before each step, and send leadership.token() with every write.
///     # assert!(leadership.is_valid());
/// })?; // an error if the leadership was lost meanwhile
/// leadership.resign()?; // elects the next candidate
/// # Ok(())
/// # }
/// ```
pub struct Election<T> {
    election: crate::Election<T>,
    background: Background,
}

impl<T: CellValue> Election<T> {
    pub(super) const fn new(election: crate::Election<T>, background: Background) -> Self {
        Self { election, background }
    }

    /// The same election; a leader of it holds the lock with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { election: self.election.with(options), ..self }
    }

    /// The election's name, which is that of its lock.
    pub fn name(&self) -> &LockName {
        self.election.name()
    }

    /// Waits to be elected, as long as it takes, and proclaims the value.
    ///
    /// # Errors
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self, value: &T) -> Result<Leadership<T>> {
        self.campaign_with(value, Wait::Forever)
    }

    /// As [`campaign`](Self::campaign), but waits only as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::Election::campaign_with`].
    pub fn campaign_with(&self, value: &T, wait: Wait) -> Result<Leadership<T>> {
        let leadership = block_on(&self.background, self.election.campaign_with(value, wait))?;
        Ok(Leadership { leadership, background: self.background.clone() })
    }

    /// The leader, if there is one, as [`crate::Election::leader`].
    ///
    /// # Errors
    /// As [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader<T>>> {
        block_on(&self.background, self.election.leader())
    }

    /// Follows the leaders, without being a candidate.
    pub fn observe(&self) -> Leaders<T> {
        Leaders { observer: self.election.observe(), background: self.background.clone() }
    }
}

/// The leadership of an election, until it is resigned, dropped or lost, as [`crate::Leadership`].
#[must_use = "the leadership is resigned as soon as it is dropped"]
pub struct Leadership<T> {
    leadership: crate::Leadership<T>,
    background: Background,
}

impl<T: CellValue> Leadership<T> {
    /// The fencing token, higher than that of every earlier leader: send it along with every write.
    pub const fn token(&self) -> Token {
        self.leadership.token()
    }

    /// The id of this hold of the election's lock. A program that knows it can release the lock: keep it out
    /// of logs.
    pub fn owner(&self) -> OwnerId {
        self.leadership.owner()
    }

    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.leadership.name()
    }

    /// How the lock is held: exclusively.
    pub fn mode(&self) -> Mode {
        self.leadership.mode()
    }

    /// The term of a renewal, as [`crate::Guard::ttl`].
    pub fn ttl(&self) -> Duration {
        self.leadership.ttl()
    }

    /// A comparison for transactions of the same store, as [`crate::Guard::fence`].
    pub fn fence(&self) -> Option<Fence> {
        self.leadership.fence()
    }

    /// Waits until half of the term has passed without a renewal, as [`crate::Guard::danger`].
    pub fn danger(&self) {
        block_on(&self.background, self.leadership.danger());
    }

    /// Whether this is still the leader, by the clock.
    pub fn is_valid(&self) -> bool {
        self.leadership.is_valid()
    }

    /// How long it is still the leader if no renewal comes. Zero when the leadership is lost.
    pub fn remaining(&self) -> Duration {
        self.leadership.remaining()
    }

    /// Waits until the leadership is lost, and says why.
    pub fn lost(&self) -> LossReason {
        block_on(&self.background, self.leadership.lost())
    }

    /// Waits until another process asks this one to resign, as [`crate::Guard::revoked`].
    ///
    /// # Errors
    /// As [`crate::Guard::revoked`].
    pub fn revoked(&self) -> Result<Revocation> {
        block_on(&self.background, self.leadership.revoked())
    }

    /// A handle that tells other threads whether this is still the leader.
    pub fn validity(&self) -> Validity {
        Validity::new(self.leadership.validity(), self.background.clone())
    }

    /// Does `work` as the leader. `Ok` means that this was the leader until `work` had ended. The leadership
    /// stays.
    ///
    /// # Errors
    /// As [`Guard::run`](super::Guard::run).
    pub fn run<R>(&self, work: impl FnOnce(&Self) -> R) -> Result<R> {
        self.leadership.interruption(false).map_or(Ok(()), Err)?;
        let output = work(self);
        self.leadership.interruption(true).map_or(Ok(output), Err)
    }

    /// Replaces the value that observers see.
    ///
    /// # Errors
    /// As [`crate::Leadership::proclaim`].
    pub fn proclaim(&self, value: &T) -> Result<()> {
        block_on(&self.background, self.leadership.proclaim(value))
    }

    /// Gives up the leadership, which elects the next candidate. `Ok` means that it was held until now.
    ///
    /// # Errors
    /// As [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        block_on(&self.background, self.leadership.resign())
    }
}

/// Follows the leaders, from [`Election::observe`]: an iterator that does not end. Each item is what
/// [`crate::Observer::next`] returns.
pub struct Leaders<T> {
    observer: crate::Observer<T>,
    background: Background,
}

impl<T: CellValue> Iterator for Leaders<T> {
    type Item = Result<Option<Leader<T>>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(block_on(&self.background, self.observer.next()))
    }
}

/// A count that processes count down, and wait for, as [`crate::Latch`].
#[derive(Clone)]
pub struct Latch {
    latch: crate::Latch,
    background: Background,
}

impl Latch {
    pub(super) const fn new(latch: crate::Latch, background: Background) -> Self {
        Self { latch, background }
    }

    /// The same latch, which expires, as [`crate::Latch::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { latch: self.latch.ttl(ttl), ..self }
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        self.latch.name()
    }

    /// The same latch; parties that [join](Self::join) have a lease with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { latch: self.latch.with(options), ..self }
    }

    /// Makes this process a party with a lease, as [`crate::Latch::join`].
    ///
    /// # Errors
    /// As [`crate::Latch::join`].
    pub fn join(&self) -> Result<LatchParty> {
        let party = block_on(&self.background, self.latch.join())?;
        Ok(LatchParty { party, background: self.background.clone() })
    }

    /// How often it must still be counted down.
    ///
    /// # Errors
    /// As [`crate::Latch::count`].
    pub fn count(&self) -> Result<u32> {
        block_on(&self.background, self.latch.count())
    }

    /// Counts down by one, and returns what is left.
    ///
    /// # Errors
    /// As [`crate::Latch::count_down`].
    pub fn count_down(&self) -> Result<u32> {
        block_on(&self.background, self.latch.count_down())
    }

    /// Waits until the count is zero.
    ///
    /// # Errors
    /// As [`crate::Latch::wait`].
    pub fn wait(&self) -> Result<()> {
        block_on(&self.background, self.latch.wait())
    }
}

/// A party of a latch that has a lease, as [`crate::LatchParty`]. Dropping it without counting down breaks the
/// latch.
#[must_use = "the latch is broken as soon as the party is dropped"]
pub struct LatchParty {
    party: crate::LatchParty,
    background: Background,
}

impl LatchParty {
    /// Counts down by one, gives up the lease, and returns what is left.
    ///
    /// # Errors
    /// As [`crate::LatchParty::count_down`].
    pub fn count_down(self) -> Result<u32> {
        block_on(&self.background, self.party.count_down())
    }

    /// A handle that tells whether the lease is still there.
    pub fn validity(&self) -> Validity {
        Validity::new(self.party.validity(), self.background.clone())
    }

    /// The id of the lease, as [`crate::LatchParty::owner`].
    pub fn owner(&self) -> OwnerId {
        self.party.owner()
    }
}

/// A party of a barrier, as [`crate::Barrier`]. Dropping it breaks the barrier for the others.
pub struct Barrier {
    barrier: crate::Barrier,
    background: Background,
}

impl Barrier {
    pub(super) const fn new(barrier: crate::Barrier, background: Background) -> Self {
        Self { barrier, background }
    }

    /// The same barrier; this party's lease has these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { barrier: self.barrier.with(options), ..self }
    }

    /// The same barrier, which expires, as [`crate::Barrier::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { barrier: self.barrier.ttl(ttl), ..self }
    }

    /// The barrier's name.
    pub fn name(&self) -> &LockName {
        self.barrier.name()
    }

    /// Waits until all parties have come.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`].
    pub fn wait(&mut self) -> Result<BarrierWaitResult> {
        block_on(&self.background, self.barrier.wait())
    }

    /// As [`wait`](Self::wait), at most for `limit`: `None` if the parties have not come by then. This one
    /// has come all the same, and the next call goes on waiting; to give up, drop the barrier.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`].
    pub fn wait_within(&mut self, limit: Duration) -> Result<Option<BarrierWaitResult>> {
        let wait = async { tokio::time::timeout(limit, self.barrier.wait()).await.ok() };
        block_on(&self.background, wait).transpose()
    }
}

/// A request to the present holders of a lock to let go, from [`Client::revoke`](super::Client::revoke).
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure::MemoryStore;
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let guard = client.mutex("index")?.acquire()?;
/// let holder = std::thread::spawn(move || {
///     println!("stopping: {}", guard.revoked()?.reason);
///     guard.release()
/// });
/// let asked = client.revoke("index", "deploy").grace(Duration::from_secs(30)).send()?;
/// assert!(asked[0].heard && !asked[0].evicted);
/// # holder.join().unwrap()
/// # }
/// ```
#[must_use = "nothing is sent before `send`"]
pub struct Revoke {
    revoke: crate::Revoke,
    background: Background,
}

impl Revoke {
    pub(super) const fn new(revoke: crate::Revoke, background: Background) -> Self {
        Self { revoke, background }
    }

    /// Takes the lock by force after this time, as [`crate::Revoke::grace`].
    pub fn grace(self, grace: Duration) -> Self {
        Self { revoke: self.revoke.grace(grace), ..self }
    }

    /// Waits for the holders no longer than this, as [`crate::Revoke::within`].
    pub fn within(self, limit: Duration) -> Self {
        Self { revoke: self.revoke.within(limit), ..self }
    }

    /// Sends the request, and waits until none of the holders that were asked holds the lock any more.
    ///
    /// # Errors
    /// As [`crate::Client::revoke`].
    pub fn send(self) -> Result<Vec<RevokedHolder>> {
        block_on(&self.background, self.revoke.into_future())
    }
}

impl<T> Clone for Election<T> {
    fn clone(&self) -> Self {
        Self { election: self.election.clone(), background: self.background.clone() }
    }
}

/// Shows what the async handle inside shows.
macro_rules! debug_as_inner {
    ($($name:ident $(<$generic:ident>)?: $field:ident,)*) => {
        $(impl $(<$generic>)? fmt::Debug for $name $(<$generic>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.$field.fmt(f)
            }
        })*
    };
}

debug_as_inner! {
    Election<T>: election,
    Leadership<T>: leadership,
    Leaders<T>: observer,
    Latch: latch,
    LatchParty: party,
    Barrier: barrier,
    Revoke: revoke,
}
