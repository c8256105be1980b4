//! The semaphores whose permits are the leases of the parties of latches and barriers.

use super::contract::CellSpace;
use crate::LockName;

/// The name of the semaphore for the parties of this latch or barrier.
pub(super) fn party_leases(space: CellSpace, name: &str) -> String {
    format!("{}:{name}", space.as_str())
}

/// Whether this is the name of a semaphore whose permits are the leases of a latch's or barrier's parties:
/// `latch:` or `barrier:`, and a name. No other client of the server knows them.
///
/// For a store that shares its locks with other clients, and keeps these apart.
///
/// ```
/// use tenure::store::is_for_parties;
///
/// assert!(is_for_parties(&"barrier:phase".parse()?));
/// assert!(!is_for_parties(&"barrier".parse()?));
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn is_for_parties(name: &LockName) -> bool {
    [CellSpace::Latch, CellSpace::Barrier].into_iter().any(|space| {
        let rest = name.as_str().strip_prefix(space.as_str());
        rest.is_some_and(|rest| rest.starts_with(':'))
    })
}
