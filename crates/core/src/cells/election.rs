//! One leader among many candidates.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use futures_util::Stream;
use parking_lot::Mutex;

use super::contract::{CellSpace, Expiry};
use super::slot::{Changes, Outcome, POLL, REMOVED_FOR, Seen, Slot};
use super::value::CellValue;
use crate::guard::FencedGuard;
use crate::primitives::FencedMutex;
use crate::{
    Client, Error, ErrorKind, Guard, LockName, LossReason, Options, OwnerId, Result, Token, Wait,
};

/// One leader among many candidates, with a value that the leader proclaims, such as its address.
///
/// The leader holds the mutex of the same name: candidates are elected first come, first served, a leader
/// hears of the loss of its lease before another one is elected, and [`Client::inspect`] shows the leader
/// and the candidates. The value is fenced: a late write of an earlier leader never replaces that of a
/// later one.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, Error, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let election = client.election::<String>("scheduler")?;
/// let mut observer = election.observe(); // usually in other processes
/// assert!(observer.next().await?.is_none());
///
/// let leadership = election.campaign(&"10.0.0.5:8080".into()).await?; // waits until it is elected
/// let leader = observer.next().await?.expect("there is one");
/// assert_eq!((leader.value.as_str(), leader.token), ("10.0.0.5:8080", leadership.token()));
///
/// leadership
///     .run(async |leadership| {
///         // Dropped as soon as the leadership is lost. Send leadership.token() with every write.
///         leadership.proclaim(&"10.0.0.5:9090".into()).await
///     })
///     .await??;
/// leadership.resign().await?; // elects the next candidate
/// # client.close().await;
/// # Ok(())
/// # }
/// ```
///
/// A leader that resigned cannot act as one by mistake:
///
/// ```compile_fail,E0382
/// # use tenure::{Leadership, Result};
/// # async fn late(leadership: Leadership<String>) -> Result<()> {
/// leadership.resign().await?;
/// leadership.proclaim(&"still here".into()).await
/// # }
/// ```
pub struct Election<T> {
    slot: Slot,
    mutex: FencedMutex,
    value: PhantomData<fn() -> T>,
}

/// How often a value is proclaimed again because another write came first: of an earlier leader, or of
/// the same one.
const MAX_CONFLICTS: u32 = 1_000;

const LEAD: &str = "lead";

impl<T: CellValue> Election<T> {
    pub(crate) fn new(client: &Client, name: &str) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Election, name)?;
        let mutex = client.mutex(name)?.fenced()?;
        Ok(Self { slot, mutex, value: PhantomData })
    }

    /// The same election; a leader of it holds the lock with these options. The TTL bounds how long there
    /// is no leader after one has died.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.mutex = self.mutex.with(options.without_keeping("an election"));
        self
    }

    /// The election's name, which is that of its lock.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// Waits to be elected, as long as it takes, and proclaims the value.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a value over the store's limit, before anything is sent;
    /// [`Lost`](ErrorKind::Lost) if the leadership was lost before the value was proclaimed; otherwise as
    /// [`Mutex::acquire`](crate::Mutex::acquire), and faults of the store that last for five call
    /// timeouts. The candidacy is given up in every case.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the candidacy, also one that was successful just then.
    pub async fn campaign(&self, value: &T) -> Result<Leadership<T>> {
        self.campaign_with(value, Wait::Forever).await
    }

    /// As [`campaign`](Self::campaign), but waits only as long as `wait` says.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) or [`TimedOut`](ErrorKind::TimedOut) if another candidate leads;
    /// otherwise as [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_with(&self, value: &T, wait: Wait) -> Result<Leadership<T>> {
        let bytes = self.encode(value)?;
        let guard = self.mutex.acquire_with(wait).await?;
        let leadership = Leadership { election: self.clone(), guard, last: Mutex::default() };
        leadership.guard.run(leadership.publish(bytes)).await??;
        Ok(leadership)
    }

    /// The leader, if there is one, for programs that send it requests. It may have lost the leadership
    /// by the time of the answer.
    ///
    /// # Errors
    /// Faults of the store; [`Damaged`](ErrorKind::Damaged) for a value of another type.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn leader(&self) -> Result<Option<Leader<T>>> {
        self.look().await.map(|(_, leader)| leader)
    }

    /// Reports each new leader and value, without being a candidate.
    pub fn observe(&self) -> Observer<T> {
        let changes = Changes::of(&self.slot);
        Observer { election: self.clone(), changes, seen: None, reported: None, failed: false }
    }

    /// What is proclaimed; the leader only if it still holds the lock, because a leader that died has
    /// withdrawn nothing.
    async fn look(&self) -> Result<(Seen, Option<Leader<T>>)> {
        let seen = self.slot.read().await?;
        let Some(Record { token, leader: Some((owner, value)) }) = self.record(&seen)? else {
            return Ok((seen, None));
        };
        let leader = Leader { value: self.decode(value)?, token, owner };
        let holders = self.slot.holders(self.name()).await?;
        let owner = owner.to_string();
        let leads = holders.iter().any(|holder| holder.owner == owner);
        Ok((seen, leads.then_some(leader)))
    }

    fn record<'a>(&self, seen: &'a Seen) -> Result<Option<Record<'a>>> {
        let read =
            |bytes| Record::read(bytes).ok_or_else(|| self.slot.damaged("the stored leader"));
        seen.value().map(read).transpose()
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>> {
        let bytes = value.to_bytes().map_err(|error| error.about(self.name()))?;
        self.slot.check_size(bytes.len() + Record::MAX_OVERHEAD)?;
        Ok(bytes)
    }

    fn decode(&self, value: &[u8]) -> Result<T> {
        T::from_bytes(value).map_err(|error| error.about(self.name()))
    }
}

/// The leadership of an election, until it is resigned, dropped or lost: a [`Guard`] of the election's
/// lock, and the right to proclaim.
#[must_use = "the leadership is resigned as soon as it is dropped"]
pub struct Leadership<T> {
    election: Election<T>,
    guard: FencedGuard,
    /// What was proclaimed last.
    last: Mutex<Option<Seen>>,
}

impl<T: CellValue> Leadership<T> {
    /// The fencing token, higher than that of every earlier leader: send it along with every write.
    pub const fn token(&self) -> Token {
        self.guard.token()
    }

    /// Runs `work` while this is the leader, and drops it as soon as the leadership is lost, as
    /// [`Guard::run`] does. The leadership stays when the work has ended.
    ///
    /// # Errors
    /// As [`Guard::run`].
    ///
    /// # Cancel safety
    /// As [`Guard::run`].
    pub async fn run<R>(&self, work: impl AsyncFnOnce(&Self) -> R) -> Result<R> {
        self.guard.run(work(self)).await
    }

    /// Replaces the value that observers see.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a value over the store's limit: the old one stays.
    /// [`Lost`](ErrorKind::Lost) if the leadership was lost; faults of the store that last for five call
    /// timeouts. Observers may see a value whose write failed in this way until another leader is
    /// elected, never afterwards.
    ///
    /// # Cancel safety
    /// Dropped halfway, the value may have been replaced, or may yet be.
    pub async fn proclaim(&self, value: &T) -> Result<()> {
        let bytes = self.election.encode(value)?;
        self.guard.run(self.publish(bytes)).await?
    }

    /// Gives up the leadership, which elects the next candidate. `Ok` means that it was held until now.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`]. Observers may then see that there is no leader only when they next look at
    /// the lock, within a second.
    pub async fn resign(self) -> Result<()> {
        let Self { election, guard, last } = self;
        let (token, last) = (guard.token(), last.into_inner());
        // Both at once, in any order: neither hides a successor, whose token is newer than that of the
        // withdrawal.
        let withdrawn = tokio::time::timeout(
            election.slot.inner.call_timeout,
            election.publish(token, Record { token, leader: None }, last),
        );
        let (released, withdrawn) = tokio::join!(guard.release(), withdrawn);
        if let Ok(Err(error)) = withdrawn
            && error.kind() != ErrorKind::Lost
        {
            tracing::debug!(election = %election.name(), %error, "the value was not withdrawn");
        }
        released
    }

    async fn publish(&self, value: Vec<u8>) -> Result<()> {
        let token = self.token();
        let record = Record { token, leader: Some((self.guard.owner(), &value)) };
        let last = self.last.lock().take();
        let published = self.election.publish(token, record, last).await;
        *self.last.lock() = Some(published.inspect_err(|error| {
            if let Some(reason) = error.loss_reason() {
                self.guard.lose(reason);
            }
        })?);
        Ok(())
    }
}

impl<T: CellValue> Election<T> {
    /// Writes a record of the leader with this token, unless a later one has written.
    async fn publish(&self, token: Token, record: Record<'_>, last: Option<Seen>) -> Result<Seen> {
        let expiry = match record.leader {
            Some(_) => Expiry::Never,
            None => Expiry::After(REMOVED_FOR),
        };
        let bytes = record.write();
        let mut seen = match last {
            Some(seen) => seen,
            None => self.slot.read().await?,
        };
        for _ in 0..MAX_CONFLICTS {
            if self.record(&seen)?.is_some_and(|newest| newest.token > token) {
                let why = "another leader was elected meanwhile: stop what the leader does";
                return Err(Error::lost(LossReason::NotHeld, LEAD, why).about(self.name()));
            }
            match self.slot.swap(&seen, Some(bytes.clone()), expiry).await? {
                Outcome::Done(seen) => return Ok(seen),
                Outcome::Conflict(current) => seen = current,
            }
        }
        let why = format!("other writes came first, {MAX_CONFLICTS} times in a row: try later");
        Err(Error::new(ErrorKind::Busy, self.slot.key.space.write(), why).about(self.name()))
    }
}

impl<T> Deref for Leadership<T> {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// A leader, as observers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader<T> {
    /// What it proclaimed last.
    pub value: T,
    /// Its fencing token: a later leader has a higher one.
    pub token: Token,
    /// The id of its hold of the election's lock.
    pub owner: OwnerId,
}

/// Reports leaders and their values, from [`Election::observe`].
///
/// A new leader or value is reported when the store pushes the change (etcd, ZooKeeper and memory), or at
/// the next poll (Redis and local, five times a second after the first second). A leader that died without a successor is
/// reported as gone within a second after its lease has ended: while there is a leader, an observer reads
/// the state of its lock once a second.
pub struct Observer<T> {
    election: Election<T>,
    changes: Changes,
    seen: Option<Seen>,
    /// The token and the bytes of the leader that was reported last.
    reported: Option<Option<(Token, Vec<u8>)>>,
    failed: bool,
}

impl<T: CellValue> Observer<T> {
    /// Waits until there is a leader or value that differs from the last report, and returns it. `None`:
    /// there is no leader. The first call returns at once. Changes that follow each other quickly are
    /// reported as one.
    ///
    /// # Errors
    /// As [`Election::leader`]. The observation goes on with the next call.
    ///
    /// # Cancel safety
    /// Safe to drop and call again: no change is lost.
    pub async fn next(&mut self) -> Result<Option<Leader<T>>> {
        loop {
            if self.failed {
                tokio::time::sleep(POLL).await;
            } else if let Some(seen) = &self.seen {
                self.changes.wait(seen, POLL).await;
            }
            let looked = self.election.look().await;
            self.failed = looked.is_err();
            let (seen, leader) = looked?;
            let value = seen.value().unwrap_or_default().to_vec();
            let report = leader.as_ref().map(|leader| (leader.token, value));
            self.seen = Some(seen);
            if self.reported.as_ref() != Some(&report) {
                self.reported = Some(report);
                return Ok(leader);
            }
        }
    }

    /// The same reports as a stream, which does not end.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, MemoryStore};
    /// use futures_util::TryStreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let election = client.election::<String>("scheduler")?;
    /// let mut leaders = Box::pin(election.observe().into_stream());
    /// assert!(leaders.try_next().await?.unwrap().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader<T>>>> {
        futures_util::stream::unfold(self, |mut observer| async {
            Some((observer.next().await, observer))
        })
    }
}

/// What is stored: `L`, the token, a space, the owner, and the value; or `N` and the token of a leader that
/// resigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record<'a> {
    token: Token,
    leader: Option<(OwnerId, &'a [u8])>,
}

impl<'a> Record<'a> {
    /// The letter, twenty digits, a space, and the digits of the owner.
    const MAX_OVERHEAD: usize = 1 + 20 + 1 + 32;

    fn write(&self) -> Vec<u8> {
        match self.leader {
            Some((owner, value)) => [format!("L{} {owner}", self.token).as_bytes(), value].concat(),
            None => format!("N{}", self.token).into_bytes(),
        }
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let token = |digits| Some(Token::new(std::str::from_utf8(digits).ok()?.parse().ok()?));
        let (kind, rest) = bytes.split_first()?;
        match kind {
            b'N' => Some(Self { token: token(rest)?, leader: None }),
            b'L' => {
                let space = rest.iter().position(|byte| *byte == b' ')?;
                let (owner, value) = rest[space + 1..].split_at_checked(32)?;
                let owner = std::str::from_utf8(owner).ok()?.parse().ok()?;
                Some(Self { token: token(&rest[..space])?, leader: Some((owner, value)) })
            }
            _ => None,
        }
    }
}

impl<T> Clone for Election<T> {
    fn clone(&self) -> Self {
        let Self { slot, mutex, value } = self;
        Self { slot: slot.clone(), mutex: mutex.clone(), value: *value }
    }
}

impl<T> fmt::Debug for Election<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.slot.key.name).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Leadership<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Observer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.election).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_within_its_overhead_and_other_bytes_are_not() {
        let (token, owner) = (Token::new(u64::MAX), OwnerId::random());
        for leader in [None, Some((owner, &b""[..])), Some((owner, b"10.0.0.5 \xff"))] {
            let record = Record { token, leader };
            let bytes = record.write();
            assert!(
                bytes.len() <= Record::MAX_OVERHEAD + leader.map_or(0, |(_, value)| value.len())
            );
            assert_eq!(Record::read(&bytes), Some(record));
        }
        for bad in [&b""[..], b"N", b"Nx", b"L1", b"L1 abc", b"X1", b"L 0123456789abcdef"] {
            assert_eq!(Record::read(bad), None, "{bad:?}");
        }
    }
    /// A leader that was paused between its grant and its first write, or before a later one.
    #[tokio::test]
    async fn a_write_of_an_older_leader_is_refused_whatever_it_saw() {
        let client = Client::new(std::sync::Arc::new(crate::MemoryStore::new())).unwrap();
        let election = client.election::<String>("a").unwrap();
        let publish = async |token, value: Option<&'static str>, last| {
            let (token, owner) = (Token::new(token), OwnerId::from_bytes([token as u8; 16]));
            let leader = value.map(|value| (owner, value.as_bytes()));
            election.publish(token, Record { token, leader }, last).await
        };
        let stored = async || election.slot.read().await.unwrap().value().unwrap().to_vec();
        let first = publish(1, Some("first"), None).await.unwrap();
        publish(3, Some("third"), None).await.unwrap();
        let newest = stored().await;
        for last in [None, Some(first), Some(Seen::default())] {
            for (token, value) in [(1, Some("late")), (2, Some("late")), (2, None)] {
                let refused = publish(token, value, last.clone()).await.unwrap_err();
                assert_eq!(refused.loss_reason(), Some(LossReason::NotHeld), "{refused}");
                assert_eq!(stored().await, newest);
            }
        }
        publish(3, None, None).await.unwrap();
        assert!(publish(2, Some("late"), None).await.is_err(), "also after the newest resigned");
        publish(4, Some("fourth"), None).await.unwrap();
    }
}
