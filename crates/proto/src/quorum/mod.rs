//! A lock on a quorum of independent servers: what to ask, when it is decided, what to undo.
//!
//! One [`Round`] decides one claim: the nodes' votes go in, [`Verdict`]s and [`Order`]s come out.
//! A [`Renewal`] decides one renewal and says which nodes to repair; a [`Tally`] counts releases
//! and whatever else a majority must agree to. [`check_nodes`] refuses a set of nodes that cannot
//! be a quorum, [`Quarantine`] keeps a node out that may have forgotten its locks, and
//! [`Forecast`] makes the usual claim a single round trip.
//!
//! The code that sends the messages must guarantee:
//! - All requests of a claim to one node go down one connection, in the order they were given.
//! - A request that is not answered in its time is reported ([`Vote::Unknown`] and the like). Its
//!   reply, should it come after all, is reported too.
//! - Nodes are asked not to queue: claims that waited at some nodes while they held others would
//!   block each other.
//!
//! # What a node does
//!
//! Every node has a counter that never decreases. Each of these is one step:
//! - *claim*: if no other claim is in the way, set the owner and the term, and advance the counter:
//!   `c = max(last + 1, clock, floor)`, see [`Token::after`] and [`Forecast`]. The vote is `c`. A
//!   [`Repair`] is a claim whose floor is the holder's token.
//! - *renew*: if the claim holds the node, start its term anew, and `c = max(c, token)`. An
//!   [`Order::Raise`] is the same.
//! - *downgrade*: if the claim holds the node as a writer, it holds it as a reader from then on. It goes
//!   with a *renew*, and a majority decides as it does for that.
//! - *release*: if the claim holds the node, free it.
//!
//! # Rounds
//!
//! A round asks all eligible nodes at once. It is decided at a majority, or as soon as a majority is out
//! of reach. A lost round releases every node that it asked, also those that refused or were silent,
//! each behind its own answer: a release that overtakes its claim would leave an orphan.
//!
//! The token is chosen among the first majority of votes. Waiting for more votes would let the slowest
//! node set the pace. A later vote counts if it equals the token, is raised to it if it is below, and
//! does not count if it is above, because the token was chosen without it.
//!
//! Counters have a clock as their floor, so that a node that lost its data does not repeat a token.
//! Clocks differ, and so would the votes. So a claim carries a floor just above all clocks
//! ([`Forecast`]): all nodes vote the same, and one round trip is enough. A wrong forecast costs a
//! second one.
//!
//! A node that restarted gets no vote until the longest TTL has passed ([`Quarantine`]). By then its
//! clock is past its lost counter, unless the nodes' clocks differ by more than that.
//!
//! A renewal needs a majority that still has the claim, and raises counters that are behind. Nodes that
//! lost the claim are claimed anew after the renewal has succeeded, and count from the next one on.
//!
//! # Tokens
//!
//! The round's token `t` is the largest counter among the votes it used. A node is *acknowledged*
//! when its counter is known to have been at least `t` while the claim held it: because it voted
//! exactly `t`, or because it was raised to `t` on condition that the claim still held it. A
//! majority of acknowledged nodes wins.
//!
//! Two claims that exclude each other and both won have an acknowledged node in common. There one
//! held before the other: when the later one's claim advanced the counter, it was at the earlier
//! one's token already, and the later one used that vote. So its token is larger. A reader that joins a
//! downgraded writer used the vote of a node that the writer had held alone: its token is larger, too.
//! No clock and no time limit is part of the argument; only a counter that goes back can end it.
//!
//! A claim that is sent again is a new round, which may use other votes and get another token. That
//! is as safe, but a store that promises the same token must remember it.
//!
//! Two shared holders do not exclude each other: while they overlap, their tokens may be equal or
//! in any order. Each is above every earlier writer's token and below every later one's.

mod forecast;
mod members;
mod quarantine;
mod renewal;
mod round;
mod tally;

use std::time::Duration;

pub use forecast::Forecast;
pub use members::{MOST_NODES, NotAQuorum, check_nodes};
pub use quarantine::{Quarantine, Sighting};
pub use renewal::{Renewal, RenewalVote, Repair};
pub use round::{Defeat, Order, Raised, Round, Term, Verdict, Vote};
pub use tally::{Majority, Reply, Tally};

#[cfg(doc)]
use crate::Token;
use crate::{Backoff, Mode};

/// How many of so many nodes are a quorum: any two of that size share a node.
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Whether a quorum can keep this mode's promise.
///
/// Shared holders are fine: a writer needs a majority of nodes without readers. Permits are not.
/// Each node counts by itself, and of `n` nodes each with `of` permits, holders of a majority `q`
/// each can take `of * n / q` together, which is more than `of` as soon as `of` is two: on three
/// nodes AB, BC and CA all get one of two permits. A larger quorum, `of * n / (of + 1) + 1`, would
/// keep the number, but is all of the nodes once `of` reaches their number: one dead node would
/// end every semaphore. So permits are refused.
pub const fn carries(mode: Mode) -> bool {
    !matches!(mode, Mode::Permits { .. })
}

/// How long a node may take to answer before it counts as silent: far below the TTL, so that slow
/// nodes cost the lease little.
pub fn node_timeout(ttl: Duration) -> Duration {
    (ttl / 200).clamp(Duration::from_millis(5), Duration::from_millis(50))
}

/// Pauses between the rounds of one claimant, when a round takes about `round`.
///
/// Rivals whose rounds overlap can split the votes so that none of them wins. The pauses are random and
/// grow until the rivals' rounds no longer overlap; they are bounded, so that a free lock is found
/// soon. A wake-up from a node should be followed by such a pause, too: it reaches all rivals.
pub fn pauses(round: Duration) -> Backoff {
    let first = (round * 2).clamp(Duration::from_millis(2), Duration::from_millis(50));
    let most = (round * 128).clamp(Duration::from_millis(100), Duration::from_secs(1));
    Backoff::new(first, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Occupancy;

    #[test]
    fn any_two_majorities_share_a_node() {
        for nodes in 1..=MOST_NODES {
            assert!(2 * majority(nodes) > nodes);
            assert!(nodes % 2 == 0 || 2 * (majority(nodes) - 1) < nodes);
        }
    }

    /// Lets as many claims as possible in, each on a majority, the emptiest nodes first.
    fn holders_of_one_permit_each(nodes: usize, of: u32) -> usize {
        let mode = Mode::Permits { take: 1, of };
        let mut rooms = vec![Occupancy::default(); nodes];
        let mut taken = vec![0; nodes];
        for holders in 0.. {
            let mut free: Vec<usize> = (0..nodes).filter(|&n| rooms[n].admits(mode)).collect();
            free.sort_by_key(|&n| taken[n]);
            if free.len() < majority(nodes) {
                return holders;
            }
            for &node in &free[..majority(nodes)] {
                rooms[node].enter(mode);
                taken[node] += 1;
            }
        }
        unreachable!()
    }

    #[test]
    fn a_quorum_would_give_more_permits_than_there_are_so_it_gives_none() {
        assert_eq!(holders_of_one_permit_each(3, 2), 3);
        for (nodes, of) in [(3, 2), (3, 5), (5, 2), (5, 9), (7, 4)] {
            let holders = holders_of_one_permit_each(nodes, of);
            assert_eq!(holders, of as usize * nodes / majority(nodes));
            assert!(holders > of as usize);
        }
        assert!(!carries(Mode::Permits { take: 1, of: 2 }));
        assert!(carries(Mode::Exclusive) && carries(Mode::Shared));
    }

    #[test]
    fn a_node_has_a_small_part_of_the_ttl_to_answer() {
        assert_eq!(node_timeout(Duration::from_millis(100)), Duration::from_millis(5));
        assert_eq!(node_timeout(Duration::from_secs(5)), Duration::from_millis(25));
        assert_eq!(node_timeout(Duration::from_secs(3600)), Duration::from_millis(50));
    }

    #[test]
    fn pauses_are_bounded_however_slow_the_nodes() {
        for round in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(9)] {
            let mut pauses = pauses(round);
            assert!(pauses.next(0) >= Duration::from_millis(1));
            let longest = (0..30).map(|_| pauses.next(u64::MAX)).max();
            assert!(longest <= Some(Duration::from_secs(1)));
            assert!(longest >= Some(Duration::from_millis(99)));
        }
    }
}
