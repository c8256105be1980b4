//! ZooKeeper's numbers end: it counts the children that a node ever had, with 31 bits.
//!
//! After the last number the order of a line would break. So a lock that has used half of them gets
//! a new node in a moment in which nobody needs the old one; and one that comes near the end, for
//! there was no such moment, is refused.

use tenure_core::{Error, ErrorKind};

use crate::inner::Inner;
use crate::line::{Line, number};
use crate::session::Session;

/// From which numbers on something is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A release of one above this deletes the lock's node, if it has no other children.
    pub(crate) renew: i32,
    /// One above this is refused.
    pub(crate) last: i32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { renew: i32::MAX / 2, last: i32::MAX - 1_000_000 }
    }
}

impl Limits {
    /// Whether one with this number, in this line, cannot be let in.
    pub(crate) fn are_passed(&self, number: i32, line: &Line) -> bool {
        number > self.last || line.0.first().is_some_and(|first| first.number < 0)
    }
}

pub(crate) fn used_up(operation: &'static str, lock: &str) -> Error {
    let why = format!(
        "ZooKeeper's numbers below {lock} are nearly used up: when nobody holds or waits, delete \
         that node, and they begin anew"
    );
    Error::new(ErrorKind::Full, operation, why)
}

impl Inner {
    /// Deletes the node of a lock whose last claim has left, where its numbers are worth it. Whoever
    /// comes in the same moment makes it anew.
    pub(crate) fn begin_anew(&self, session: &Session, lock: &str, left: &[String]) {
        let high = left.iter().filter_map(|node| number(node)).max();
        // kazoo would not make it anew.
        if high.is_some_and(|high| high > self.limits.renew) && !self.config.neighbours.kazoo {
            // It fails where others are there, which is as well.
            drop(session.zk.delete(lock, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::{PATIENT, claim, inner, take};
    use tenure_core::{Answer, Released};
    use tenure_testkit::ZooKeeperServer;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_that_comes_near_the_end_of_its_numbers_is_refused() {
        if ZooKeeperServer::is_missing("a_lock_that_comes_near_the_end_of_its_numbers") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits { renew: i32::MAX, last: 2 }).await;
        for _ in 0..3 {
            let held = take(&inner).await.unwrap();
            assert_eq!(inner.release(&held).await.unwrap(), Released::Released);
        }
        let refused = take(&inner).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        assert!(refused.to_string().contains("delete that node"), "{refused}");
        assert!(inner.inspect(&claim().name).await.unwrap().is_free(), "it left something");
        // The way out it names.
        let session = inner.sessions.any("test").await.unwrap();
        session.zk.delete("/tenure/a", None).await.unwrap();
        take(&inner).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_with_high_numbers_begins_anew_when_nobody_needs_it() {
        if ZooKeeperServer::is_missing("a_lock_with_high_numbers_begins_anew") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits { renew: 2, last: 9 }).await;
        let mut tokens = Vec::new();
        for _ in 0..30 {
            let (held, waits) = (take(&inner).await.unwrap(), claim());
            assert!(matches!(inner.claim(&waits, PATIENT).await.unwrap(), Answer::Queued(_)));
            // Not while another is in line.
            assert_eq!(inner.release(&held).await.unwrap(), Released::Released);
            let state = inner.inspect(&held.name).await.unwrap();
            assert_eq!(state.holders[0].owner, waits.owner.to_string());
            tokens.push(state.holders[0].token);
            inner.release(&waits).await.unwrap();
        }
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    }

    #[test]
    fn numbers_that_ran_over_are_past_the_limit() {
        let line = |name: &str| Line::read(&[name.to_owned()]);
        let limits = Limits::default();
        assert!(!limits.are_passed(17, &line("x-lock-0000000017")));
        assert!(limits.are_passed(i32::MAX, &line("x-lock-2147483647")));
        assert!(limits.are_passed(17, &line("x-lock--2147483648")));
    }
}
