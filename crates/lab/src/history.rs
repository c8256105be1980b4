//! What happened in an experiment: which client believed that it held a lock, and when; and what reached the
//! resource.
//!
//! All stamps are nanoseconds of `CLOCK_BOOTTIME`, which all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub type Stamp = u64;

/// The present moment.
pub fn now() -> Stamp {
    let time = clock_gettime(ClockId::Boottime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// One successful acquire, as its client saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// A name that no other grant of the history has: the client's, and a number.
    pub id: String,
    /// The client.
    pub client: String,
    /// The lock.
    pub lock: String,
    /// When the acquire was invoked.
    pub invoked: Stamp,
    /// When it returned.
    pub held: Stamp,
    /// The fencing token.
    pub token: Option<u64>,
    /// Until when the client believed that it held the lock without a further renewal, if its algorithm has such a
    /// deadline.
    pub deadline: Option<Stamp>,
    /// When the release was invoked.
    pub released: Option<Stamp>,
    /// When the client learned that the lock was lost.
    pub lost: Option<Stamp>,
}

/// What a client does at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Reads the value that a later write depends on.
    Read,
    /// Writes.
    Write,
}

/// Something that reached the resource, in the order of its arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// When it arrived.
    pub at: Stamp,
    /// The [`id`](Grant::id) of the grant under which it was sent.
    pub grant: String,
    /// The lock that protects the resource.
    pub lock: String,
    /// Read or write.
    pub kind: Kind,
    /// The token that it carried.
    pub token: Option<u64>,
    /// Whether the fenced resource accepted it. Its unfenced twin accepts everything.
    pub accepted: bool,
}

/// Something that had to happen within a bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// What.
    pub what: String,
    /// When it was clear whether it happened.
    pub at: Stamp,
    /// Whether it happened.
    pub met: bool,
}

/// How much work one release made for the waiters of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wakeups {
    /// Claims that waited.
    pub waiters: u64,
    /// Requests that the release caused, its own included.
    pub requests: u64,
}

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When.
    pub at: Stamp,
    /// What.
    pub what: String,
}

/// What the servers said of the lock, until they said something else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// When they were asked.
    pub at: Stamp,
    /// What they said.
    pub state: Stored,
}

/// The state of a lock on its servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stored {
    /// No client holds it.
    Free,
    /// This client holds it. The name is empty if the servers do not know it.
    Held(String),
    /// The servers did not answer.
    Silent,
}

/// What happened in an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// All successful acquires.
    pub grants: Vec<Grant>,
    /// What reached the resource.
    pub accesses: Vec<Access>,
    /// The faults that were injected.
    pub faults: Vec<Fault>,
    /// What had to happen.
    pub expectations: Vec<Expectation>,
    /// What the servers said, in order. Empty if they were not asked.
    pub truth: Vec<Truth>,
    /// What the hand-off cost, where that was measured.
    pub wakeups: Option<Wakeups>,
    /// When the experiment began.
    pub begin: Stamp,
    /// When it ended.
    pub end: Stamp,
}
