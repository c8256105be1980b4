//! Which server each address leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tenure_proto::quorum::{NotAQuorum, check_nodes};

/// The run id of the server at each address, where known. An address may come to lead to another server
/// at any time: a server that is reached at two addresses has one vote.
pub(super) struct ServerIdentities {
    seen: Mutex<Vec<Option<Seen>>>,
    /// A bit for each address whose server was reached at another address before.
    duplicates: AtomicU32,
}

#[derive(Clone)]
struct Seen {
    run: Arc<str>,
    /// How many servers were seen before.
    order: usize,
}

impl ServerIdentities {
    pub(super) fn new(nodes: usize) -> Self {
        Self { seen: Mutex::new(vec![None; nodes]), duplicates: AtomicU32::new(0) }
    }

    /// An address leads to this server.
    pub(super) fn handle_server(&self, node: usize, run: &Arc<str>) {
        let mut seen = self.seen.lock();
        if seen[node].as_ref().is_some_and(|it| it.run == *run) {
            return;
        }
        let order = seen.iter().flatten().map(|it| it.order + 1).max().unwrap_or(0);
        seen[node] = Some(Seen { run: Arc::clone(run), order });
        let is_duplicate = |it: &Seen| {
            seen.iter().flatten().any(|other| other.run == it.run && other.order < it.order)
        };
        let duplicates =
            (0..seen.len()).filter(|&node| seen[node].as_ref().is_some_and(is_duplicate));
        self.duplicates.store(duplicates.fold(0, |bits, node| bits | 1 << node), Ordering::Release);
    }

    pub(super) fn is_duplicate(&self, node: usize) -> bool {
        self.duplicates.load(Ordering::Acquire) & 1 << node != 0
    }

    pub(super) fn check(&self) -> Result<(), NotAQuorum> {
        let seen = self.seen.lock();
        check_nodes(&seen.iter().map(|it| it.as_ref().map(|it| &it.run)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_votes_at_the_address_where_it_was_first_seen() {
        let identities = ServerIdentities::new(3);
        let see = |node, run: &str| {
            identities.handle_server(node, &run.into());
            [0, 1, 2].map(|node| u8::from(identities.is_duplicate(node)))
        };
        assert_eq!(see(1, "b"), [0, 0, 0]);
        assert_eq!(see(2, "c"), [0, 0, 0]);
        assert_eq!(see(0, "a"), [0, 0, 0]);
        assert!(identities.check().is_ok());
        assert_eq!(see(0, "b"), [1, 0, 0], "also if a lower number comes later");
        assert!(identities.check().is_err());
        assert_eq!(see(1, "b"), [1, 0, 0], "to see it again changes nothing");
        assert_eq!(see(1, "a"), [0, 0, 0], "the addresses have changed places");
        assert_eq!(see(2, "a"), [0, 0, 1]);
    }
}
