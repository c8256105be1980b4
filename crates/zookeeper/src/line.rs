//! A line of nodes: their names, and what they mean.
//!
//! All that is decided about a lock is decided by the names of its children, so that one listing is
//! enough. The numbers are ZooKeeper's: it counts the children that a node ever had.

use tenure_core::{Claim, Mode, OwnerId};
use tenure_proto::{Obstacle, admitted, obstacle};

use crate::config::Neighbours;

/// What our nodes' names begin with, before the number. Each is in the line for others to see; for
/// us one is enough. The first is the one that is watched and counted.
pub(crate) fn names(claim: &Claim, neighbours: Neighbours) -> Vec<String> {
    let curator = |kind: &str| format!("_c_{}-{kind}", dashed(claim.owner));
    let kazoo = |kind: &str| format!("{}{kind}", claim.owner);
    let Neighbours { curator_rw, kazoo: beside_kazoo } = neighbours;
    let mut names = Vec::new();
    match claim.mode {
        Mode::Exclusive => {
            names.push(curator("lock-"));
            names.extend(curator_rw.then(|| curator("__WRIT__")));
            names.extend(beside_kazoo.then(|| kazoo("__lock__")));
        }
        Mode::Shared => {
            names.push(curator("__READ__"));
            names.extend(beside_kazoo.then(|| kazoo("__rlock__")));
        }
        Mode::Permits { take, of } => names.push(curator(&format!("permits-{take}-{of}-"))),
    }
    names
}

/// One who holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The names of its nodes, in the order of their numbers.
    pub(crate) nodes: Vec<String>,
    pub(crate) number: i32,
    pub(crate) mode: Mode,
    /// Who it is, where the name tells.
    pub(crate) owner: Option<OwnerId>,
}

impl Entry {
    /// `None` for a node that stands in no line.
    fn read(name: &str) -> Option<Self> {
        let (rest, number) = split(name)?;
        let is_one_of = |kinds: &[&str]| kinds.iter().any(|kind| rest.ends_with(kind));
        let mode = if is_one_of(&["lock-", "__lock__", "__WRIT__"]) {
            Mode::Exclusive
        } else if is_one_of(&["__READ__", "__rlock__"]) {
            Mode::Shared
        } else {
            permits(rest)?
        };
        Some(Self { nodes: vec![name.into()], number, mode, owner: owner(rest) })
    }

    /// Who it is, for people: the owner's id, or else the name of the node.
    pub(crate) fn spelled(&self) -> String {
        self.owner.map_or_else(|| self.nodes.concat(), |owner| owner.to_string())
    }
}

/// All who hold or wait, first come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) Vec<Entry>);

impl Line {
    pub(crate) fn read(children: &[String]) -> Self {
        let mut entries: Vec<Entry> =
            children.iter().filter_map(|name| Entry::read(name)).collect();
        // Curator gives a reader that writes already the number of its writer.
        entries.sort_by_key(|entry| (entry.number, entry.mode != Mode::Exclusive));
        let mut line: Vec<Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            // The nodes of one claim were created together: they have numbers in a row.
            match line.last_mut().filter(|last| last.owner.is_some() && last.owner == entry.owner) {
                Some(last) => last.nodes.extend(entry.nodes),
                None => line.push(entry),
            }
        }
        Self(line)
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<usize> {
        self.0.iter().position(|entry| entry.owner == Some(owner))
    }

    /// How many of them hold the lock.
    pub(crate) fn inside(&self) -> usize {
        admitted(self.0.iter().map(|entry| entry.mode))
    }

    /// What keeps the one at this place out. `None`: it holds.
    pub(crate) fn obstacle(&self, place: usize) -> Option<Obstacle> {
        let modes: Vec<Mode> = self.0[..place].iter().map(|entry| entry.mode).collect();
        obstacle(&modes, self.0[place].mode)
    }

    /// Whether one that comes now and wants this need not wait.
    pub(crate) fn has_room_for(&self, mode: Mode) -> bool {
        let modes: Vec<Mode> = self.0.iter().map(|entry| entry.mode).collect();
        obstacle(&modes, mode).is_none()
    }
}

/// The number at the end of a node's name or path.
pub(crate) fn number(name: &str) -> Option<i32> {
    split(name).map(|(_, number)| number)
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
pub(crate) fn dashed(owner: OwnerId) -> String {
    let hex = owner.to_string();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_core::{LockName, Origin};

    const UUID: &str = "0123abcd-0123-4567-89ab-0123456789ab";

    fn claim(mode: Mode) -> Claim {
        Claim {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::random(),
            mode,
            ttl: Duration::from_secs(30),
            origin: Origin::here(),
            label: "".into(),
        }
    }

    fn line(children: &[&str]) -> Line {
        Line::read(&children.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn our_names_are_read_as_they_were_made() {
        let all = Neighbours { curator_rw: true, kazoo: true };
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 30 }] {
            for neighbours in [Neighbours::default(), all] {
                let claim = claim(mode);
                let names = names(&claim, neighbours);
                let children: Vec<String> =
                    (7..).zip(&names).map(|(number, name)| format!("{name}{number:010}")).collect();
                let line = Line::read(&children);
                let [entry] = &line.0[..] else { panic!("one claim: {line:?}") };
                assert_eq!((entry.mode, entry.number), (mode, 7));
                assert_eq!((entry.owner, &entry.nodes), (Some(claim.owner), &children));
                assert_eq!(line.find(claim.owner), Some(0));
            }
        }
    }

    #[test]
    fn the_nodes_of_other_clients_are_known() {
        let curator = format!("_c_{UUID}-lock-0000000003");
        let reader = format!("_c_{UUID}-__READ__0000000001");
        let writer = format!("_c_{UUID}-__WRIT__0000000002");
        let kazoo = "0123abcd0123456789ab0123456789ac__lock__0000000004";
        let kazoo_reader = "0123abcd0123456789ab0123456789ad__rlock__0000000005";
        let bare = "lock-0000000000";
        let line = line(&[&curator, &writer, kazoo, &reader, bare, kazoo_reader, "x", "leases"]);
        let numbers: Vec<i32> = line.0.iter().map(|entry| entry.number).collect();
        // One id in a row is one claim: nobody else has this id.
        assert_eq!(numbers, [0, 1, 4, 5]);
        assert_eq!(line.0[0].spelled(), bare);
        assert_eq!(line.0[1].spelled(), UUID.replace('-', ""));
        assert_eq!(line.0[3].mode, Mode::Shared);
    }

    #[test]
    fn numbers_that_ran_over_are_negative() {
        for name in ["lock--2147483648", "x__lock__-2147483648", "p-permits-1-2--2147483648"] {
            assert_eq!(line(&[name]).0[0].number, i32::MIN, "{name}");
        }
        assert_eq!(line(&["lock-2147483647"]).0[0].number, i32::MAX);
        for stranger in ["lock-12", "lock-9999999999", "", "0000000001", "lock-00000é0001"] {
            assert_eq!(line(&[stranger]), Line::default(), "{stranger}");
        }
    }

    #[test]
    fn who_holds_is_seen_in_the_line() {
        let shared = line(&["a-__READ__0000000001", "b-__READ__0000000002", "c-lock-0000000003"]);
        assert_eq!(shared.inside(), 2);
        assert_eq!(shared.obstacle(1), None);
        assert_eq!(shared.obstacle(2), Some(Obstacle::Leaves(1)));
        assert!(!shared.has_room_for(Mode::Shared), "a writer waits before it");
        let permits = line(&["a-permits-1-2-0000000001", "b-permits-2-2-0000000002"]);
        assert_eq!(permits.inside(), 1);
        assert_eq!(permits.obstacle(1), Some(Obstacle::Holders));
    }
}
