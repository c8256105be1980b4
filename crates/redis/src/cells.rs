//! Values beside locks: one string each, changed by a script.
//!
//! A cell `orders` with the prefix `tenure:` is the key `tenure:{tenure:orders}:cell`: 16 hexadecimal
//! digits that name the swap which wrote it, and the value. Expiry is the server's.
//!
//! Other values under one name are other keys of the same slot. A script is one round trip, also over a
//! connection that many calls share. With [`CellUpdates::Watch`](crate::CellUpdates), swaps are transactions
//! instead (`transactions.rs`), on the same keys.

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Add, Added, CellClock, CellKey, Cells, Expiry, Rule, Stored, Swap, SwapId, Swapped, Take,
    Taken, Version,
};
use tenure_core::{Error, ErrorKind, Result};

use crate::fault::accepted;
use crate::scripts::{Call, Script};
use crate::store::{RedisStore, millis};
use crate::transactions::Transactions;
use crate::wire::{Arg, Value, cmd};

/// The longest value. Redis would keep 512 MiB, but serves no other client while it copies one.
const MAX_BYTES: usize = 1 << 20;

/// How long a wait for a change sleeps between two looks: it grows from the first to the second.
const POLL: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// The digits of a version in front of a value.
const VERSION_DIGITS: usize = 16;

const READ: &str = "read the cell";
pub(crate) const WRITE: &str = "write the cell";
const ADD: &str = "change the counter";
const TAKE: &str = "ask the rate limiter";
const WAIT: &str = "wait for a change of the cell";

#[async_trait]
impl Cells for RedisStore {
    fn max_value_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn clock(&self) -> CellClock {
        CellClock::Shared
    }

    async fn time(&self) -> Result<Duration> {
        const TIME: &str = "read the server's clock";
        let reply = self.servers.any().await?.send(TIME, &cmd("TIME")).await?.texts();
        let parts = reply.as_deref().and_then(|parts| {
            let [seconds, micros] = parts else { return None };
            Some((seconds.parse().ok()?, micros.parse().ok()?))
        });
        let (seconds, micros) = parts.ok_or_else(|| nonsense(TIME))?;
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        self.get(READ, key).await
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        key.check_size(swap.value.len(), MAX_BYTES)?;
        if let Some(transactions) = &self.transactions {
            return self.swap_in(transactions, key, swap).await;
        }
        let expected = swap.expected.map(|version| digits(version.get()));
        let (expected, new) = (expected.unwrap_or_default(), digits(swap.id.get()));
        let expiry = expiry_argument(swap.expiry)?;
        let arguments =
            [(&expected).into(), (&new).into(), (&swap.value).into(), (&*expiry).into()];
        let reply = self.run_on_cell(WRITE, key, &self.scripts.swap, &arguments).await?;
        match reply {
            Value::Integer(1) => Ok(Swapped::Done(version(swap.id))),
            other => Ok(Swapped::Conflict(stored(WRITE, other)?)),
        }
    }

    async fn add(&self, key: &CellKey, add: &Add) -> Result<Option<Added>> {
        let (new, id) = (digits(add.id.get()), add.id.get().to_be_bytes());
        let [delta, low, high] = [add.delta, add.range.0, add.range.1].map(|n| n.to_string());
        let ttl = add.ttl.map(|ttl| expiry_millis(ttl).to_string()).unwrap_or_default();
        let repeated = if add.repeated { "repeated" } else { "" };
        let after = add.after.map(|id| id.get().to_be_bytes());
        let after = after.as_ref().map_or(Arg::from(""), Arg::from);
        let arguments = [&new, &delta, &low, &high, &ttl].map(Arg::from);
        let [new, delta, low, high, ttl] = arguments;
        let arguments = [new, (&id).into(), delta, low, high, ttl, repeated.into(), after];
        let reply = self.run_on_cell(ADD, key, &self.scripts.add, &arguments).await?;
        let words = reply.text().ok_or_else(|| nonsense(ADD))?;
        let number = |digits: &str| digits.parse().map_err(|_| nonsense(ADD));
        match words.split_once(' ') {
            Some(("done", value)) => Ok(Some(Added::Done(number(value)?))),
            Some(("range", value)) => Ok(Some(Added::OutOfRange(number(value)?))),
            _ if words == "forgotten" => Ok(Some(Added::Forgotten)),
            _ if words == "damaged" => Err(damaged(ADD).about(&key.name)),
            _ => Err(nonsense(ADD)),
        }
    }

    async fn take(&self, key: &CellKey, take: &Take) -> Result<Option<Taken>> {
        let (rule, numbers) = match take.rule {
            Rule::FixedWindow { period, limit, cost } => ("window", [period, limit, cost]),
            Rule::Gcra { increment, bucket } => ("gcra", [increment, bucket, 0]),
            // A rule that this crate does not know is kept by swaps.
            _ => return Ok(None),
        };
        let [one, two, cost] = numbers.map(Arg::from);
        let peek = if take.peek { "peek" } else { "" };
        let arguments = [rule.into(), one, two, cost, peek.into()];
        let reply = self.run_on_cell(TAKE, key, &self.scripts.limit, &arguments).await?;
        let words = reply.text().ok_or_else(|| nonsense(TAKE))?;
        if words == "damaged" {
            return Err(damaged(TAKE).about(&key.name));
        }
        let numbers: Option<Vec<u64>> = words.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([allowed, first, second, now]) => {
                Ok(Some(Taken::new(*allowed == 1, (*first, *second), *now)))
            }
            _ => Err(nonsense(TAKE)),
        }
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let [mut pause, longest] = POLL;
        while self.get(WAIT, key).await?.map(|stored| stored.version) == seen {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        Ok(())
    }
}

impl RedisStore {
    async fn swap_in(
        &self,
        transactions: &Transactions,
        key: &CellKey,
        swap: &Swap,
    ) -> Result<Swapped> {
        let (name, _) = self.keyring.cell(key);
        let swapped = transactions.swap(&name, swap, self.wait.as_ref()).await;
        let (swapped, acknowledged) = swapped.map_err(|error| error.about(&key.name))?;
        self.check_written(WRITE, key, acknowledged)?;
        Ok(swapped)
    }

    async fn get(&self, operation: &'static str, key: &CellKey) -> Result<Option<Stored>> {
        let (name, slot) = self.keyring.cell(key);
        let reply = self.servers.call(operation, slot, &cmd("GET").arg(&name), None).await;
        let reply = reply.and_then(|(reply, _)| accepted(operation, reply));
        stored(operation, reply.map_err(|error| error.about(&key.name))?)
    }

    /// Runs a script on a cell. With `replicas=`, so many must have its effect.
    async fn run_on_cell(
        &self,
        operation: &'static str,
        key: &CellKey,
        script: &Script,
        arguments: &[Arg<'_>],
    ) -> Result<Value> {
        let (name, slot) = self.keyring.cell(key);
        let call = Call { operation, slot, keys: &[&name], arguments, wait: self.wait.as_ref() };
        let ran = script.run(&self.servers, call).await;
        let (reply, acknowledged) = ran.map_err(|error| error.about(&key.name))?;
        self.check_written(operation, key, acknowledged)?;
        Ok(reply)
    }

    fn check_written(
        &self,
        operation: &'static str,
        key: &CellKey,
        acknowledged: Option<Value>,
    ) -> Result<()> {
        let unknown = |error: Error| error.with_unknown_effect().about(&key.name);
        self.check_replicas(operation, acknowledged).map_err(unknown)
    }
}

/// How a swap names its expiry: `never`, `keep`, or milliseconds.
pub(crate) fn expiry_argument(expiry: Expiry) -> Result<Cow<'static, str>> {
    match expiry {
        Expiry::Never => Ok("never".into()),
        Expiry::Keep => Ok("keep".into()),
        Expiry::After(ttl) => Ok(expiry_millis(ttl).to_string().into()),
        _ => Err(unknown_expiry()),
    }
}

/// The version of what this swap writes.
pub(crate) const fn version(id: SwapId) -> Version {
    Version::new(id.get())
}

pub(crate) fn digits(number: u64) -> String {
    format!("{number:016x}")
}

/// Rounded up: a cell does not expire early. Redis takes no time of zero.
fn expiry_millis(ttl: Duration) -> u64 {
    // Redis adds it to the present time, and both must fit 63 bits.
    const LONGEST: u64 = 1 << 53;
    millis(ttl.saturating_add(Duration::from_nanos(999_999))).clamp(1, LONGEST)
}

/// The cell that a reply shows.
pub(crate) fn stored(operation: &'static str, reply: Value) -> Result<Option<Stored>> {
    let bytes = match reply {
        Value::Null => return Ok(None),
        Value::Text(bytes) => bytes,
        _ => return Err(nonsense(operation)),
    };
    let split = bytes.split_at_checked(VERSION_DIGITS).and_then(|(digits, value)| {
        let digits = std::str::from_utf8(digits).ok()?;
        let number = u64::from_str_radix(digits, 16).ok()?;
        Some(Stored::new(value.to_vec(), Version::new(number)))
    });
    split.map(Some).ok_or_else(|| damaged(operation))
}

fn damaged(operation: &'static str) -> Error {
    let why = "a key that tenure did not write has the name of the cell: rename it";
    Error::new(ErrorKind::Damaged, operation, why)
}

pub(crate) fn nonsense(operation: &'static str) -> Error {
    let why = "the reply makes no sense: is this a Redis server?";
    Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect()
}

fn unknown_expiry() -> Error {
    let why = "this store does not know this kind of expiry: update it";
    Error::new(ErrorKind::Unsupported, WRITE, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_rounded_up_and_fits() {
        let millis = |nanos| expiry_millis(Duration::from_nanos(nanos));
        assert_eq!([millis(0), millis(1), millis(1_000_000), millis(1_000_001)], [1, 1, 1, 2]);
        assert_eq!(expiry_millis(Duration::from_secs(u64::MAX / 2)), 1 << 53);
    }

    #[test]
    fn a_key_that_tenure_did_not_write_is_damaged() {
        for bad in [&b""[..], b"hello", b"xxxxxxxxxxxxxxxxvalue", &[0xff; 30]] {
            let error = stored(READ, Value::Text(bad.to_vec())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{bad:?}");
        }
        let read = stored(READ, Value::Text(b"00000000000000ffhi".to_vec())).unwrap();
        assert_eq!(read, Some(Stored::new(b"hi".to_vec(), Version::new(255))));
    }
}
