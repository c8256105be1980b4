//! Inspection: the holders of a lock, page by page, and the names of the locks on a server.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{Error, ErrorKind, Holder, LockName, LockState, Mode, Result, Token};

use super::names::{is_holder, owner_of};
use crate::inspect::{age, scan_keys};
use crate::keys::glob;
use crate::link::Link;
use crate::wire::{Value, cmd};

/// The replies of `inspect.lua`, put together. A lock with many readers is assembled from pages: a reader
/// that holds from the first page to the last is shown once.
pub(super) struct Pages {
    state: LockState,
    shown: HashSet<String>,
    fencing: bool,
    next: Option<String>,
    count: usize,
}

/// Half a million readers: beyond that, the rest is not shown.
const MOST: usize = 4096;

impl Pages {
    pub(super) fn new(name: &LockName, fencing: bool) -> Self {
        let state = LockState::free(name.clone());
        Self { state, shown: HashSet::new(), fencing, next: Some("0".into()), count: 0 }
    }

    /// The cursor of the next page, if there is one.
    pub(super) fn next(&self) -> Option<String> {
        self.next.clone().filter(|_| self.count < MOST)
    }

    /// Adds a page. Returns whether something else than a lock has the name.
    pub(super) fn add(&mut self, reply: Value) -> Result<bool> {
        self.count += 1;
        self.parse(reply).ok_or_else(|| {
            let why = "the reply cannot be read: is this a Redis server?";
            Error::new(ErrorKind::Damaged, "inspect", why).about(&self.state.name)
        })
    }

    pub(super) fn finish(self) -> LockState {
        self.state
    }

    fn parse(&mut self, reply: Value) -> Option<bool> {
        let [now, shape, left, note, next, holders] =
            <[Value; 6]>::try_from(reply.array()?).ok()?;
        let (now, shape) = (now.text()?.parse().ok()?, shape.text()?);
        let Value::Integer(left) = left else { return None };
        let lock = Lock { now, shape, left, note: note.text().unwrap_or_default() };
        self.next = Some(next.text()?).filter(|cursor| cursor != "0");
        let holders = holders.array()?;
        for fields in holders.chunks_exact(4) {
            let [field, count, left, value] = fields else { return None };
            let Value::Integer(left) = left else { return None };
            let field = field.text()?;
            if self.shown.contains(&field) {
                continue;
            }
            if let Some(mut holder) = lock.holder(&field, &count.text()?, *left, &value.text()?) {
                holder.token = holder.token.filter(|_| self.fencing);
                self.state.holders.push(holder);
            }
            self.shown.insert(field);
        }
        Some(lock.shape == "foreign")
    }
}

/// What a page says of the whole lock.
struct Lock {
    /// The server's time.
    now: u64,
    /// `lock`, `read` or `write`.
    shape: String,
    /// Milliseconds until it ends, or -1.
    left: i64,
    /// What is known of an exclusive holder of ours.
    note: String,
}

impl Lock {
    /// A holder, unless its term has ended.
    fn holder(&self, field: &str, count: &str, left: i64, value: &str) -> Option<Holder> {
        let ours = owner_of(field);
        let is_writer = self.shape == "lock" || field.ends_with(":write") || ours.is_some();
        let (mode, left, note) = match &*self.shape {
            "read" => (Mode::Shared, left, value),
            "write" if !is_writer => (Mode::Shared, left, value),
            _ => (Mode::Exclusive, self.left, &*self.note),
        };
        // A reader without its timer holds no longer, while others keep the lock.
        if mode == Mode::Shared && left <= 0 {
            return None;
        }
        let owner = ours.map_or_else(|| field.to_owned(), |owner| owner.to_string());
        let mut holder = Holder::new(owner, mode);
        holder.expires_in = u64::try_from(left).ok().map(Duration::from_millis);
        if ours.is_none() {
            holder.entered = count.parse().ok();
            holder.label = match count {
                "1" => "Redisson".into(),
                count => format!("Redisson, entered {count} times"),
            };
        } else if let Some(note) = note.strip_prefix(field) {
            // ` <token> <since> <pid> <host> <label>`
            let words: Vec<&str> = note.splitn(6, ' ').collect();
            if let [_, token, since, pid, host, label] = words[..] {
                holder.token = token.parse().ok().map(Token::new);
                holder.age = age(self.now, since);
                holder.pid = pid.parse().ok();
                holder.host = Some(host.to_owned());
                holder.label = label.to_owned();
            }
        }
        Some(holder)
    }
}

/// How many keys are looked into at once.
const AT_ONCE: usize = 64;

/// Adds the locks on this server whose name begins with `wanted`. Hashes that are no locks are left out.
pub(super) async fn list(
    link: &Link,
    prefix: &str,
    wanted: &str,
    found: &mut Vec<LockName>,
) -> Result<()> {
    const LIST: &str = "list locks";
    let pattern = format!("{}*", glob(&format!("{prefix}{wanted}")));
    let mut keys = Vec::new();
    scan_keys(link, &pattern, "hash", |key| {
        // Every other key of a lock has braces in its name, which the name of a lock cannot have.
        if let Some(name) = key.strip_prefix(prefix).and_then(|name| LockName::new(name).ok()) {
            keys.push((key.to_owned(), name));
        }
    })
    .await?;
    for batch in keys.chunks(AT_ONCE) {
        let look = batch.iter().map(async |(key, name)| {
            let fields = link.send(LIST, &cmd("HRANDFIELD").arg(key).arg("4")).await;
            let fields = fields.ok()?.texts()?;
            let is_lock = fields.iter().all(|field| field == "mode" || is_holder(field));
            (is_lock && !fields.is_empty()).then(|| name.clone())
        });
        found.extend(join_all(look).await.into_iter().flatten());
    }
    Ok(())
}
