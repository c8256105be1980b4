//! Lock names, parsed once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, ErrorKind};

/// The name of a lock: 1 to 200 bytes of UTF-8, without control characters and braces.
///
/// Everything else is allowed, also spaces, slashes and colons: each store encodes what it must.
/// Braces are refused because Redis Cluster reads them as a hash tag. Cloning is cheap.
///
/// ```
/// use tenure::LockName;
///
/// let name: LockName = "orders/42".parse()?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert!("a{b}".parse::<LockName>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Parses a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] says which rule the name breaks.
    pub fn new(name: &str) -> Result<Self, Error> {
        let fault = |why: String| Err(Error::new(ErrorKind::Invalid, "name a lock", why));
        if name.is_empty() {
            return fault("a lock name cannot be empty: give it 1 to 200 bytes".into());
        }
        if name.len() > Self::MAX_BYTES {
            return fault(format!(
                "the lock name has {} bytes: shorten it to at most {}",
                name.len(),
                Self::MAX_BYTES
            ));
        }
        if let Some(odd) = name.chars().find(|c| c.is_control() || matches!(c, '{' | '}')) {
            return fault(format!(
                "the lock name contains {odd:?}: use no control characters and no braces"
            ));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LockName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for LockName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <String as serde::Deserialize>::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_has_200_bytes() {
        assert!(LockName::new(&"x".repeat(200)).is_ok());
        let error = LockName::new(&"x".repeat(201)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("201 bytes"), "{error}");
        assert!(LockName::new(&"é".repeat(101)).is_err(), "bytes are counted, not characters");
    }

    #[test]
    fn hostile_names_are_refused_and_odd_ones_are_not() {
        for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}", "{a}", "a}"] {
            assert!(LockName::new(bad).is_err(), "{bad:?}");
        }
        for odd in [" ", "..", "../../etc/passwd", "a/b", "ключ", "a b", "'; --", "%00", "\u{202e}"]
        {
            assert!(LockName::new(odd).is_ok(), "{odd:?}");
        }
    }
}
