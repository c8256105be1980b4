//! The releases of the clients that ours are compared with, as the files name them that fetch them.

/// A client, the file that names its release, and the text before that.
const CLIENTS: [(&str, &str, &str); 11] = [
    ("rslock", include_str!("../../../Cargo.lock"), "name = \"rslock\"\nversion = \""),
    ("redsync", include_str!("../../../interop/go/go.mod"), "go-redsync/redsync/v4 v"),
    ("bsm/redislock", include_str!("../../../interop/go/go.mod"), "bsm/redislock v"),
    ("redis-py", include_str!("../../../interop/python/requirements.txt"), "\nredis=="),
    ("python-redis-lock", include_str!("../../../interop/python/requirements.txt"), "redis-lock=="),
    ("kazoo", include_str!("../../../interop/python/requirements.txt"), "kazoo=="),
    ("node-redlock", include_str!("../../../interop/node/package.json"), "\"redlock\": \""),
    (
        "Curator",
        include_str!("../../../interop/java/pom.xml"),
        "curator-recipes</artifactId>\n      <version>",
    ),
    (
        "jetcd",
        include_str!("../../../interop/jetcd/pom.xml"),
        "jetcd-core</artifactId>\n      <version>",
    ),
    ("etcd's Go client", include_str!("../../../interop/go-etcd/go.mod"), "etcd/client/v3 v"),
    ("Redisson", crate::contest::REDISSON_DRIVER, "redisson-"),
];

/// Each client with its release.
pub(crate) fn releases() -> Vec<String> {
    let release = |(name, file, before): &(&str, &str, &str)| {
        let (_, rest) = file.split_once(before)?;
        let end =
            rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || ".-".contains(letter)));
        Some(format!("{name} {}", &rest[..end.unwrap_or(rest.len())]))
    };
    CLIENTS.iter().filter_map(release).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_a_release() {
        let releases = releases();
        assert_eq!(releases.len(), CLIENTS.len(), "{releases:?}");
        for release in releases {
            let (_, number) = release.rsplit_once(' ').unwrap();
            assert!(number.starts_with(|first: char| first.is_ascii_digit()), "{release}");
            assert!(number.split('.').count() >= 3, "{release}");
        }
    }
}
