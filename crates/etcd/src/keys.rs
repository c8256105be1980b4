//! The names of keys, such that no lock's keys are among another's.

use tenure_core::LockName;

/// How keys are named on one store.
#[derive(Clone, Debug)]
pub(crate) struct Keyring {
    prefix: String,
}

/// The keys of one lock: all that begin with this text, which ends with a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line(String);

impl Keyring {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub(crate) fn line(&self, name: &LockName) -> Line {
        Line(format!("{}{}/", self.prefix, encode(name.as_str())))
    }

    /// Where evictions from a lock are recorded. No lock has a name that is encoded like this.
    pub(crate) fn audit(&self, name: &LockName) -> Vec<u8> {
        format!("{}%audit/{}", self.prefix, encode(name.as_str())).into_bytes()
    }

    /// What is watched of a lease.
    pub(crate) fn canary(&self, lease: i64) -> Vec<u8> {
        format!("{}%lease/{lease:x}", self.prefix).into_bytes()
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
        let (encoded, _) = text.strip_prefix(&self.prefix)?.split_once('/')?;
        let name = encoded.replace("%2F", "/").replace("%25", "%");
        let canonical = encode(&name) == encoded;
        canonical.then(|| LockName::new(&name).ok()).flatten()
    }
}

impl Line {
    pub(crate) fn first(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }

    pub(crate) fn end(&self) -> Vec<u8> {
        after_prefix(self.0.as_bytes())
    }

    /// The key of the one who calls itself `owner`.
    pub(crate) fn key(&self, owner: &str) -> Vec<u8> {
        format!("{}{owner}", self.0).into_bytes()
    }

    /// Who a key of this line belongs to.
    pub(crate) fn owner(&self, key: &[u8]) -> String {
        String::from_utf8_lossy(key.strip_prefix(self.0.as_bytes()).unwrap_or(key)).into_owned()
    }
}

/// Whatever is below `a/` blocks the lock `a`, so a slash must not stay one.
fn encode(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
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
    // etcd's word for "no end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        text.parse().unwrap()
    }

    #[test]
    fn no_key_of_a_lock_is_in_the_line_of_another() {
        let keyring = Keyring::new("tenure/");
        let names =
            ["a", "a/", "a/b", "a%2Fb", "%", "/", "%25", "%2F", "%audit", "%lease", "%audit/a"];
        for one in names {
            let key = keyring.line(&name(one)).key("owner");
            assert_eq!(keyring.lock_of(&key), Some(name(one)));
            for other in names.iter().filter(|other| **other != one) {
                let line = keyring.line(&name(other));
                assert!(!key.starts_with(&line.first()), "{one} in {other}");
            }
        }
        for hidden in [keyring.audit(&name("a")), keyring.canary(7)] {
            assert_eq!(keyring.lock_of(&hidden), None);
        }
    }

    #[test]
    fn a_line_ends_before_the_next_key_without_its_prefix() {
        let line = Keyring::new("").line(&name("a"));
        assert_eq!((line.first(), line.end()), (b"a/".to_vec(), b"a0".to_vec()));
        assert_eq!(line.owner(b"a/694d"), "694d");
        assert_eq!(Keyring::new("").all(""), (vec![0], vec![0]));
        assert_eq!(after_prefix(&[7, 255]), [8]);
    }
}
