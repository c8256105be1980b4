//! Swaps by `WATCH`, `MULTI` and `EXEC`, instead of a script.
//!
//! What a connection watches is its own, so a transaction needs a connection for itself from `WATCH` to
//! `EXEC`. A store keeps a few of them. A call that finds all of them busy waits for one, at the most for as
//! long as a call may take.

use std::borrow::Cow;

use parking_lot::Mutex;
use tenure_core::store::{Stored, Swap, Swapped};
use tenure_core::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cells::{WRITE, digits, expiry_argument, nonsense, stored, version};
use crate::fault::{accepted, fault, kind_of, lost};
use crate::link::Link;
use crate::servers::Servers;
use crate::wire::{Command, Connection, Lost, Value, cmd};

/// How many connections a store has for transactions.
pub(crate) const MAX_CONNECTIONS: usize = 4;

/// The connections for transactions of a store.
pub(crate) struct Transactions {
    servers: Servers,
    turns: Semaphore,
    /// Links that no transaction uses. They are kept: each dials once at a time, also if the calls that need
    /// it are dropped, and follows the master.
    idle: Mutex<Vec<Link>>,
}

/// A link that one transaction uses.
struct Turn<'a> {
    transactions: &'a Transactions,
    link: Link,
    // Returned last.
    _permit: SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.transactions.idle.lock().push(self.link.clone());
    }
}

impl Transactions {
    pub(crate) fn new(servers: Servers) -> Self {
        Self { servers, turns: Semaphore::new(MAX_CONNECTIONS), idle: Mutex::default() }
    }

    /// Replaces the value of a key if it has the expected version: two round trips, or a third one after
    /// a conflict between them. Returns the reply to `wait`, too, which is sent behind `EXEC`.
    pub(crate) async fn swap(
        &self,
        key: &str,
        swap: &Swap,
        wait: Option<&Command>,
    ) -> Result<(Swapped, Option<Value>)> {
        let turn = self.turn().await?;
        let connection = turn.link.connection().await?;
        swap_on(&connection, key, swap, wait).await
    }

    async fn turn(&self) -> Result<Turn<'_>> {
        let closed = || Error::new(ErrorKind::Internal, WRITE, "the store is closed: report it");
        let permit = self.turns.acquire().await.map_err(|_| closed())?;
        let idle = self.idle.lock().pop();
        let link = match (idle, &self.servers) {
            (Some(link), _) => link,
            (None, Servers::One(link)) => link.with_own_connections()?,
            // `RedisConfig::check` refuses it.
            (None, Servers::Cluster(_)) => {
                let why = "a Cluster has no connection for transactions: use cells=script";
                return Err(Error::new(ErrorKind::Unsupported, WRITE, why));
            }
        };
        Ok(Turn { transactions: self, link, _permit: permit })
    }
}

/// All on one connection: `EXEC` on another one would not know what was watched.
async fn swap_on(
    connection: &Connection,
    key: &str,
    swap: &Swap,
    wait: Option<&Command>,
) -> Result<(Swapped, Option<Value>)> {
    let (multi, exec) = (cmd("MULTI"), cmd("EXEC"));
    let read = cmd("GET").arg(key);
    // An earlier transaction that found another version still watches its key: an empty one ends that. It also
    // shows that this user may call `MULTI`; otherwise the write below would be carried out at once.
    let begin = [&multi, &exec, &cmd("WATCH").arg(key), &read];
    let [begun, ended, watched, reply] =
        sent(connection.call_all(begin).await)?.map_err(|loss| not_read(&loss))?;
    for reply in [begun, ended, watched] {
        if let Err(error) = accepted(WRITE, reply) {
            // The connection may go on queueing commands: its user may lack the right to `EXEC`.
            connection.close();
            return Err(error);
        }
    }
    let current = stored(WRITE, accepted(WRITE, reply)?)?;
    if current.as_ref().map(|stored| stored.version) != swap.expected {
        return Ok((Swapped::Conflict(current), None));
    }
    let value = [digits(swap.id.get()).as_bytes(), &swap.value].concat();
    let set = cmd("SET").arg(key).arg(value);
    let set = match expiry_argument(swap.expiry)? {
        Cow::Borrowed("never") => set,
        Cow::Borrowed(_) => set.arg("KEEPTTL"),
        Cow::Owned(millis) => set.arg("PX").arg(millis),
    };
    let (queued, executed, acknowledged) = match wait {
        None => {
            let replies = sent(connection.call_all([&multi, &set, &exec]).await)?;
            let [_, queued, executed] = replies.map_err(|loss| lost(WRITE, &loss))?;
            (queued, executed, None)
        }
        Some(wait) => {
            let replies = sent(connection.call_all([&multi, &set, &exec, wait]).await)?;
            let [_, queued, executed, acknowledged] = replies.map_err(|loss| lost(WRITE, &loss))?;
            (queued, executed, Some(acknowledged))
        }
    };
    // Says why `EXEC` did nothing.
    accepted(WRITE, queued)?;
    match executed {
        Value::Null => Ok((Swapped::Conflict(read_again(connection, &read).await?), None)),
        Value::Refusal(refusal) => Err(fault(WRITE, &refusal)),
        executed => match executed.array().as_deref() {
            Some([Value::Refusal(refusal)]) => Err(fault(WRITE, refusal)),
            Some([_]) => Ok((Swapped::Done(version(swap.id)), acknowledged)),
            _ => Err(nonsense(WRITE)),
        },
    }
}

/// The key was changed between `WATCH` and `EXEC`.
async fn read_again(connection: &Connection, read: &Command) -> Result<Option<Stored>> {
    let [reply] = sent(connection.call_all([read]).await)?.map_err(|loss| not_read(&loss))?;
    stored(WRITE, accepted(WRITE, reply)?)
}

/// No reply came to commands that change nothing.
fn not_read(loss: &Lost) -> Error {
    Error::new(kind_of(loss), WRITE, loss.to_string())
}

/// What came of commands, if the connection took them.
fn sent<T>(replies: Option<Result<T, Lost>>) -> Result<Result<T, Lost>> {
    let why = "the connection for transactions has just ended: try again";
    replies.ok_or_else(|| Error::new(ErrorKind::Unreachable, WRITE, why))
}
