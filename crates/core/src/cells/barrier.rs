//! A point that a number of parties reach together, again and again.

use std::fmt;
use std::time::Duration;

use tenure_proto::Backoff;

use super::contract::{CellSpace, Expiry, SwapId};
use super::parties::party_leases;
use super::slot::{Changes, Outcome, POLL, Seen, Slot};
use crate::{
    Client, Error, ErrorKind, Guard, LockName, Moment, Options, OwnerId, Result, Semaphore, now,
};

/// A point in their work that a number of parties reach together: each waits there until all have come.
/// It can be used again: each time that all have passed is a generation.
///
/// A party is one handle. From its first [`wait`](Self::wait) on it has a lease, like that of a lock, until
/// the handle is dropped. If a party dies or leaves, the others get an error instead of waiting for it for
/// ever ([`Broken`](ErrorKind::Broken)): those that wait now, and those that come later in that generation.
/// Then the next generation begins, with a place for a new party.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, Error, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let (mut ours, mut theirs) = (client.barrier("phase", 2)?, client.barrier("phase", 2)?);
/// for phase in 0..3 {
///     let (one, other) = tokio::try_join!(ours.wait(), theirs.wait())?; // usually in two processes
///     assert_eq!(one.generation(), other.generation());
///     assert!(one.is_leader() != other.is_leader());
/// }
/// # Ok(())
/// # }
/// ```
///
/// The others wait for a party that has not called `wait` yet, because they do not know of it; limit that
/// with `tokio::time::timeout`. With more handles than parties, the surplus ones wait until another
/// handle is dropped. All parties must name the same number.
///
/// etcd, ZooKeeper and memory notify a waiting party of changes; on Redis and local the party polls, five
/// times a second after the first second. Each waiting party looks once a second whether all others are
/// alive, so a death is noticed within a second after the lease has ended. The lease is that of a permit
/// of the semaphore `barrier:` and the name: so the name may have 192 bytes.
pub struct Barrier {
    slot: Slot,
    leases: Semaphore,
    parties: u32,
    ttl: Duration,
    lease: Option<PartyLease>,
}

/// The lease of a party.
struct PartyLease {
    guard: Guard,
    /// The generation in which this party has arrived, or may have, and whose end it has not seen yet.
    arrived: Option<u64>,
}

/// The result of [`Barrier::wait`]: all parties have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult {
    generation: u64,
    leader: bool,
}

impl BarrierWaitResult {
    /// The number of the generation: the same for all parties, and higher each time.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this is the party that came last: one of them in each generation, unless that one gave up
    /// waiting or lost the reply.
    pub const fn is_leader(&self) -> bool {
        self.leader
    }
}

/// How long a barrier that is not used stays, unless [`Barrier::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How often an arrival is retried because other writes came first.
const MAX_CONFLICTS: u32 = 10_000;

const WAIT: &str = "wait at the barrier";

impl Barrier {
    /// The highest number of parties.
    pub const MAX_PARTIES: u32 = 1_000;

    pub(crate) fn new(client: &Client, name: &str, parties: u32) -> Result<Self> {
        let slot = Slot::new(client, CellSpace::Barrier, name)?;
        if !(1..=Self::MAX_PARTIES).contains(&parties) {
            let why = format!("{parties} parties: choose between 1 and {}", Self::MAX_PARTIES);
            return Err(Error::new(ErrorKind::Invalid, WAIT, why).about(&slot.key.name));
        }
        if !client.store().capabilities().permits {
            let why = "this store has no permits, of which each party holds one: use another store";
            return Err(Error::new(ErrorKind::Unsupported, WAIT, why).about(&slot.key.name));
        }
        let leases = client.semaphore(&party_leases(slot.key.space, name), parties)?;
        Ok(Self { slot, leases, parties, ttl: TTL, lease: None })
    }

    /// The same barrier; this party's lease has these options. The TTL bounds how long the others wait for
    /// a party that has died.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.leases = self.leases.with(options.without_keeping("a barrier"));
        self
    }

    /// The same barrier; what the store knows of it expires this long after the last arrival, instead of a
    /// day. Parties that still wait then get an error.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The barrier's name.
    pub fn name(&self) -> &LockName {
        &self.slot.key.name
    }

    /// Waits until all parties have come.
    ///
    /// # Errors
    /// [`Broken`](ErrorKind::Broken) if a party died or left: the next call begins a new generation.
    /// [`Lost`](ErrorKind::Lost) if this party's own lease was lost, as by a process that was stopped: the
    /// barrier is broken for the others, and the next call makes this a new party.
    /// [`Invalid`](ErrorKind::Invalid) if the others name another number of parties; faults of the store
    /// that last for five call timeouts.
    ///
    /// # Cancel safety
    /// A call that was dropped after its arrival is continued by the next one. To give up, drop the
    /// barrier: that breaks it for the others.
    pub async fn wait(&mut self) -> Result<BarrierWaitResult> {
        let loss = self.lease.as_ref().and_then(|lease| lease.guard.interruption(false));
        if let Some(loss) = loss {
            // The lease was lost between two calls, and the barrier is broken for the others.
            self.lease = None;
            return Err(loss);
        }
        if self.lease.is_none() {
            let guard = self.leases.acquire().await?;
            self.lease = Some(PartyLease { guard, arrived: None });
        }
        let Self { slot, leases, parties, ttl, lease: Some(lease) } = self else {
            let why = "this party has no lease after it has joined: report this as a bug";
            return Err(Error::new(ErrorKind::Internal, WAIT, why).about(self.name()));
        };
        let visit = Visit {
            slot,
            lock: leases.name(),
            parties: *parties,
            expiry: Expiry::After(*ttl),
            owner: lease.guard.owner(),
        };
        match lease.guard.run(visit.pass(&mut lease.arrived)).await {
            Ok(passed) => passed,
            Err(lost) => {
                self.lease = None;
                Err(lost)
            }
        }
    }
}

/// One call of [`Barrier::wait`].
struct Visit<'a> {
    slot: &'a Slot,
    lock: &'a LockName,
    parties: u32,
    expiry: Expiry,
    owner: OwnerId,
}

impl Visit<'_> {
    /// Arrives, unless this party has, and waits for the end of the generation.
    async fn pass(&self, arrived: &mut Option<u64>) -> Result<BarrierWaitResult> {
        let mut checked: Option<Moment> = None;
        let mut changes = Changes::of(self.slot);
        let mut backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(50));
        let mut conflicts = 0;
        let mut seen = self.slot.read().await?;
        loop {
            let state = self.state(&seen)?;
            if let Some(generation) = *arrived
                && state.generation != generation
            {
                *arrived = None;
                return match state.is_passed(generation) {
                    true => Ok(BarrierWaitResult { generation, leader: false }),
                    false => Err(self.broken()),
                };
            }
            let mut next = None;
            if checked.is_none_or(|checked| now().since(checked) >= POLL) {
                next = state.without(&self.dead(&state).await?);
                checked = Some(now());
            }
            let breaks = next.is_some();
            if next.is_none() && !state.has_arrived(self.owner) {
                if state.parties != self.parties && !state.members.is_empty() {
                    return Err(self.other_number(state.parties));
                }
                next = Some(state.with(self.owner, self.parties));
            }
            let Some(next) = next else {
                changes.wait(&seen, POLL).await;
                seen = self.slot.read().await?;
                continue;
            };
            let before = *arrived;
            if !breaks {
                // Set before the swap: if the reply is lost, the next call finds out.
                *arrived = Some(state.generation);
            }
            match self.slot.swap(&seen, Some(next.write()), self.expiry).await? {
                // A party that arrived before the death gets the error; a new one joins the next
                // generation.
                Outcome::Done(_) if breaks && state.is_member(self.owner) => {
                    *arrived = None;
                    return Err(self.broken());
                }
                Outcome::Done(_) if !breaks && next.generation != state.generation => {
                    *arrived = None;
                    return Ok(BarrierWaitResult { generation: state.generation, leader: true });
                }
                Outcome::Done(now) => seen = now,
                Outcome::Conflict(_) => {
                    *arrived = before;
                    conflicts += 1;
                    if conflicts >= MAX_CONFLICTS {
                        let why = format!(
                            "other parties changed it first, {conflicts} times in a row: try later"
                        );
                        return Err(self.error(ErrorKind::Busy, why));
                    }
                    tokio::time::sleep(backoff.next(SwapId::random().get())).await;
                    seen = self.slot.read().await?;
                }
            }
        }
    }

    /// The members that have no lease any more.
    async fn dead(&self, state: &State) -> Result<Vec<OwnerId>> {
        if state.members.is_empty() {
            return Ok(Vec::new());
        }
        let holders = self.slot.holders(self.lock).await?;
        let lives = |owner: OwnerId| {
            let owner = owner.to_string();
            holders.iter().any(|holder| holder.owner == owner)
        };
        let owners = state.members.iter().map(|member| member.owner);
        Ok(owners.filter(|owner| !lives(*owner)).collect())
    }

    fn state(&self, seen: &Seen) -> Result<State> {
        let Some(bytes) = seen.value() else { return Ok(State::default()) };
        State::read(bytes).ok_or_else(|| self.slot.damaged("the stored value"))
    }

    fn broken(&self) -> Error {
        let why = "a party died or left: undo or repeat this phase, and wait again";
        self.error(ErrorKind::Broken, why.into())
    }

    fn other_number(&self, parties: u32) -> Error {
        let why = format!(
            "it is used with {parties} parties, not {}: use one number everywhere, or another name",
            self.parties
        );
        self.error(ErrorKind::Invalid, why)
    }

    fn error(&self, kind: ErrorKind, why: String) -> Error {
        Error::new(kind, WAIT, why).about(&self.slot.key.name)
    }
}

/// What is stored: a line with the generation, the history and the number of parties, and a line for each
/// member: its owner id, and whether it has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    generation: u64,
    /// Bit `n` is set if the generation `n + 1` before this one was broken.
    broken: u64,
    parties: u32,
    members: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    owner: OwnerId,
    arrived: bool,
}

impl State {
    /// Whether all parties passed an earlier generation. A generation that is no longer remembered counts
    /// as broken.
    fn is_passed(&self, generation: u64) -> bool {
        let age = self.generation.checked_sub(generation).and_then(|age| age.checked_sub(1));
        age.is_some_and(|age| age < 64 && self.broken >> age & 1 == 0)
    }

    fn is_member(&self, owner: OwnerId) -> bool {
        self.members.iter().any(|member| member.owner == owner)
    }

    fn has_arrived(&self, owner: OwnerId) -> bool {
        self.members.iter().any(|member| member.owner == owner && member.arrived)
    }

    /// The state after this party has arrived: the next generation, if it is the last one.
    fn with(&self, owner: OwnerId, parties: u32) -> Self {
        let mut members = self.members.clone();
        members.retain(|member| member.owner != owner);
        members.push(Member { owner, arrived: true });
        let next = Self { parties, members, ..*self };
        let arrived = next.members.iter().filter(|member| member.arrived).count();
        if arrived >= parties as usize { next.ended(false) } else { next }
    }

    /// The state after these members have died, which breaks the generation; `None` if there are none.
    fn without(&self, dead: &[OwnerId]) -> Option<Self> {
        let mut next = self.clone();
        next.members.retain(|member| !dead.contains(&member.owner));
        (!dead.is_empty()).then(|| next.ended(true))
    }

    fn ended(mut self, broken: bool) -> Self {
        self.generation += 1;
        self.broken = self.broken << 1 | u64::from(broken);
        self.members.iter_mut().for_each(|member| member.arrived = false);
        self
    }

    fn write(&self) -> Vec<u8> {
        let mut text = format!("{} {} {}", self.generation, self.broken, self.parties);
        for Member { owner, arrived } in &self.members {
            text += &format!("\n{owner} {}", u8::from(*arrived));
        }
        text.into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let head: Vec<&str> = lines.next()?.split(' ').collect();
        let [generation, broken, parties] = head[..] else { return None };
        let members = lines.map(|line| {
            let (owner, arrived) = line.split_once(' ')?;
            let arrived = match arrived {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            Some(Member { owner: owner.parse().ok()?, arrived })
        });
        Some(Self {
            generation: generation.parse().ok()?,
            broken: broken.parse().ok()?,
            parties: parties.parse().ok()?,
            members: members.collect::<Option<_>>()?,
        })
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parties = &self.parties;
        f.debug_struct("Barrier").field("name", self.name()).field("parties", parties).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners<const N: usize>() -> [OwnerId; N] {
        std::array::from_fn(|_| OwnerId::random())
    }

    #[test]
    fn a_generation_ends_when_the_last_party_has_arrived() {
        let [a, b, c] = owners();
        let two = State::default().with(a, 3).with(b, 3).with(a, 3);
        assert_eq!((two.generation, two.members.len()), (0, 2), "arriving twice counts once");
        let three = two.with(c, 3);
        assert_eq!((three.generation, three.is_passed(0)), (1, true));
        assert!([a, b, c].iter().all(|it| three.is_member(*it) && !three.has_arrived(*it)));
        assert!(!three.is_passed(1), "it has only begun");
    }

    #[test]
    fn a_broken_generation_is_remembered_for_the_parties_that_waited_in_it() {
        let [a, b] = owners();
        let waiting = State::default().with(a, 2).with(b, 2).with(a, 2);
        assert_eq!(waiting.without(&[]), None);
        let broken = waiting.without(&[b]).unwrap();
        assert_eq!((broken.generation, broken.is_passed(0), broken.is_passed(1)), (2, true, false));
        assert!(broken.is_member(a) && !broken.is_member(b) && !broken.has_arrived(a));
        let [c] = owners();
        let later = broken.with(c, 2).with(a, 2);
        assert!(!later.is_passed(1) && later.is_passed(2));
        let much_later = (0..70).fold(later, |state, _| state.ended(false));
        assert!(!much_later.is_passed(3), "what is forgotten counts as broken");
    }

    #[test]
    fn a_state_is_read_back_and_other_text_is_not() {
        let [a, b] = owners();
        for state in [State::default(), State::default().with(a, 3).with(b, 3)] {
            assert_eq!(State::read(&state.write()), Some(state));
        }
        for bad in [&b""[..], b"1 2", b"1 2 x", b"1 2 3\n", b"1 2 3\nab 1", &[0xff]] {
            assert_eq!(State::read(bad), None, "{bad:?}");
        }
        let odd = [&b"1 2 3\n"[..], a.to_string().as_bytes(), b" 2"].concat();
        assert_eq!(State::read(&odd), None);
    }
}
