//! Lock names are opaque: no character in them has a meaning.

use tenure_core::store::Released;
use tenure_core::{LockName, Mode};

use crate::Fixture;
use crate::fixture::{claim, raw};

/// Names that a careless store takes for a path, a pattern, a query, or for each other.
fn unusual_names() -> Vec<LockName> {
    let long = "x".repeat(LockName::MAX_BYTES);
    let longer_twin = format!("{}y", &long[1..]);
    let mut names: Vec<LockName> = [
        "../../x",
        "x",
        "..",
        ".",
        "/",
        "//",
        "a",
        "a/",
        "/a",
        "a/b",
        "a/b/",
        "a//b",
        "a%2Fb",
        "%2F",
        "%",
        "%252F",
        " ",
        "  ",
        "a ",
        " a",
        "A",
        "é",
        "e\u{301}",
        "ключ",
        "锁",
        "🔒",
        "'; DROP",
        "\"",
        "`id`",
        "$(id)",
        "*",
        "?",
        "[a]",
        "a:b",
        "a::b",
        "a\\b",
        "\\",
        "name?x=y#z",
        "name",
        "name?x=y",
        "#",
        "-",
        "--help",
        "a,b",
        "a|b",
        "a&b",
        "a=b",
        "_",
        "a_b",
        "a.b",
        "a.lock",
        "a.tmp",
        "nul",
        "zookeeper",
        "\u{202e}",
        "\u{feff}",
        "\u{a0}",
        "0",
        "null",
        "1e3",
    ]
    .map(|name| name.parse().unwrap())
    .into();
    names.extend([long.parse().unwrap(), longer_twin.parse().unwrap()]);
    names
}

/// Each of these names is a lock of its own: it is held while all the others are, `inspect` and
/// `list` show it under exactly this name, and its release affects no other lock.
pub async fn unusual_names_are_distinct_locks(fixture: &dyn Fixture) {
    let raw = raw(fixture).await;
    let claims: Vec<_> =
        unusual_names().into_iter().map(|name| claim(&name, Mode::Exclusive)).collect();
    for claim in &claims {
        raw.hold(claim).await;
    }
    let all = raw.list("").await;
    for claim in &claims {
        raw.assert_owners(&claim.name, &[claim], &[]).await;
        assert!(all.contains(&claim.name), "{:?} is not in {all:?}", claim.name);
        assert!(raw.list(claim.name.as_str()).await.contains(&claim.name));
    }
    for (done, claim) in claims.iter().enumerate() {
        raw.release_held(claim).await;
        raw.assert_free(&claim.name).await;
        assert_eq!(raw.release(claim).await, Released::NotHeld);
        if let Some(next) = claims.get(done + 1) {
            raw.assert_owners(&next.name, &[next], &[]).await;
        }
    }
}
