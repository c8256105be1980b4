//! The results of a store's diagnosis.

use std::fmt;

/// One thing that [`Store::diagnose`](crate::Store::diagnose) found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What is the case, and what it means for locks.
    pub what: String,
    /// What to do about it. Empty only where all is fine.
    pub remedy: String,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Severity {
    /// It was looked at, and is as it should be.
    Fine,
    /// Locks work, but something makes faults more likely, or could not be checked.
    Advice,
    /// Locks can be lost, or granted to two claims, in ordinary operation: do not lock on this store.
    Unsafe,
}

impl Finding {
    /// Something that is as it should be.
    pub fn fine(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fine, what: what.into(), remedy: String::new() }
    }

    /// Something that could be better.
    pub fn advice(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, what: what.into(), remedy: remedy.into() }
    }

    /// Something that makes the store unfit to lock on.
    pub fn danger(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Unsafe, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Advice => "advice",
            Self::Unsafe => "unsafe",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_finding_outweighs_all_others() {
        assert!(Severity::Unsafe > Severity::Advice && Severity::Advice > Severity::Fine);
        assert_eq!(format!("{:<7}|", Severity::Fine), "fine   |");
    }
}
