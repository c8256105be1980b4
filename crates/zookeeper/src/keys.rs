//! Where nodes are and how they are made, such that no lock's nodes are among another's.

use tenure_core::store::CellKey;
use tenure_core::{Error, ErrorKind, LockName, Result};
use tenure_ordered::{decode_name, encode_name};

use crate::config::{Access, ZooKeeperConfig};
use crate::wire::{Acl, Create, CreateMode};

/// The paths of one store's nodes, and the access that they are created with.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The node that locks are children of; empty for the root.
    folder: String,
    /// What the name of every lock's node begins with.
    stem: String,
    access: Access,
    /// The kind of a lock's own node.
    lock_mode: CreateMode,
}

impl Layout {
    pub(crate) fn new(config: &ZooKeeperConfig) -> Result<Self> {
        let below = config.prefix.trim_start_matches('/');
        let whole = format!("{}/{below}", config.chroot.trim_end_matches('/'));
        let (folder, stem) = whole.rsplit_once('/').unwrap_or(("", ""));
        let sound = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_allowed);
        let folders = folder.is_empty()
            || folder.strip_prefix('/').is_some_and(|parts| parts.split('/').all(sound));
        if !folders || !stem.chars().all(is_allowed) {
            let why = "the chroot or the prefix is no path: no empty parts, no . or .., no \
                       control characters";
            return Err(Error::new(ErrorKind::Invalid, "use this ZooKeeper store", why));
        }
        let lock_mode = config.compat.lock_mode();
        Ok(Self { folder: folder.into(), stem: stem.into(), access: config.access, lock_mode })
    }

    /// The node whose children are a lock's queue.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}{}", self.folder, self.stem, encode(&self.stem, name.as_str()))
    }

    /// The record of evictions from a lock. No lock has a name that is encoded like this.
    pub(crate) fn audit(&self, name: &LockName) -> String {
        format!("{}/{}%audit/{}", self.folder, self.stem, encode("", name.as_str()))
    }

    /// The node of a cell. No lock has a name that is encoded like this.
    pub(crate) fn cell(&self, key: &CellKey) -> String {
        let (space, name) = (key.space.as_str(), encode("", key.name.as_str()));
        format!("{}/{}%{space}/{name}", self.folder, self.stem)
    }

    /// The node that says what a session has lost by force.
    pub(crate) fn loss_channel(&self, session: i64) -> String {
        format!("{}/{}%holder-{session:x}", self.folder, self.stem)
    }

    /// A session's write fence with this number.
    pub(crate) fn fence(&self, session: i64, number: u64) -> String {
        format!("{}/{}%fence-{session:x}-{number}", self.folder, self.stem)
    }

    /// The node that locks are children of.
    pub(crate) fn folder(&self) -> &str {
        if self.folder.is_empty() { "/" } else { &self.folder }
    }

    /// The lock that a child of the folder belongs to, if it belongs to one.
    pub(crate) fn lock_of(&self, child: &str) -> Option<LockName> {
        let encoded = child.strip_prefix(self.stem.as_str())?;
        decode_name(encoded, |name| encode(&self.stem, name))
    }

    /// What creates a node.
    pub(crate) fn create(&self, path: &str, data: &[u8], mode: CreateMode) -> Create {
        let acl = match self.access {
            Access::World => Acl::anyone_all(),
            Access::Creator => Acl::creator_all(),
        };
        Create { path: path.into(), data: data.into(), acl, mode }
    }

    /// What creates a lock's own node.
    pub(crate) fn create_lock(&self, path: &str) -> Create {
        self.create(path, b"", self.lock_mode)
    }
}

/// The path of the node that a node is a child of.
pub(crate) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// Every node that must be there for this one to be created, the outermost first, and this one.
pub(crate) fn with_ancestors(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.match_indices('/').map(|(end, _)| &path[..end]);
    inner.chain([path]).filter(|path| !matches!(*path, "" | "/"))
}

/// ZooKeeper refuses what Java has to write as a surrogate, private characters and a few more.
const fn is_allowed(c: char) -> bool {
    !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// What ZooKeeper takes for something else, or refuses, in the way of URLs.
fn encode(stem: &str, name: &str) -> String {
    let is_reserved = |node: &str| matches!(node, "." | ".." | "zookeeper");
    let reserved = is_reserved(name) || is_reserved(&format!("{stem}{name}"));
    encode_name(name, |place, c| !is_allowed(c) || (reserved && place == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(chroot: &str, prefix: &str) -> Result<Layout> {
        let mut config = ZooKeeperConfig::new(Vec::new());
        (config.chroot, config.prefix) = (chroot.into(), prefix.into());
        Layout::new(&config)
    }

    fn name(text: &str) -> LockName {
        text.parse().unwrap()
    }

    #[test]
    fn every_name_has_a_path_of_its_own_and_is_read_back_from_it() {
        let names = ["a", "a/", "a/b", "%", "%25", "%2F", ".", "..", "...", "zookeeper", "%audit"];
        let odd = ["🔒", "\u{e000}", "\u{fffd}", "é", " ", "-lock-0000000001"];
        for prefix in ["tenure/", "", "app-", "/a/b-"] {
            let layout = layout("/root", prefix).unwrap();
            let mut paths: Vec<_> = names.iter().chain(&odd).map(|one| name(one)).collect();
            for one in &mut paths {
                let path = layout.lock(one);
                let (above, child) = path.rsplit_once('/').unwrap();
                assert_eq!(above, layout.folder());
                assert!(child.chars().all(is_allowed) && !matches!(child, "." | ".."), "{child}");
                assert_eq!(layout.lock_of(child).as_ref(), Some(&*one));
            }
            for other in
                [layout.audit(&name("a")), layout.loss_channel(0x17), layout.fence(0x17, 3)]
            {
                let child = other[layout.folder().len() + 1..].split('/').next().unwrap();
                assert_eq!(layout.lock_of(child), None, "{child}");
            }
            assert_eq!(layout.lock_of("tenure/%2f"), None, "there is one spelling");
        }
        assert_eq!(layout("", "").unwrap().lock(&name("zookeeper")), "/%7Aookeeper");
        assert_eq!(layout("", "zoo").unwrap().lock(&name("keeper")), "/zoo%6Beeper");
        assert_eq!(layout("", ".").unwrap().lock(&name(".")), "/.%2E");
    }

    #[test]
    fn a_chroot_and_a_prefix_make_a_path() {
        let path = |chroot, prefix| layout(chroot, prefix).unwrap().lock(&name("a"));
        assert_eq!(path("", "tenure/"), "/tenure/a");
        assert_eq!(path("", "/tenure/"), "/tenure/a");
        assert_eq!(path("/x/y", ""), "/x/y/a");
        assert_eq!(path("/x/", "y-"), "/x/y-a");
        assert_eq!(layout("", "").unwrap().folder(), "/");
        for (chroot, prefix) in [("/x//y", ""), ("/..", ""), ("", "a//"), ("", "a\nb"), ("x", "")] {
            assert!(layout(chroot, prefix).is_err(), "{chroot} {prefix}");
        }
        assert_eq!((parent("/a"), parent("/a/b")), ("/", "/a"));
        assert_eq!(with_ancestors("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(with_ancestors("/").count(), 0);
    }
}
