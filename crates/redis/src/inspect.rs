//! Inspection: the state of a lock, page by page, and the names of the locks on a server.

use std::collections::HashSet;
use std::time::Duration;

use tenure_core::{
    AuditRecord, Error, ErrorKind, Holder, LockName, LockState, Mode, OwnerId, Result, Token,
    Waiter,
};

use crate::fault::accepted;
use crate::keys::Keyring;
use crate::link::Link;
use crate::wire::{Arg, Command, Value, cmd};

/// The command that reads the newest records of what was done to a lock's holders.
pub(crate) fn read_audit(key: &str) -> Command {
    cmd("LRANGE").arg(key).number(0u32).number(AuditRecord::KEPT as u64 - 1)
}

/// The records in its reply. Lines that tenure did not write are left out.
pub(crate) fn audit_records(reply: Value) -> Result<Vec<AuditRecord>> {
    const READ: &str = "read the records of";
    let lines = accepted(READ, reply)?.texts().ok_or_else(|| {
        let why = "the stored data cannot be read: was it written by another version?";
        Error::new(ErrorKind::Damaged, READ, why)
    })?;
    Ok(lines.iter().filter_map(|line| AuditRecord::from_line(line)).collect())
}

/// The replies of `inspect.lua`, put together: no call shows more than a page, so that none blocks the
/// server for long.
///
/// Up to 128 holders and 128 waiters are one page, and so a snapshot. A larger lock changes while it is
/// read: a claim that held, or waited, from the first page to the last is shown once, waiters in their
/// order; a claim that came, left or was admitted meanwhile may be missing.
pub(crate) struct Pages {
    state: LockState,
    shown: HashSet<String>,
    /// The exclusive holder, if the lock has no pool.
    alone: Option<Holder>,
    /// Where the next page begins, in the pool and in the queue.
    next: [String; 2],
    count: usize,
}

/// Half a million holders and as many waiters: beyond that, the rest is not shown.
const MOST: usize = 4096;

impl Pages {
    pub(crate) fn new(name: &LockName) -> Self {
        let next = ["0", "-inf"].map(str::to_owned);
        let state = LockState::free(name.clone());
        Self { state, shown: HashSet::new(), alone: None, next, count: 0 }
    }

    /// The holders only.
    pub(crate) fn of_holders(name: &LockName) -> Self {
        let next = ["0", "-"].map(str::to_owned);
        Self { next, ..Self::new(name) }
    }

    /// The arguments for the next page, if there is one.
    pub(crate) fn next(&self) -> Option<[Arg<'_>; 2]> {
        let more = self.count < MOST && self.next.iter().any(|at| at != "-");
        more.then(|| [(&self.next[0]).into(), (&self.next[1]).into()])
    }

    /// Adds a page.
    pub(crate) fn add(&mut self, reply: Value) -> Result<()> {
        self.parse(reply).ok_or_else(|| {
            let why = "the stored data cannot be read: was it written by another version?";
            Error::new(ErrorKind::Damaged, "inspect", why).about(&self.state.name)
        })
    }

    pub(crate) fn finish(self) -> LockState {
        let Self { mut state, shown, alone, .. } = self;
        if state.holders.is_empty() {
            state.holders.extend(alone);
        }
        // Admitted after it was seen in the queue.
        state.waiters.retain(|waiter| !shown.contains(&waiter.owner));
        state
    }

    fn parse(&mut self, reply: Value) -> Option<()> {
        let [now, value, left, pool, line, in_pool, in_line] =
            <[Value; 7]>::try_from(reply.array()?).ok()?;
        let now: u64 = now.text()?.parse().ok()?;
        if self.count == 0 {
            self.alone = first(now, value, left)?;
        }
        let pool = pool.texts()?;
        for holder in pool.chunks_exact(3).filter_map(|holder| pooled(now, holder)) {
            if self.shown.insert(holder.owner.clone()) {
                self.state.holders.push(holder);
            }
        }
        let line = line.texts()?;
        self.state.waiters.extend(line.chunks_exact(2).filter_map(|waiter| waiting(now, waiter)));
        self.next = [in_pool.text()?, in_line.text()?];
        self.count += 1;
        Some(())
    }
}

/// What the holder's key says, if there is one.
#[expect(clippy::option_option, reason = "no holder is not the same as nonsense")]
fn first(now: u64, value: Value, left: Value) -> Option<Option<Holder>> {
    let left = match left {
        Value::Integer(left) => u64::try_from(left).ok().map(Duration::from_millis),
        _ => return None,
    };
    match value {
        Value::Null => Some(None),
        Value::Text(value) => Some(Some(alone(now, &value, left))),
        _ => None,
    }
}

/// `<owner><mark><token> <since> <pid> <host> <label>`, or whatever another client wrote.
fn alone(now: u64, value: &[u8], expires_in: Option<Duration>) -> Holder {
    let text = String::from_utf8_lossy(value);
    let words: Vec<&str> = text.splitn(2, [' ', '!', 's']).collect();
    let words: Vec<&str> = match words[..] {
        [owner, rest] => std::iter::once(owner).chain(rest.splitn(5, ' ')).collect(),
        _ => Vec::new(),
    };
    let ours = words.len() == 6 && words[0].parse::<OwnerId>().is_ok();
    let word = |place: usize| ours.then(|| words[place]);
    let owner = word(0).map_or_else(|| spell(value), str::to_owned);
    let reads = ours && value.get(words[0].len()) == Some(&b's');
    let mode = if reads { Mode::Shared } else { Mode::Exclusive };
    let mut holder = Holder::new(owner, mode);
    holder.token = word(1).and_then(|token| token.parse().ok()).map(Token::new);
    holder.host = word(4).map(str::to_owned);
    holder.pid = word(3).and_then(|pid| pid.parse().ok());
    holder.label = word(5).unwrap_or_default().to_owned();
    holder.age = word(2).and_then(|since| match since {
        // The token begins as the server's time.
        "-" => age(now, &(word(1)?.parse::<u64>().ok()? / 1024).to_string()),
        since => age(now, since),
    });
    holder.expires_in = expires_in;
    holder
}

/// Owner, end, `<token> <since> <kind> <take> <of> <ttl> <pid> <host> <label>`.
fn pooled(now: u64, holder: &[String]) -> Option<Holder> {
    let ends: f64 = holder[1].parse().ok()?;
    let words: Vec<&str> = holder[2].splitn(9, ' ').collect();
    let [token, since, kind, take, of, _, pid, host, label] = words[..] else { return None };
    let mut holder = Holder::new(holder[0].clone(), mode(kind, take, of)?);
    holder.token = token.parse().ok().map(Token::new);
    holder.host = Some(host.to_owned());
    holder.pid = pid.parse().ok();
    holder.label = label.to_owned();
    holder.age = age(now, since);
    holder.expires_in = Some(Duration::from_millis((ends as u64).saturating_sub(now)));
    Some(holder)
}

/// Owner, `<ends> <arrived> <kind> <take> <of> <ttl> <inbox> <pid> <host> <label>`.
fn waiting(now: u64, waiter: &[String]) -> Option<Waiter> {
    let words: Vec<&str> = waiter[1].splitn(10, ' ').collect();
    let [_, arrived, kind, take, of, _, _, pid, host, label] = words[..] else { return None };
    let mut waiter = Waiter::new(waiter[0].clone(), mode(kind, take, of)?);
    waiter.host = Some(host.to_owned());
    waiter.pid = pid.parse().ok();
    waiter.label = label.to_owned();
    waiter.age = age(now, arrived)?;
    Some(waiter)
}

fn mode(kind: &str, take: &str, of: &str) -> Option<Mode> {
    match kind {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "p" => Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? }),
        _ => None,
    }
}

pub(crate) fn age(now: u64, since: &str) -> Option<Duration> {
    // Both are truncated to whole milliseconds: the difference may be one too many.
    let since: u64 = since.parse().ok()?;
    Some(Duration::from_millis(now.saturating_sub(since).saturating_sub(1)))
}

/// A holder's value as text: as it is, or in hexadecimal digits where it is no text that can be
/// shown and typed.
fn spell(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let digits = value.iter().map(|byte| format!("{byte:02x}"));
            std::iter::once("0x".to_owned()).chain(digits).collect()
        }
    }
}

/// The value that [`spell`] gave in digits.
pub(crate) fn unspell(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    if !digits.is_ascii() || digits.len() % 2 == 1 {
        return None;
    }
    let byte = |place| u8::from_str_radix(digits.get(place..place + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

const LIST: &str = "list locks";

/// Adds the locks on this server whose name begins with `prefix`. A scan does not block the server.
pub(crate) async fn scan(
    link: &Link,
    keyring: &Keyring,
    prefix: &str,
    names: &mut Vec<LockName>,
) -> Result<()> {
    // A key of another type under a lock's name is not a lock.
    for (pattern, kind) in keyring.patterns(prefix).into_iter().zip(["string", "zset"]) {
        scan_keys(link, &pattern, kind, |key| names.extend(keyring.lock_of(key))).await?;
    }
    Ok(())
}

/// Calls `found` for each key of this type that matches. A key may be found twice.
pub(crate) async fn scan_keys(
    link: &Link,
    pattern: &str,
    kind: &str,
    mut found: impl FnMut(&str),
) -> Result<()> {
    let mut cursor = "0".to_owned();
    loop {
        let scan = cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern);
        let scan = scan.arg("COUNT").arg("1000").arg("TYPE").arg(kind);
        let page = link.send(LIST, &scan).await?;
        let (next, keys) = scanned(page).ok_or_else(|| {
            let why = "the reply is unexpected: is this a Redis server?";
            Error::new(ErrorKind::Unreachable, LIST, why)
        })?;
        // A key that is no text is not a lock of ours.
        let texts = keys.iter().filter_map(|key| match key {
            Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        });
        texts.for_each(&mut found);
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

fn scanned(page: Value) -> Option<(String, Vec<Value>)> {
    let [next, keys] = <[Value; 2]>::try_from(page.array()?).ok()?;
    Some((next.text()?, keys.array()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_text_is_spelled_in_digits_and_read_back() {
        assert_eq!(spell(b"some token"), "some token");
        for value in [&b"\xff\x00\x80"[..], b"a\nb", b""] {
            assert_eq!(unspell(&spell(value)).as_deref(), Some(value));
        }
        for other in ["abc", "0xabc", "0xgg", "0x\u{e4}"] {
            assert_eq!(unspell(other), None, "{other}");
        }
    }
}
