//! The names of keys, such that no lock's keys are among another's.

use tenure_core::store::{CellKey, Claim};
use tenure_core::{LockName, Mode, OwnerId};
use tenure_ordered::{decode_name, encode_name};

/// How keys are named on one store.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

/// The keys of one lock: all that begin with this text, which ends with a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue(String);

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The keys of a lock.
    pub(crate) fn queue(&self, name: &LockName) -> Queue {
        Queue(format!("{}{}/", self.prefix, encode(name.as_str())))
    }

    /// The key of a claim. The claim's mode is part of the name, so that the names of the keys alone
    /// decide which of them hold the lock.
    pub(crate) fn entry(&self, claim: &Claim) -> Vec<u8> {
        let Queue(queue) = self.queue(&claim.name);
        let owner = claim.owner;
        match claim.mode {
            Mode::Exclusive => format!("{queue}{owner}"),
            Mode::Shared => format!("{queue}{owner}{SHARED}"),
            Mode::Permits { take, of } => format!("{queue}{owner}{PERMITS}{take}-{of}"),
        }
        .into_bytes()
    }

    /// Where evictions from a lock are recorded. No lock has a name that is encoded like this.
    pub(crate) fn audit(&self, name: &LockName) -> Vec<u8> {
        format!("{}%audit/{}", self.prefix, encode(name.as_str())).into_bytes()
    }

    /// The key of a cell. No lock has a name that is encoded like this.
    pub(crate) fn cell(&self, key: &CellKey) -> Vec<u8> {
        let (space, name) = (key.space.as_str(), encode(key.name.as_str()));
        format!("{}%{space}/{name}", self.prefix).into_bytes()
    }

    /// The loss channel of a lease.
    pub(crate) fn losses(&self, lease: i64) -> Vec<u8> {
        format!("{}%lease/{lease:x}", self.prefix).into_bytes()
    }

    /// The write fence of a lease.
    pub(crate) fn fence(&self, lease: i64) -> Vec<u8> {
        format!("{}%fence/{lease:x}", self.prefix).into_bytes()
    }

    /// The first key, and the end of all keys, of the locks whose names begin with `prefix`.
    pub(crate) fn all(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}{}", self.prefix, encode(prefix)).into_bytes();
        let end = after_prefix(&first);
        // An empty key is none: the first that exists is a single zero byte.
        (if first.is_empty() { vec![0] } else { first }, end)
    }

    /// The lock that a key belongs to, if it belongs to one.
    pub(crate) fn lock_of(&self, key: &[u8]) -> Option<LockName> {
        let text = std::str::from_utf8(key).ok()?;
        let (encoded, rest) = text.strip_prefix(&self.prefix)?.split_once('/')?;
        if is_mark(rest) {
            return None;
        }
        decode_name(encoded, encode)
    }
}

impl Queue {
    pub(crate) fn first(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }

    pub(crate) fn end(&self) -> Vec<u8> {
        after_prefix(self.0.as_bytes())
    }

    /// The name of a key within its queue.
    pub(crate) fn name_of(&self, key: &[u8]) -> String {
        String::from_utf8_lossy(key.strip_prefix(self.0.as_bytes()).unwrap_or(key)).into_owned()
    }

    /// Whether a key marks another one as shared. It is no entry itself.
    pub(crate) fn is_mark(&self, key: &[u8]) -> bool {
        is_mark(&self.name_of(key))
    }

    /// The mode and the owner of a key of this queue. Another program's key is exclusive.
    pub(crate) fn read(&self, key: &[u8]) -> (Mode, Option<OwnerId>) {
        parse(&self.name_of(key))
            .map_or((Mode::Exclusive, None), |(mode, owner)| (mode, Some(owner)))
    }
}

/// The mark of an exclusive key whose claim was downgraded: it has the key's name, and this behind it.
const READS: &str = "-reads";
const SHARED: &str = "-shared";
const PERMITS: &str = "-permits-";

/// The mark that makes an exclusive key of tenure a shared one.
pub(crate) fn mark_of(key: &[u8]) -> Vec<u8> {
    [key, READS.as_bytes()].concat()
}

/// The key that this key marks, if it is a mark.
pub(crate) fn marked_by(key: &[u8]) -> Option<&[u8]> {
    key.strip_suffix(READS.as_bytes())
}

fn is_mark(name: &str) -> bool {
    name.strip_suffix(READS).is_some_and(|owner| owner.parse::<OwnerId>().is_ok())
}

fn parse(name: &str) -> Option<(Mode, OwnerId)> {
    if let Some(owner) = name.strip_suffix(SHARED) {
        return Some((Mode::Shared, owner.parse().ok()?));
    }
    let Some((owner, numbers)) = name.split_once(PERMITS) else {
        return Some((Mode::Exclusive, name.parse().ok()?));
    };
    let (take, of) = numbers.split_once('-')?;
    let mode = Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? };
    Some((mode, owner.parse().ok()?)).filter(|(mode, _)| mode.is_sound())
}

/// Every key below `a/` blocks the lock `a`, so a slash in a name must be encoded.
fn encode(name: &str) -> String {
    encode_name(name, |_, _| false)
}

/// The first key that does not begin with `prefix` and is above all that do.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's notation for "no end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> LockName {
        text.parse().unwrap()
    }

    fn claim(lock: &str, mode: Mode) -> Claim {
        Claim::new(name(lock), mode, Duration::from_secs(1))
    }

    #[test]
    fn no_key_of_a_lock_is_in_the_queue_of_another() {
        let keys = Keys::new("tenure/");
        let names = [
            "a", "a/", "a/b", "a%2Fb", "%", "/", "%25", "%2F", "%audit", "%lease", "%fence",
            "%audit/a",
        ];
        for one in names {
            let key = keys.entry(&claim(one, Mode::Exclusive));
            assert_eq!(keys.lock_of(&key), Some(name(one)));
            for other in names.iter().filter(|other| **other != one) {
                let queue = keys.queue(&name(other));
                assert!(!key.starts_with(&queue.first()), "{one} in {other}");
            }
        }
        for hidden in [keys.audit(&name("a")), keys.losses(7), keys.fence(7)] {
            assert_eq!(keys.lock_of(&hidden), None);
        }
    }

    #[test]
    fn a_key_shows_its_claims_mode_and_another_programs_key_is_exclusive() {
        let keys = Keys::new("tenure/");
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 3 }] {
            let claim = claim("a", mode);
            let read = keys.queue(&claim.name).read(&keys.entry(&claim));
            assert_eq!(read, (mode, Some(claim.owner)));
        }
        let queue = keys.queue(&name("a"));
        for foreign in ["694d81417acd4754", "", "x-shared", "b/c", "x-permits-1-2", "x-permits-"] {
            let key = [queue.first(), foreign.as_bytes().to_vec()].concat();
            assert_eq!(queue.read(&key), (Mode::Exclusive, None), "{foreign}");
        }
        let own = claim("a", Mode::Exclusive);
        let mark = mark_of(&keys.entry(&own));
        assert!(queue.is_mark(&mark) && !queue.is_mark(&keys.entry(&own)));
        assert_eq!(marked_by(&mark), Some(&*keys.entry(&own)));
        assert_eq!(keys.lock_of(&mark), None, "a mark alone is no lock");
        assert!(!queue.is_mark(b"tenure/a/694d81417acd4754-reads"), "another program's key");
        let owner = OwnerId::random();
        let too_many = format!("tenure/a/{owner}-permits-4-3");
        assert_eq!(queue.read(too_many.as_bytes()), (Mode::Exclusive, None));
    }

    #[test]
    fn a_queue_ends_before_the_next_key_without_its_prefix() {
        let queue = Keys::new("").queue(&name("a"));
        assert_eq!((queue.first(), queue.end()), (b"a/".to_vec(), b"a0".to_vec()));
        assert_eq!(queue.name_of(b"a/694d"), "694d");
        assert_eq!(Keys::new("").all(""), (vec![0], vec![0]));
        assert_eq!(after_prefix(&[7, 255]), [8]);
    }
}
