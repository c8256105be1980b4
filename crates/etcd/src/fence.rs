//! How etcd's own tool writes a fence.

use tenure_core::Fence;

/// A fence as `etcdctl txn` reads it: the key's create revision is the fence's.
pub fn etcdctl(fence: &Fence) -> String {
    format!("create({:?}) = \"{}\"", fence.key(), fence.revision())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_written_as_etcdctl_reads_it() {
        let fence = Fence::new("tenure/a \"b\"/1".into(), 7);
        assert_eq!(etcdctl(&fence), r#"create("tenure/a \"b\"/1") = "7""#);
    }
}
