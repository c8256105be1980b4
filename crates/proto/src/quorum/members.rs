//! Which sets of nodes can be a quorum.

use std::error::Error;
use std::fmt;

/// The most nodes a set may have. More make every round slower and no lock safer.
pub const MOST_NODES: usize = 15;

/// Why a set of nodes is refused. Nodes are counted from zero; messages count from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAQuorum {
    /// Fewer than three: the failure of one would end all locking.
    TooFew(usize),
    /// An even number: it survives no more failures than the odd number below it.
    Even(usize),
    /// More than [`MOST_NODES`].
    TooMany(usize),
    /// Two addresses lead to one server, which would vote twice.
    Same(usize, usize),
}

impl fmt::Display for NotAQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew(nodes) => {
                write!(f, "{nodes} servers are no quorum: name three or five that fail apart")
            }
            Self::Even(nodes) => {
                let (less, more) = (nodes - 1, nodes + 1);
                write!(f, "{nodes} servers survive no more failures than {less}: ")?;
                write!(f, "name {less} or {more}")
            }
            Self::TooMany(nodes) => write!(f, "{nodes} servers are more than {MOST_NODES}"),
            Self::Same(first, second) => {
                let (first, second) = (first + 1, second + 1);
                write!(f, "the addresses {first} and {second} lead to one server, ")?;
                write!(f, "which must not vote twice: name different servers")
            }
        }
    }
}

impl Error for NotAQuorum {}

/// Checks a set of nodes: an odd number from three, and no server twice. A node that could not be
/// asked for its identity is `None`; check again when it could.
///
/// # Errors
/// The first reason to refuse the set.
pub fn check_nodes<Id: PartialEq>(identities: &[Option<Id>]) -> Result<(), NotAQuorum> {
    let nodes = identities.len();
    if nodes < 3 {
        return Err(NotAQuorum::TooFew(nodes));
    }
    if nodes.is_multiple_of(2) {
        return Err(NotAQuorum::Even(nodes));
    }
    if nodes > MOST_NODES {
        return Err(NotAQuorum::TooMany(nodes));
    }
    for (second, id) in identities.iter().enumerate() {
        let first = identities[..second].iter().position(|other| id.is_some() && other == id);
        if let Some(first) = first {
            return Err(NotAQuorum::Same(first, second));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ids: &str) -> Result<(), NotAQuorum> {
        let ids: Vec<Option<char>> = ids.chars().map(|c| (c != '?').then_some(c)).collect();
        check_nodes(&ids)
    }

    #[test]
    fn an_odd_number_of_different_servers_is_a_quorum() {
        assert_eq!(check("abc"), Ok(()));
        assert_eq!(check("abcde"), Ok(()));
        assert_eq!(check("a??"), Ok(()), "unknown ones may be different");
    }

    #[test]
    fn nodes_that_are_no_quorum_are_refused_with_the_reason() {
        assert_eq!(check(""), Err(NotAQuorum::TooFew(0)));
        assert_eq!(check("a"), Err(NotAQuorum::TooFew(1)));
        assert_eq!(check("ab"), Err(NotAQuorum::TooFew(2)));
        assert_eq!(check("abcd"), Err(NotAQuorum::Even(4)));
        assert_eq!(check(&"?".repeat(17)), Err(NotAQuorum::TooMany(17)));
        assert_eq!(check("ab?dbf?"), Err(NotAQuorum::Same(1, 4)));
        assert_eq!(NotAQuorum::Even(4).to_string().matches("name 3 or 5").count(), 1);
        assert!(NotAQuorum::Same(1, 4).to_string().contains("2 and 5 lead to one server"));
    }
}
