//! How etcd's own tool writes a fence.

use tenure_core::Fence;

/// A fence as `etcdctl txn` reads it: a comparison of the key's create revision. `None` for the fence
/// of another store.
pub fn etcdctl(fence: &Fence) -> Option<String> {
    let (key, revision) = fence.create_revision()?;
    Some(format!("create({key:?}) = \"{revision}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_written_as_etcdctl_reads_it() {
        let fence = Fence::CreateRevision { key: "tenure/a \"b\"/1".into(), revision: 7 };
        assert_eq!(etcdctl(&fence).unwrap(), r#"create("tenure/a \"b\"/1") = "7""#);
        assert_eq!(etcdctl(&Fence::Exists { path: "/a".into() }), None);
    }
}
