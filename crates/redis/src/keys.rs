//! Names of keys and channels. All those of one lock are in the same hash slot.

use std::sync::LazyLock;

use tenure_core::LockName;
use tenure_core::store::CellKey;

/// How keys are named on one store.
#[derive(Clone, Debug)]
pub(crate) struct Keyring {
    prefix: String,
    cluster: bool,
}

/// The keys of one lock, in one string, because every call names them.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    text: String,
    ends: [usize; 7],
    /// The hash slot, or 0 where there are none.
    pub(crate) slot: u16,
}

impl Keys {
    pub(crate) fn holder(&self) -> &str {
        self.key(0)
    }

    pub(crate) fn audit(&self) -> &str {
        self.key(6)
    }

    /// The keys that every script over the whole lock takes, in the scripts' order: holder, queue,
    /// waiters, pool, ends, token.
    pub(crate) fn all(&self) -> [&str; 6] {
        std::array::from_fn(|place| self.key(place))
    }

    fn key(&self, place: usize) -> &str {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.text[start..self.ends[place]]
    }
}

impl Keyring {
    pub(crate) fn new(prefix: &str, cluster: bool) -> Self {
        if cluster {
            // Computed when the store connects, not by the first claim.
            LazyLock::force(&TAGS);
        }
        Self { prefix: prefix.into(), cluster }
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let prefix = &*self.prefix;
        let mut text = String::with_capacity(6 * (2 * prefix.len() + name.as_str().len() + 9));
        text.push_str(prefix);
        text.push_str(name.as_str());
        let holder = text.len();
        let slot = if self.cluster { slot_of(text.as_bytes()) } else { 0 };
        let mut ends = [holder; 7];
        for (place, end) in [(1, "line"), (2, "w"), (3, "p"), (4, "e"), (5, ""), (6, "audit")] {
            if place == 5 {
                self.write_of_slot(&mut text, slot, "token");
            } else {
                // A hash tag that is the whole first key has its slot. Names have no braces, so the
                // first key of one lock is never a secondary key of another.
                for part in [prefix, "{", prefix, name.as_str(), "}:", end] {
                    text.push_str(part);
                }
            }
            ends[place] = text.len();
        }
        Keys { text, ends, slot }
    }

    /// The channel on which a client receives grants of this slot.
    pub(crate) fn inbox(&self, slot: u16, client: &str) -> String {
        format!("{}:{client}", self.of_slot(slot, "inbox"))
    }

    /// The key of a cell, and its slot, which is that of the lock of the same name.
    pub(crate) fn cell(&self, key: &CellKey) -> (String, u16) {
        let (prefix, name) = (&*self.prefix, key.name.as_str());
        let tag = format!("{prefix}{name}");
        let slot = if self.cluster { slot_of(tag.as_bytes()) } else { 0 };
        (format!("{prefix}{{{tag}}}:{}", key.space.as_str()), slot)
    }

    /// The patterns of a scan for locks whose name begins with `prefix`.
    pub(crate) fn patterns(&self, prefix: &str) -> [String; 2] {
        let held = glob(&format!("{}{prefix}", self.prefix));
        let waited = glob(&format!("{}{{{}{prefix}", self.prefix, self.prefix));
        [format!("{held}*"), format!("{waited}*}}:line")]
    }

    /// The lock that a key found by a scan belongs to.
    pub(crate) fn lock_of(&self, key: &str) -> Option<LockName> {
        let rest = key.strip_prefix(&self.prefix)?;
        let name = match rest.strip_prefix('{') {
            Some(tagged) => tagged.strip_suffix("}:line")?.strip_prefix(&self.prefix)?,
            None => rest,
        };
        LockName::new(name).ok()
    }

    fn of_slot(&self, slot: u16, what: &str) -> String {
        let mut text = String::new();
        self.write_of_slot(&mut text, slot, what);
        text
    }

    fn write_of_slot(&self, text: &mut String, slot: u16, what: &str) {
        text.push_str(&self.prefix);
        text.push('{');
        if self.cluster {
            let tag = TAGS[usize::from(slot)].to_string();
            text.extend([&tag, "}:", what]);
        } else {
            text.extend([what, "}"]);
        }
    }
}

pub(crate) const SLOTS: u16 = 16_384;

/// For every slot a number that hashes to it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; usize::from(SLOTS)];
    let mut missing = tags.len();
    for number in 0..u32::MAX {
        let tag = &mut tags[usize::from(slot_of(number.to_string().as_bytes()))];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags
});

/// The slot of a key without a hash tag: CRC-16/XMODEM, as the Cluster specification has it.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let crc = key.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Text that a pattern matches literally.
pub(crate) fn glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn every_slot_has_a_tag_that_maps_to_it() {
        for (slot, tag) in TAGS.iter().enumerate() {
            assert_eq!(usize::from(slot_of(tag.to_string().as_bytes())), slot);
        }
    }

    #[test]
    fn all_keys_of_a_lock_are_in_its_slot() {
        let keyring = Keyring::new("tenure:", true);
        let keys = keyring.keys(&LockName::new("orders/42").unwrap());
        let inbox = keyring.inbox(keys.slot, "c1");
        let tagged = |key: &str| {
            let (_, tag) = key.split_once('{').unwrap();
            slot_of(tag.split_once('}').unwrap().0.as_bytes())
        };
        let [holder, with_own_connections @ ..] = keys.all();
        assert_eq!(slot_of(holder.as_bytes()), keys.slot);
        for key in with_own_connections.into_iter().chain([keys.audit(), &inbox]) {
            assert_eq!(tagged(key), keys.slot, "{key}");
            assert!(key.starts_with("tenure:"));
        }
    }

    #[test]
    fn a_lock_is_found_by_its_holder_and_by_its_queue_and_by_nothing_else() {
        for prefix in ["tenure:", ""] {
            let keyring = Keyring::new(prefix, false);
            let name = LockName::new("a:b*c").unwrap();
            let keys = keyring.keys(&name);
            let [holder, queue, others @ ..] = keys.all();
            assert_eq!(keyring.lock_of(holder).as_ref(), Some(&name));
            assert_eq!(keyring.lock_of(queue).as_ref(), Some(&name));
            for other in others.into_iter().chain([keys.audit()]) {
                assert_eq!(keyring.lock_of(other), None, "{other}");
            }
        }
    }

    #[test]
    fn a_pattern_takes_hostile_names_literally() {
        let [held, waited] = Keyring::new("t:", false).patterns("a*[b");
        assert_eq!(held, "t:a\\*\\[b*");
        assert_eq!(waited, "t:{t:a\\*\\[b*}:line");
    }
}
