//! What Redisson calls the keys and channels of a lock, and its holders.

use tenure_core::{LockName, OwnerId};

use crate::keys::slot_of;

const LOCK_CHANNEL: &str = "redisson_lock__channel:{";
const RWLOCK_CHANNEL: &str = "redisson_rwlock:{";
const SEMAPHORE_CHANNEL: &str = "redisson_sc:{";

/// The number behind the instance in our holders. Threads of Java are counted from 1.
const THREAD: &str = ":0";

/// The keys of one lock. The lock itself has no braces in its name, so all others can be told from it.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The hash of the holders.
    pub(super) lock: String,
    /// The last fencing token, as `RFencedLock` counts it.
    pub(super) token: String,
    /// What we know of an exclusive holder of ours.
    pub(super) note: String,
    /// The records of evictions.
    pub(super) audit: String,
    /// The queue of a fair lock, and its time-outs.
    pub(super) fair: [String; 2],
    /// What the names of readers' timers begin with.
    pub(super) stem: String,
    /// The hash slot, or 0 where there are none.
    pub(super) slot: u16,
}

/// Which of a lock's channels has the message that it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Channel {
    /// That of plain, fair and fenced locks.
    Lock,
    /// That of read-write locks.
    ReadWrite,
    /// That of semaphores.
    Semaphore,
}

impl Channel {
    pub(super) const ALL: [Self; 3] = [Self::Lock, Self::ReadWrite, Self::Semaphore];
}

impl Names {
    pub(super) fn new(prefix: &str, name: &LockName, cluster: bool) -> Self {
        let lock = format!("{prefix}{name}");
        let slot = if cluster { slot_of(lock.as_bytes()) } else { 0 };
        Self::of_key(&lock, slot)
    }

    /// The names of the lock with this key.
    pub(super) fn of_key(lock: &str, slot: u16) -> Self {
        Self {
            token: format!("redisson_lock_token:{{{lock}}}"),
            note: format!("tenure_holder:{{{lock}}}"),
            audit: format!("tenure_audit:{{{lock}}}"),
            fair: ["queue", "timeout"].map(|part| format!("redisson_lock_{part}:{{{lock}}}")),
            stem: format!("{{{lock}}}:"),
            lock: lock.to_owned(),
            slot,
        }
    }

    pub(super) fn channel(&self, channel: Channel) -> String {
        let prefix = match channel {
            Channel::Lock => LOCK_CHANNEL,
            Channel::ReadWrite => RWLOCK_CHANNEL,
            Channel::Semaphore => SEMAPHORE_CHANNEL,
        };
        format!("{prefix}{}}}", self.lock)
    }

    /// The channel that those listen to who wait for an `RCountDownLatch` of this name.
    pub(super) fn latch_channel(&self) -> String {
        format!("redisson_countdownlatch__channel__{{{}}}", self.lock)
    }

    /// The terms of a semaphore's permits.
    pub(super) fn terms(&self) -> String {
        format!("{}timeout", self.stem)
    }

    /// What the names of the notes of those that hold permits begin with.
    pub(super) fn permit_notes(&self) -> String {
        format!("{}:", self.note)
    }

    /// The timer of a claim as a reader.
    pub(super) fn timer(&self, holder: &str) -> String {
        format!("{}{holder}:rwlock_timeout:1", self.stem)
    }
}

/// The keys of a lock, its own first, and its channels: what a user needs rights for.
pub(crate) fn keys_and_channels(prefix: &str, name: &LockName) -> (Vec<String>, Vec<String>) {
    let names = Names::new(prefix, name, false);
    let channels = Channel::ALL.map(|channel| names.channel(channel)).to_vec();
    let (timer, terms, [queue, timeouts]) = (names.timer("x"), names.terms(), names.fair);
    let Names { lock, token, note, audit, .. } = names;
    (vec![lock, token, note, audit, timer, terms, queue, timeouts], channels)
}

/// The lock that a channel belongs to, as its key is called.
pub(super) fn lock_of_channel(channel: &[u8]) -> Option<&str> {
    let channel = std::str::from_utf8(channel).ok()?;
    let prefixes = [LOCK_CHANNEL, RWLOCK_CHANNEL, SEMAPHORE_CHANNEL];
    let rest = prefixes.into_iter().find_map(|prefix| channel.strip_prefix(prefix))?;
    rest.split_once('}').map(|(lock, _)| lock)
}

pub(super) fn is_semaphore(channel: &[u8]) -> bool {
    channel.starts_with(SEMAPHORE_CHANNEL.as_bytes())
}

/// A claim as Redisson spells holders: a UUID and the number of a thread.
pub(super) fn holder(owner: OwnerId) -> String {
    let hex = owner.to_string();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-") + THREAD
}

/// The claim of ours that a field names.
pub(super) fn owner_of(field: &str) -> Option<OwnerId> {
    let instance = field.strip_suffix(THREAD)?;
    let owner: OwnerId = instance.replace('-', "").parse().ok()?;
    (holder(owner) == field).then_some(owner)
}

/// Whether a field of a hash can be a holder.
pub(super) fn is_holder(field: &str) -> bool {
    let Some((instance, rest)) = field.split_at_checked(36) else { return false };
    let thread = rest.strip_suffix(":write").unwrap_or(rest).strip_prefix(':');
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    instance.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && thread.is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_spelled_as_a_uuid_and_a_thread_and_read_back() {
        let owner: OwnerId = "00112233445566778899aabbccddeeff".parse().unwrap();
        let field = holder(owner);
        assert_eq!(field, "00112233-4455-6677-8899-aabbccddeeff:0");
        assert_eq!(owner_of(&field), Some(owner));
        for theirs in ["00112233-4455-6677-8899-aabbccddeeff:1", "x:0", "mode", ":0"] {
            assert_eq!(owner_of(theirs), None, "{theirs}");
        }
    }

    #[test]
    fn holders_are_told_from_other_fields() {
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        for field in [format!("{uuid}:0"), format!("{uuid}:17"), format!("{uuid}:17:write")] {
            assert!(is_holder(&field), "{field}");
        }
        let group = format!("sku-1:{uuid}:17:lock_count");
        for field in ["mode", "rate", uuid, &group, &format!("{uuid}:"), &format!("{uuid}:x")] {
            assert!(!is_holder(field), "{field}");
        }
    }

    #[test]
    fn a_channel_names_its_lock() {
        let names = Names::new("app:", &LockName::new("a b").unwrap(), true);
        for channel in Channel::ALL {
            assert_eq!(lock_of_channel(names.channel(channel).as_bytes()), Some("app:a b"));
        }
        assert_eq!(lock_of_channel(b"redisson_lock__channel:{x}:u:1"), Some("x"));
        assert_eq!(lock_of_channel(b"redisson_countdownlatch__channel__{x}"), None);
        assert_eq!(names.slot, slot_of(b"app:a b"));
    }
}
