//! When a restarted node may be counted again.

use std::time::Duration;

use crate::Moment;

/// What a node reports about itself on a new connection. A connection outlives no restart, so what was
/// seen on it stays true as long as it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting<Id> {
    /// Its run id: another one after every start.
    pub run: Id,
    /// Its uptime, in whole seconds.
    pub uptime: Duration,
    /// When the answer arrived.
    pub at: Moment,
}

/// Keeps a node out that may have forgotten its locks.
///
/// A node that restarts without its data would let a second claim in beside the first. So it is
/// not counted for claims or repairs until every lock it may have known has ended: for the longest
/// TTL in use, and one per cent and two milliseconds, from when it came up.
///
/// The same wait keeps the tokens: by its end the node's clock, hence its counter, is past all that
/// it has forgotten, unless the nodes' clocks differ by more than the longest TTL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine<Id> {
    longest: Duration,
    trust_first: bool,
    known: Option<Known<Id>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known<Id> {
    run: Id,
    last_seen: Moment,
    until: Moment,
}

impl<Id: PartialEq> Quarantine<Id> {
    /// Applies the wait to a node at first sight, too: it may have restarted just before. A set of
    /// servers that were all just started cannot be used until the longest TTL has passed.
    pub const fn new(longest_ttl: Duration) -> Self {
        Self { longest: longest_ttl, trust_first: false, known: None }
    }

    /// Trusts the node at first sight, and applies the wait only to later restarts: for servers
    /// that keep their data, or that no client can have used before.
    pub const fn trusting_the_first(longest_ttl: Duration) -> Self {
        Self { longest: longest_ttl, trust_first: true, known: None }
    }

    /// The node has reported its identity.
    pub fn handle_sighting(&mut self, sighting: Sighting<Id>) {
        let Sighting { run, uptime, at } = sighting;
        // Two readings in whole seconds: the true uptime may be one second less.
        let up_since = at - uptime.saturating_sub(Duration::from_secs(1));
        let margin = self.longest / 100 + Duration::from_millis(2);
        let until = match &self.known {
            Some(known) if known.run == run => known.until,
            None if self.trust_first => at,
            // A node whose clock jumped may report too long an uptime. It was not up while its previous
            // run was.
            Some(known) => up_since.max(known.last_seen) + self.longest + margin,
            None => up_since + self.longest + margin,
        };
        self.known = Some(Known { run, last_seen: at, until });
    }

    /// From when on the node counts, as far as is known. `None` if it was never seen.
    pub fn until(&self) -> Option<Moment> {
        self.known.as_ref().map(|known| known.until)
    }

    /// Whether the node counts for claims and repairs.
    pub fn is_over(&self, now: Moment) -> bool {
        self.until().is_some_and(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(100);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn see(quarantine: &mut Quarantine<&'static str>, run: &'static str, uptime: u64, now: u64) {
        let uptime = Duration::from_secs(uptime);
        quarantine.handle_sighting(Sighting { run, uptime, at: at(now) });
    }

    #[test]
    fn a_node_never_seen_does_not_count() {
        assert!(!Quarantine::<&str>::new(LONGEST).is_over(at(9999)));
        assert!(!Quarantine::<&str>::trusting_the_first(LONGEST).is_over(at(9999)));
    }

    #[test]
    fn a_restarted_node_counts_after_the_longest_ttl_and_a_margin() {
        let mut node = Quarantine::new(LONGEST);
        see(&mut node, "a", 5000, 10_000);
        assert!(node.is_over(at(10_000)));
        see(&mut node, "b", 3, 10_020);
        assert_eq!(node.until(), Some(at(10_018 + 101) + Duration::from_millis(2)));
        assert!(!node.is_over(at(10_119)));
        assert!(node.is_over(at(10_120)));
    }

    #[test]
    fn seeing_the_same_run_again_changes_nothing() {
        let mut node = Quarantine::new(LONGEST);
        see(&mut node, "b", 3, 10_020);
        let until = node.until();
        see(&mut node, "b", 50, 10_030);
        assert_eq!(node.until(), until, "a clock that jumps does not shorten it");
    }

    #[test]
    fn an_uptime_that_overlaps_the_previous_run_is_not_believed() {
        let mut node = Quarantine::new(LONGEST);
        see(&mut node, "a", 5000, 10_000);
        see(&mut node, "b", 4000, 10_020);
        assert!(!node.is_over(at(10_100)));
        assert!(node.is_over(at(10_102)));
    }

    #[test]
    fn a_young_node_is_trusted_at_first_sight_only_where_that_is_asked_for() {
        let mut careful = Quarantine::new(LONGEST);
        let mut trusting = Quarantine::trusting_the_first(LONGEST);
        for node in [&mut careful, &mut trusting] {
            see(node, "a", 1, 500);
        }
        assert!(!careful.is_over(at(500)));
        assert!(trusting.is_over(at(500)));
        see(&mut trusting, "b", 1, 510);
        assert!(!trusting.is_over(at(600)), "a witnessed restart is judged all the same");
    }
}
