//! Semaphores: the permits of Redisson's `RPermitExpirableSemaphore`, which have terms, and of its `RSemaphore`,
//! which counts the same free permits and gives its own no terms.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::store::{Claim, Eviction, Released};
use tenure_core::{Error, ErrorKind, Holder, LockName, LockState, Mode, OwnerId, Result, Token};

use super::names::{Channel, Names};
use super::{Asked, RedissonStore};
use crate::inspect::{age, scan_keys};
use crate::keys::glob;
use crate::link::Link;
use crate::scripts::Call;
use crate::store::{millis, origin_text, released, unexpected_reply};
use crate::wire::{Value, cmd};

/// The permits of one claim: the server keeps an entry for each.
const MOST_PERMITS: u32 = 1000;

/// How often a claim is sent while each call removes terms that have ended: enough for half a million.
const MAX_CALLS: usize = 1024;

/// A permit of Redisson without a lease ends in the year 31197.
const ENDLESS: u64 = 1 << 48;

/// Half a million permits: beyond that, the rest is not shown.
const MAX_PAGES: usize = 4096;

impl RedissonStore {
    pub(super) async fn ask_for_permits(
        &self,
        claim: &Claim,
        names: &Names,
        take: u32,
        of: u32,
    ) -> Result<Asked> {
        let refused = |kind, why: &str| Err(Error::new(kind, "acquire", why).about(&claim.name));
        if !claim.mode.is_sound() {
            return refused(
                ErrorKind::Invalid,
                "take at least one permit, and no more than there are",
            );
        }
        if take > MOST_PERMITS {
            let why =
                "Redisson's layout has an entry for each permit, so one claim takes at most 1000";
            return refused(ErrorKind::Unsupported, why);
        }
        let (terms, channel) = (names.terms(), names.channel(Channel::Semaphore));
        let (note, origin) = (self.permit_note(names, claim.owner), origin_text(claim));
        let call = Call {
            operation: "acquire",
            slot: names.slot,
            keys: &[&names.lock, &terms, &channel, &names.token, &note, &names.latch_channel()],
            arguments: &[
                claim.owner.into(),
                millis(claim.ttl).into(),
                u64::from(take).into(),
                u64::from(of).into(),
                (&origin).into(),
                self.fenced().into(),
            ],
            wait: self.base.wait.as_ref(),
        };
        for _ in 0..MAX_CALLS {
            let (reply, acknowledged) =
                self.scripts.permits.take.run(&self.base.servers, call).await?;
            if let Some(asked) = self.answer(claim, names, reply, acknowledged).await? {
                return Ok(asked);
            }
        }
        Ok(Asked::Busy { again: Some(Duration::ZERO), channels: &[Channel::Semaphore] })
    }

    pub(super) async fn renew_permits(
        &self,
        claim: &Claim,
        names: &Names,
        take: u32,
    ) -> Result<(Value, Option<Value>)> {
        let (terms, channel) = (names.terms(), names.channel(Channel::Semaphore));
        let note = self.permit_note(names, claim.owner);
        let keys = [&*names.lock, &terms, &channel, &note];
        let arguments = [claim.owner.into(), millis(claim.ttl).into(), u64::from(take).into()];
        let (slot, wait) = (names.slot, self.base.wait.as_ref());
        let call = Call { operation: "renew", slot, keys: &keys, arguments: &arguments, wait };
        let over = |servers| self.scripts.permits.renew.run(servers, call);
        self.base.over_renewals(names.slot, over).await
    }

    pub(super) async fn release_permits(&self, owner: OwnerId, names: &Names) -> Result<Released> {
        let (terms, channel) = (names.terms(), names.channel(Channel::Semaphore));
        let call = Call {
            operation: "release",
            slot: names.slot,
            keys: &[&names.lock, &terms, &channel, &self.permit_note(names, owner)],
            arguments: &[owner.into()],
            wait: None,
        };
        released("release", &self.scripts.permits.release.run(&self.base.servers, call).await?.0)
    }

    pub(super) async fn evict_permits(
        &self,
        eviction: &Eviction,
        names: &Names,
        record: &str,
    ) -> Result<Released> {
        let (terms, channel) = (names.terms(), names.channel(Channel::Semaphore));
        // Redisson spells its permits as we spell owners.
        let Ok(owner) = eviction.owner.parse::<OwnerId>() else { return Ok(Released::NotHeld) };
        let call = Call {
            operation: "evict",
            slot: names.slot,
            keys: &[
                &names.lock,
                &terms,
                &channel,
                &names.token,
                &self.permit_note(names, owner),
                &names.audit,
            ],
            arguments: &[
                owner.into(),
                owner.as_bytes().into(),
                record.into(),
                self.fenced().into(),
            ],
            wait: None,
        };
        released("evict", &self.scripts.permits.evict.run(&self.base.servers, call).await?.0)
    }

    /// The holders of a semaphore's permits. `None` if the name is that of something else.
    pub(super) async fn inspect_permits(
        &self,
        name: &LockName,
        names: &Names,
    ) -> Result<Option<LockState>> {
        let (terms, channel) = (names.terms(), names.channel(Channel::Semaphore));
        let (notes, mut cursor) = (names.permit_notes(), "0".to_owned());
        let mut holders = Holders::default();
        for _ in 0..MAX_PAGES {
            let call = Call {
                operation: "inspect",
                slot: names.slot,
                keys: &[&names.lock, &terms, &channel],
                arguments: &[(&cursor).into(), (&notes).into()],
                wait: None,
            };
            let (reply, _) = self.scripts.permits.inspect.run(&self.base.servers, call).await?;
            if reply == Value::Null {
                return Ok(None);
            }
            cursor = holders.add(reply).ok_or_else(|| unexpected_reply("inspect"))?;
            if cursor == "0" {
                break;
            }
        }
        let mut state = LockState::free(name.clone());
        state.holders = holders.found;
        if !self.base.config.fencing {
            state.holders.iter_mut().for_each(|holder| holder.token = None);
        }
        Ok(Some(state))
    }

    fn permit_note(&self, names: &Names, owner: OwnerId) -> String {
        format!("{}{owner}", names.permit_notes())
    }
}

/// The holders of permits, put together from pages of permits.
#[derive(Default)]
struct Holders {
    found: Vec<Holder>,
    /// Where each owner is among them.
    places: HashMap<String, usize>,
    /// A permit that is there from the first page to the last is counted once.
    permits: HashSet<Vec<u8>>,
}

impl Holders {
    /// Adds a page. Returns the cursor of the next one.
    fn add(&mut self, reply: Value) -> Option<String> {
        let [now, size, next, permits] = <[Value; 4]>::try_from(reply.array()?).ok()?;
        let (now, size) = (now.text()?.parse().ok()?, size.text()?.parse().ok()?);
        for permit in permits.array()?.chunks_exact(3) {
            let [Value::Text(member), left, note] = permit else { return None };
            if !self.permits.insert(member.clone()) {
                continue;
            }
            let owner = owner_of(member);
            if let Some(place) = self.places.get(&owner) {
                if let Mode::Permits { take, .. } = &mut self.found[*place].mode {
                    *take += 1;
                }
                continue;
            }
            self.places.insert(owner.clone(), self.found.len());
            let mut holder = Holder::new(owner, Mode::Permits { take: 1, of: size });
            let left = left.clone().text()?.parse().ok()?;
            holder.expires_in = (left < ENDLESS).then(|| Duration::from_millis(left));
            match note.clone().text()?.splitn(6, ' ').collect::<Vec<_>>()[..] {
                [_, token, since, pid, host, label] => {
                    holder.token = token.parse().ok().map(Token::new);
                    holder.age = age(now, since);
                    holder.pid = pid.parse().ok();
                    holder.host = Some(host.to_owned());
                    holder.label = label.to_owned();
                }
                _ => holder.label = "Redisson".into(),
            }
            self.found.push(holder);
        }
        next.text()
    }
}

/// The owner of a permit, as it is shown: one of ours has a number behind it, one of Redisson's is 16 bytes, which
/// it spells as hexadecimal digits.
fn owner_of(member: &[u8]) -> String {
    if let Ok(bytes) = <[u8; 16]>::try_from(member) {
        return OwnerId::from_bytes(bytes).to_string();
    }
    let text = String::from_utf8_lossy(member);
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// How many keys are looked into at once.
const AT_ONCE: usize = 64;

/// Adds the semaphores on this server of which permits are held and whose name begins with `wanted`.
pub(super) async fn list(
    link: &Link,
    prefix: &str,
    wanted: &str,
    found: &mut Vec<LockName>,
) -> Result<()> {
    const LIST: &str = "list locks";
    let pattern = format!("{{{}*}}:timeout", glob(&format!("{prefix}{wanted}")));
    let mut keys = Vec::new();
    scan_keys(link, &pattern, "zset", |key| {
        let name = key.strip_prefix('{').and_then(|key| key.strip_suffix("}:timeout"));
        let name = name.and_then(|name| name.strip_prefix(prefix));
        if let Some(name) = name.and_then(|name| LockName::new(name).ok()) {
            keys.push((key.to_owned(), name));
        }
    })
    .await?;
    if keys.is_empty() {
        return Ok(());
    }
    let time = link.send(LIST, &cmd("TIME")).await?.texts();
    let now = time.and_then(|time| time.first()?.parse::<u64>().ok()).unwrap_or_default() * 1000;
    for batch in keys.chunks(AT_ONCE) {
        let look = batch.iter().map(async |(key, name)| {
            let held = cmd("ZRANGEBYSCORE").arg(key).number(now).arg("+inf");
            let held = link.send(LIST, &held.arg("LIMIT").arg("0").arg("1")).await.ok()?;
            (!held.array()?.is_empty()).then(|| name.clone())
        });
        found.extend(join_all(look).await.into_iter().flatten());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_of_one_owner_are_one_holder() {
        let owner = OwnerId::random();
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let ours =
            [text(&format!("{owner} 0999")), text("5"), text(&format!("{owner} 7 0 1 host label"))];
        let second = [text(&format!("{owner} 0998")), text("5"), text("")];
        let theirs = [Value::Text(vec![0xab; 16]), text("922337203685477"), text("")];
        let all = [ours.clone(), second, theirs, ours].concat();
        let mut holders = Holders::default();
        let page = vec![text("1000"), text("4"), text("17"), Value::Array(all)];
        assert_eq!(holders.add(Value::Array(page)).unwrap(), "17");
        let [ours, theirs] = &holders.found[..] else { panic!("{:?}", holders.found) };
        assert_eq!(
            (&ours.owner, ours.mode),
            (&owner.to_string(), Mode::Permits { take: 2, of: 4 })
        );
        assert_eq!((ours.token, &*ours.label), (Some(Token::new(7)), "label"));
        assert_eq!((&*theirs.owner, theirs.expires_in), (&*"ab".repeat(16), None));
    }
}
