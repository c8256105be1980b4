//! The names of nodes, and the queue that the names of a lock's children make.
//!
//! All that is decided about a lock is decided by the names of its children, so that one listing is
//! enough. The numbers are ZooKeeper's: it counts the children that a node ever had.
//!
//! These numbers have 31 bits. After the last one, the order of a queue would break for other clients. So
//! when a lock has used half of the numbers, its node is deleted at a moment when the lock is not used, and
//! numbers begin anew. If there is no such moment, the lock is refused near the end of the numbers.

use std::sync::Arc;

use tenure_core::store::Claim;
use tenure_core::{Error, ErrorKind, Mode, OwnerId};
use tenure_ordered::{Entry, Listing};
use tenure_proto::Order;

use crate::config::Compat;
use crate::wire::Stat;

/// The names of an entry's nodes, in the order of their numbers. The first is the one that is
/// watched; the others are there for clients that do not see the first.
pub(crate) type Key = Arc<[String]>;

const LOCK: &str = "lock-";
const CURATOR_WRITER: &str = "__WRIT__";
const CURATOR_READER: &str = "__READ__";
const KAZOO_WRITER: &str = "__lock__";
const KAZOO_READER: &str = "__rlock__";

/// How the names end before the number, and what they ask for. A claim's nodes are created in this
/// order.
const KINDS: [(&str, Mode); 5] = [
    (LOCK, Mode::Exclusive),
    (CURATOR_WRITER, Mode::Exclusive),
    (KAZOO_WRITER, Mode::Exclusive),
    (CURATOR_READER, Mode::Shared),
    (KAZOO_READER, Mode::Shared),
];

/// The names of a claim's nodes without their numbers.
pub(crate) fn stems(claim: &Claim, compat: Compat) -> Vec<String> {
    let curator = |kind: &str| format!("_c_{}-{kind}", dashed(claim.owner));
    let kazoo = |kind: &str| format!("{}{kind}", claim.owner);
    let Compat { curator_rw, kazoo: beside_kazoo } = compat;
    let mut names = Vec::new();
    match claim.mode {
        Mode::Exclusive => {
            names.push(curator(LOCK));
            names.extend(curator_rw.then(|| curator(CURATOR_WRITER)));
            names.extend(beside_kazoo.then(|| kazoo(KAZOO_WRITER)));
        }
        Mode::Shared => {
            names.push(curator(CURATOR_READER));
            names.extend(beside_kazoo.then(|| kazoo(KAZOO_READER)));
        }
        Mode::Permits { take, of } => names.push(curator(&format!("permits-{take}-{of}-"))),
    }
    names
}

/// The names of a writer's nodes after its downgrade: the first stays, and a reader's nodes behind it make
/// the entry a shared one. They have numbers of the writer's nodes, so the entry keeps its place.
pub(crate) fn reader_nodes(writer: &[String]) -> Vec<String> {
    let Some((first, others)) = writer.split_first() else { return Vec::new() };
    let mut nodes = vec![first.clone()];
    nodes.extend(others.iter().map(|node| {
        node.replace(CURATOR_WRITER, CURATOR_READER).replace(KAZOO_WRITER, KAZOO_READER)
    }));
    let is_reader =
        |node: &String| split(node).is_some_and(|(rest, _)| rest.ends_with(CURATOR_READER));
    if !others.is_empty() && nodes.iter().any(is_reader) {
        return nodes;
    }
    nodes.insert(1, first.replace(LOCK, CURATOR_READER));
    nodes
}

/// The writer's node that this reader's node of a downgraded entry takes the place of, if it takes one.
pub(crate) fn replaced_by(reader: &str, first: &str) -> Option<String> {
    if reader.contains(KAZOO_READER) {
        return Some(reader.replace(KAZOO_READER, KAZOO_WRITER));
    }
    (number(reader) != number(first)).then(|| reader.replace(CURATOR_READER, CURATOR_WRITER))
}

/// How many entries with one number are told apart.
const RANK_BITS: u32 = 8;
const NUMBER_BITS: u32 = 32;

/// The order of the first entry with this number. Numbers begin anew when the lock's node is deleted
/// and made anew, so the transaction that created the lock's node comes first. A number that ran
/// over is negative, and comes after all others.
pub(crate) fn order(lock_created: i64, number: i32) -> Order {
    let number = Order::from(number.cast_unsigned());
    (Order::from(lock_created) << (NUMBER_BITS + RANK_BITS)) | (number << RANK_BITS)
}

/// The transaction that created the lock's node of an entry with this order.
pub(crate) fn lock_created(order: Order) -> i64 {
    // The transaction was an `i64` before it was shifted.
    i64::try_from(order >> (NUMBER_BITS + RANK_BITS)).unwrap_or(i64::MAX)
}

/// An order below every number of a lock's node that is created later.
pub(crate) fn order_before(transaction: i64) -> Order {
    order(transaction, 0)
}

/// How many numbers a node has given to its children. The servers count each child that is created
/// and each that is deleted; those that are there were not deleted.
pub(crate) const fn numbers_given(lock: &Stat) -> u32 {
    // The sum is twice the number, and may have run over.
    lock.cversion.wrapping_add(lock.num_children).cast_unsigned() >> 1
}

/// The queue of a lock: its children as they were listed with its own state.
pub(crate) fn listing(children: Vec<String>, lock: &Stat) -> Listing<Key> {
    let mut nodes: Vec<Node> = children.into_iter().filter_map(Node::read).collect();
    // Curator gives a reader that writes already the number of its writer.
    nodes.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
    let mut groups: Vec<Vec<Node>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|last| last.is_followed_by(&node)) => {
                group.push(node);
            }
            _ => groups.push(vec![node]),
        }
    }
    let (mut entries, mut same, mut before) = (Vec::with_capacity(groups.len()), 0, None);
    for group in groups {
        let Node { number, owner, .. } = group[0];
        // A reader's node behind a writer's says that the writer has become a reader.
        let mode = group[group.len() - 1].mode;
        same = if before == Some(number) { same + 1 } else { 0 };
        before = Some(number);
        let order = order(lock.czxid, number) | same;
        let key = group.into_iter().map(|node| node.name).collect();
        entries.push(Entry { order, mode, owner, key });
    }
    let next = Order::from(numbers_given(lock)) << RANK_BITS;
    let given = order_before(lock.czxid) + next - 1;
    let covers = entries.last().map_or(given, |last: &Entry<Key>| last.order.max(given));
    Listing { entries, covers }
}

/// The queue of a lock that has only this entry. `last` is the number of its last node.
pub(crate) fn alone(entry: &Entry<Key>, lock: &Stat, last: i32) -> Listing<Key> {
    Listing { entries: vec![entry.clone()], covers: order(lock.czxid, last) }
}

/// Whether a node is a Curator writer's. While it holds, its thread may come to read as well, with a
/// node that has the same number; if it then stops to write, that reader has the writer's place.
pub(crate) fn is_curator_writer(name: &str) -> bool {
    split(name).is_some_and(|(rest, _)| rest.ends_with(CURATOR_WRITER))
}

/// The reader among `children` that has the number of this writer.
pub(crate) fn reader_in_place_of<'a>(writer: &str, children: &'a [String]) -> Option<&'a str> {
    let wanted = number(writer)?;
    let mut names = children.iter().map(String::as_str);
    names.find(|name| {
        split(name).is_some_and(|(rest, number)| number == wanted && rest.ends_with(CURATOR_READER))
    })
}

/// The number at the end of a node's name or path.
pub(crate) fn number(name: &str) -> Option<i32> {
    split(name).map(|(_, number)| number)
}

/// One node of a queue.
struct Node {
    name: String,
    number: i32,
    mode: Mode,
    owner: Option<OwnerId>,
    /// Its place in [`KINDS`].
    kind: usize,
}

impl Node {
    /// `None` for a node that is in no queue.
    fn read(name: String) -> Option<Self> {
        let (rest, number) = split(&name)?;
        let kind = KINDS.iter().position(|(ending, _)| rest.ends_with(ending));
        let mode = match kind {
            Some(kind) => KINDS[kind].1,
            None => permits(rest)?,
        };
        let (owner, kind) = (owner(rest), kind.unwrap_or(KINDS.len()));
        Some(Self { number, mode, owner, kind, name })
    }

    fn sort_key(&self) -> (u32, bool, &str) {
        (self.number.cast_unsigned(), self.mode != Mode::Exclusive, &self.name)
    }

    /// Whether this and the next node belong to one claim: they were created together, or the next one by a
    /// downgrade.
    fn is_followed_by(&self, next: &Self) -> bool {
        let adjacent = self.number.checked_add(1) == Some(next.number);
        let downgraded = self.is(LOCK) && next.is(CURATOR_READER);
        self.owner.is_some()
            && self.owner == next.owner
            && self.kind < next.kind
            && match downgraded {
                true => adjacent || self.number == next.number,
                false => adjacent && self.mode == next.mode,
            }
    }

    fn is(&self, kind: &str) -> bool {
        KINDS.get(self.kind).is_some_and(|(ending, _)| *ending == kind)
    }
}

/// What stands before the number, and the number. One that ran over is negative.
fn split(name: &str) -> Option<(&str, i32)> {
    let (rest, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let minus = rest.ends_with("--") || rest.ends_with("__-");
    let rest = if minus { &rest[..rest.len() - 1] } else { rest };
    let size: i64 = digits.parse().ok()?;
    Some((rest, i32::try_from(if minus { -size } else { size }).ok()?))
}

fn permits(rest: &str) -> Option<Mode> {
    let (before, of) = rest.strip_suffix('-')?.rsplit_once('-')?;
    let (before, take) = before.rsplit_once('-')?;
    before.ends_with("permits").then_some(())?;
    Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
}

/// Curator's protection id, or kazoo's.
fn owner(rest: &str) -> Option<OwnerId> {
    let hex = match rest.strip_prefix("_c_") {
        Some(rest) => rest.get(..36)?.replace('-', ""),
        None => rest.get(..32)?.to_owned(),
    };
    hex.parse().ok()
}

/// An owner's id in the form of a UUID.
fn dashed(owner: OwnerId) -> String {
    let hex = owner.to_string();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// From which numbers on something is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// After the removal of an entry with a number above this, the lock's node is deleted if it has
    /// no other children.
    pub(crate) renew: i32,
    /// An entry with a number above this is refused.
    pub(crate) last: i32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { renew: i32::MAX / 2, last: i32::MAX - 1_000_000 }
    }
}

impl Limits {
    /// Whether this number is too near the end, or past it.
    pub(crate) const fn are_passed(self, number: i32) -> bool {
        number > self.last || number < 0
    }
}

pub(crate) fn used_up(operation: &'static str, lock: &str) -> Error {
    let why = format!(
        "ZooKeeper's numbers below {lock} are nearly used up: when no claim holds or waits, delete \
         that node, and they begin anew"
    );
    Error::new(ErrorKind::Full, operation, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_core::LockName;

    const UUID: &str = "0123abcd-0123-4567-89ab-0123456789ab";
    const CREATED: i64 = 0x4_0000_0017;

    fn claim(mode: Mode) -> Claim {
        Claim::new(LockName::new("a").unwrap(), mode, Duration::from_secs(30))
    }

    /// The state of a lock's node that has given out so many numbers.
    fn lock(given: u32, children: usize) -> Stat {
        let children = i32::try_from(children).unwrap();
        let cversion = given.cast_signed().wrapping_mul(2).wrapping_sub(children);
        Stat { czxid: CREATED, cversion, num_children: children, ..Stat::default() }
    }

    fn queue(children: &[&str]) -> Vec<Entry<Key>> {
        let names: Vec<String> = children.iter().map(|name| (*name).to_owned()).collect();
        listing(names, &lock(100, children.len())).entries
    }

    fn numbers(entries: &[Entry<Key>]) -> Vec<Option<i32>> {
        entries.iter().map(|entry| number(&entry.key[0])).collect()
    }

    #[test]
    fn our_names_are_read_as_they_were_made() {
        let all = Compat { curator_rw: true, kazoo: true };
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 30 }] {
            for compat in [Compat::default(), all] {
                let claim = claim(mode);
                let stems = stems(&claim, compat);
                let children: Vec<String> =
                    (7..).zip(&stems).map(|(number, name)| format!("{name}{number:010}")).collect();
                let listed = listing(children.clone(), &lock(20, children.len()));
                let [entry] = &listed.entries[..] else { panic!("one claim: {listed:?}") };
                assert_eq!((entry.mode, entry.order), (mode, order(CREATED, 7)));
                assert_eq!((entry.owner, &entry.key[..]), (Some(claim.owner), &children[..]));
                assert!(listed.covers > order(CREATED, 19) && listed.covers < order(CREATED, 20));
            }
        }
    }

    #[test]
    fn a_downgraded_writer_is_one_shared_entry_in_its_place() {
        for (curator_rw, kazoo) in [(false, false), (true, false), (false, true), (true, true)] {
            let claim = claim(Mode::Exclusive);
            let stems = stems(&claim, Compat { curator_rw, kazoo });
            let writer: Vec<String> =
                (7..).zip(&stems).map(|(number, name)| format!("{name}{number:010}")).collect();
            let reader = reader_nodes(&writer);
            assert_eq!(reader[0], writer[0], "the node that is watched stays");
            let next = "x-lock-0000000011".to_owned();
            let mut children = reader.clone();
            children.insert(0, next.clone());
            let listed = listing(children, &lock(20, reader.len() + 1));
            let [entry, behind] = &listed.entries[..] else { panic!("two claims: {listed:?}") };
            assert_eq!((entry.mode, entry.order), (Mode::Shared, order(CREATED, 7)));
            assert_eq!((entry.owner, &entry.key[..]), (Some(claim.owner), &reader[..]));
            assert_eq!(behind.key[0], next);
            // What is not there any more after the downgrade is what the reader's nodes stand for.
            let replaced: Vec<String> =
                reader[1..].iter().filter_map(|node| replaced_by(node, &reader[0])).collect();
            assert_eq!(replaced, writer[1..]);
            assert_eq!(reader_nodes(&reader), reader, "a reader stays one");
        }
    }

    #[test]
    fn nodes_of_one_owner_that_were_not_created_together_are_two_entries() {
        let again = [
            format!("_c_{UUID}-lock-0000000003"),
            format!("_c_{UUID}-lock-0000000004"),
            format!("_c_{UUID}-__WRIT__0000000006"),
        ];
        assert_eq!(queue(&again.each_ref().map(String::as_str)).len(), 3);
    }

    #[test]
    fn the_nodes_of_other_clients_are_known() {
        let curator = format!("_c_{UUID}-lock-0000000003");
        let reader = format!("_c_{UUID}-__READ__0000000001");
        let writer = format!("_c_{UUID}-__WRIT__0000000002");
        let kazoo = "0123abcd0123456789ab0123456789ac__lock__0000000004";
        let kazoo_reader = "0123abcd0123456789ab0123456789ad__rlock__0000000005";
        let bare = "lock-0000000000";
        let queue = queue(&[&curator, &writer, kazoo, &reader, bare, kazoo_reader, "x", "leases"]);
        assert_eq!(numbers(&queue), [0, 1, 2, 3, 4, 5].map(Some));
        assert_eq!(queue[0].owner, None);
        assert_eq!(queue[1].owner.unwrap().to_string(), UUID.replace('-', ""));
        let modes: Vec<bool> = queue.iter().map(|entry| entry.mode == Mode::Shared).collect();
        assert_eq!(modes, [false, true, false, false, false, true]);
    }

    #[test]
    fn a_reader_with_the_number_of_its_writer_comes_after_it() {
        let reader = "_c_11111111-0123-4567-89ab-0123456789ab-__READ__0000000002";
        let writer = "_c_22222222-0123-4567-89ab-0123456789ab-__WRIT__0000000002";
        let queue = queue(&[reader, writer, "x-lock-0000000003"]);
        assert_eq!(queue[0].key[0], writer);
        let orders: Vec<Order> = queue.iter().map(|entry| entry.order).collect();
        assert!(orders.is_sorted_by(|one, next| one < next), "{orders:?}");
    }

    #[test]
    fn numbers_that_ran_over_are_negative_and_come_last() {
        for name in ["lock--2147483648", "x__lock__-2147483648", "p-permits-1-2--2147483648"] {
            assert_eq!(numbers(&queue(&[name])), [Some(i32::MIN)], "{name}");
        }
        let both = queue(&["lock--2147483648", "lock-2147483647"]);
        assert_eq!(numbers(&both), [Some(i32::MAX), Some(i32::MIN)]);
        for foreign in ["lock-12", "lock-9999999999", "", "0000000001", "lock-00000é0001"] {
            assert_eq!(queue(&[foreign]), [], "{foreign}");
        }
    }

    #[test]
    fn a_listing_covers_the_numbers_given_so_far_and_none_of_a_later_node() {
        for given in [0, 1, 7, (1 << 30) + 3, (1 << 31) - 1] {
            let state = lock(given, 0);
            assert_eq!(numbers_given(&state), given);
            let covers = listing(Vec::new(), &state).covers;
            assert!(given == 0 || covers >= order(CREATED, given.cast_signed() - 1), "{given}");
            assert!(covers < order(CREATED, given.cast_signed()), "{given}");
        }
        assert!(listing(Vec::new(), &lock(u32::MAX >> 1, 0)).covers < order_before(CREATED + 1));
    }

    #[test]
    fn numbers_that_ran_over_are_past_the_limit() {
        let limits = Limits::default();
        assert!(!limits.are_passed(17));
        assert!(limits.are_passed(i32::MAX) && limits.are_passed(i32::MIN));
    }
}
