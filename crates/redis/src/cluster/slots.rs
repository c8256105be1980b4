//! Which master serves which slot, and how nodes report it.

use std::collections::{BTreeMap, HashSet};

use crate::keys::SLOTS;
use crate::servers::Address;
use crate::wire::Value;

/// The slots with their masters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    /// The last slot of each range, its first, and the master that serves it.
    ranges: BTreeMap<u16, (u16, Address)>,
}

/// Ranges of slots, first and last, with the master that serves them.
pub(super) type Shard = (Vec<(u16, u16)>, Address);

impl FromIterator<Shard> for SlotMap {
    fn from_iter<I: IntoIterator<Item = Shard>>(shards: I) -> Self {
        let ranges = shards.into_iter().flat_map(|(slots, master)| {
            slots.into_iter().map(move |(first, last)| (last, (first, master.clone())))
        });
        Self { ranges: ranges.collect() }
    }
}

impl SlotMap {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The master of a slot.
    pub(super) fn master_of(&self, slot: u16) -> Option<Address> {
        let (_, (first, address)) = self.ranges.range(slot..).next()?;
        (*first <= slot).then(|| address.clone())
    }

    /// All masters, each once.
    pub(super) fn masters(&self) -> Vec<Address> {
        let masters = self.ranges.values().map(|(_, address)| address.clone());
        let mut masters: Vec<Address> = masters.collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Gives one slot to another master.
    pub(super) fn assign(&mut self, slot: u16, to: Address) {
        let range = self.ranges.range(slot..).next();
        let range = range.map(|(last, (first, from))| (*last, *first, from.clone()));
        if let Some((last, first, from)) = range.filter(|(_, first, _)| *first <= slot) {
            self.ranges.remove(&last);
            if first < slot {
                self.ranges.insert(slot - 1, (first, from.clone()));
            }
            if slot < last {
                self.ranges.insert(last, (slot + 1, from));
            }
        }
        self.ranges.insert(slot, (slot, to));
    }

    /// Adds the ranges of these masters. A master that is not among them does not serve.
    pub(super) fn add_slots_of(
        &mut self,
        masters: &HashSet<Address>,
        shards: impl Iterator<Item = Shard>,
    ) {
        let added: Self = shards.filter(|(_, master)| masters.contains(master)).collect();
        self.ranges.extend(added.ranges);
    }

    /// How many slots are served.
    pub(super) fn served(&self) -> usize {
        self.ranges.iter().map(|(last, (first, _))| usize::from(last - first) + 1).sum()
    }

    /// The first slot without a master.
    pub(super) fn unserved(&self) -> Option<u16> {
        let mut next = 0;
        for (last, (first, _)) in &self.ranges {
            if *first > next {
                break;
            }
            next = last + 1;
        }
        (next < SLOTS).then_some(next)
    }
}

/// One entry of `CLUSTER SHARDS`: a shard's slots and its live master. A master that was replaced may be
/// listed without slots. `asked` is the address of the node that replied.
pub(super) fn of_shards(shard: &Value, tls: bool, asked: &str) -> Option<Shard> {
    let slots = shard.field("slots")?.clone().texts()?;
    let slots: Vec<u16> = slots.iter().filter_map(|slot| slot.parse().ok()).collect();
    let Value::Array(nodes) = shard.field("nodes")? else { return None };
    let says = |node: &Value, key: &str| node.field(key).and_then(Value::text);
    let is = |node: &Value, key: &str, what: &str| says(node, key).as_deref() == Some(what);
    let alive = |node: &&Value| is(node, "role", "master") && is(node, "health", "online");
    let node = nodes.iter().find(alive)?;
    let tls_port = tls.then(|| says(node, "tls-port")).flatten();
    let port = tls_port.or_else(|| says(node, "port"))?;
    let named = says(node, "endpoint").filter(|host| !is_unnamed(host));
    let host = named.or_else(|| says(node, "ip")).unwrap_or_default();
    Some((ranges(&slots), complete((host, port.parse().ok()?), asked)))
}

/// One entry of `CLUSTER SLOTS`: first, last, the master, its replicas.
pub(super) fn of_slots(range: Value, asked: &str) -> Option<Shard> {
    let Value::Array(parts) = range else { return None };
    let [Value::Integer(first), Value::Integer(last), Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let host = master.first()?.text().unwrap_or_default();
    let port = master.get(1)?.text()?.parse().ok()?;
    let bounds = [u16::try_from(*first).ok()?, u16::try_from(*last).ok()?];
    Some((ranges(&bounds), complete((host, port), asked)))
}

/// A node that does not know its own address names none: its address is the one that was asked.
pub(super) fn complete((host, port): Address, asked: &str) -> Address {
    (if is_unnamed(&host) { asked.to_owned() } else { host }, port)
}

fn is_unnamed(host: &str) -> bool {
    matches!(host, "" | "?")
}

/// Pairs of first and last slot, as a node lists them. Invalid ranges are left out.
fn ranges(slots: &[u16]) -> Vec<(u16, u16)> {
    let ranges = slots.chunks_exact(2).map(|range| (range[0], range[1]));
    ranges.filter(|(first, last)| first <= last && *last < SLOTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        ("host".to_owned(), port)
    }

    fn map(ranges: &[(u16, u16)]) -> SlotMap {
        [(ranges.to_vec(), address(1))].into_iter().collect()
    }

    #[test]
    fn a_slot_without_a_master_is_found() {
        assert_eq!(map(&[(0, 99), (100, 16_383)]).unserved(), None);
        assert_eq!(map(&[(0, 98), (100, 16_383)]).unserved(), Some(99));
        assert_eq!(map(&[(1, 16_383)]).unserved(), Some(0));
        assert_eq!(map(&[(0, 16_382)]).unserved(), Some(16_383));
        assert_eq!(map(&[]).unserved(), Some(0));
        assert_eq!(map(&[(0, 98), (100, 16_383)]).served(), usize::from(SLOTS) - 1);
    }

    #[test]
    fn a_slot_that_moves_splits_its_range() {
        let mut moved = map(&[(0, 99)]);
        for (slot, port) in [(0, 2), (50, 3), (99, 2), (100, 4), (50, 5)] {
            moved.assign(slot, address(port));
            assert_eq!(moved.master_of(slot), Some(address(port)));
        }
        for slot in [1, 49, 51, 98] {
            assert_eq!(moved.master_of(slot), Some(address(1)), "slot {slot}");
        }
        assert_eq!((moved.served(), moved.unserved()), (101, Some(101)));
        assert_eq!(moved.master_of(101), None);
    }

    /// As Redis 7.2 answers after a failover: `CLUSTER SHARDS` lists the new master without slots.
    #[test]
    fn slots_that_shards_leave_out_are_those_of_live_masters() {
        let shards = [(vec![(0, 8_191)], address(1)), (vec![], address(2))];
        let masters = shards.iter().map(|(_, master)| master.clone()).collect();
        let slots = |second: u16| {
            [(vec![(0, 8_191)], address(1)), (vec![(8_192, 16_383)], address(second))].into_iter()
        };
        let mut map: SlotMap = shards.into_iter().collect();
        assert_eq!(map.unserved(), Some(8_192));
        map.add_slots_of(&masters, slots(3));
        assert_eq!(map.unserved(), Some(8_192), "3 is down");
        map.add_slots_of(&masters, slots(2));
        assert_eq!(map.unserved(), None);
        assert_eq!(map.ranges[&16_383], (8_192, address(2)));
    }

    #[test]
    fn invalid_slot_ranges_are_left_out() {
        let said = [0, 99, 7, 5, 100, 16_384, 200, u16::MAX, 16_383, 16_383, 3];
        assert_eq!(ranges(&said), [(0, 99), (16_383, 16_383)]);
        // Overlapping ranges are counted, too.
        let map: SlotMap = (0..SLOTS).map(|last| (vec![(0, last)], address(1))).collect();
        assert!(map.served() > usize::from(u16::MAX));
        assert_eq!(map.unserved(), None);
    }
}
