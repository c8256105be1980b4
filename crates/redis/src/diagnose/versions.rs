//! Servers that are too old, and the known flaws of their script engines.

use tenure_core::Finding;

use super::facts::Facts;

type Version = (u32, u32, u32);

/// Vulnerabilities of the script engine (as published until November 2026), and the first fixed version of each
/// release line. A line that is missing here, and is older than the last one listed, has no fix.
struct Flaws {
    names: &'static str,
    redis: &'static [Version],
    valkey: &'static [Version],
}

const FLAWS: [Flaws; 6] = [
    Flaws { names: "CVE-2022-24735, CVE-2022-24736", redis: &[(6, 2, 7), (7, 0, 0)], valkey: &[] },
    Flaws { names: "CVE-2022-24834", redis: &[(6, 2, 13), (7, 0, 12)], valkey: &[] },
    Flaws {
        names: "CVE-2024-31449",
        redis: &[(6, 2, 16), (7, 2, 6), (7, 4, 1)],
        valkey: &[(7, 2, 7), (8, 0, 1)],
    },
    Flaws {
        names: "CVE-2024-46981",
        redis: &[(6, 2, 17), (7, 2, 7), (7, 4, 2)],
        valkey: &[(7, 2, 8), (8, 0, 2)],
    },
    Flaws {
        names: "CVE-2025-46817, CVE-2025-46818, CVE-2025-46819, CVE-2025-49844",
        redis: &[(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)],
        valkey: &[(7, 2, 11), (8, 0, 6), (8, 1, 4)],
    },
    Flaws {
        names: "CVE-2026-23631",
        redis: &[(7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3), (8, 8, 0)],
        valkey: &[(8, 1, 7), (9, 0, 4)],
    },
];

/// The oldest version that tenure is tested on.
const OLDEST: Version = (6, 2, 0);
/// The first version of which a Cluster has sharded channels.
const SHARDED: Version = (7, 0, 0);

/// Whether the server is new enough for the commands that are used.
pub(super) fn age(facts: &Facts, cluster: bool) -> Option<Finding> {
    // The first Valkey is newer than either.
    let (shown, version, is_valkey) = product(facts)?;
    let upgrade = |least| format!("upgrade to {} or later", show(least));
    Some(if is_valkey || version >= if cluster { SHARDED } else { OLDEST } {
        Finding::fine(format!("the server is new enough ({shown})"))
    } else if version >= OLDEST {
        let what = format!(
            "this Cluster has no sharded channels ({shown}): the message of every hand-off goes \
             through all of its nodes"
        );
        Finding::advice(what, upgrade(SHARDED))
    } else {
        let what = format!("the server is too old ({shown}): tenure needs 6.2 or later");
        Finding::danger(what, upgrade(OLDEST))
    })
}

/// Whether the script engine of this version has known vulnerabilities.
pub(super) fn script_engine(facts: &Facts) -> Option<Finding> {
    let (shown, version, is_valkey) = product(facts)?;
    let fixes = |flaws: &Flaws| if is_valkey { flaws.valkey } else { flaws.redis };
    let open = FLAWS.iter().filter(|flaws| is_open(version, fixes(flaws)));
    let (names, good): (Vec<_>, Vec<_>) =
        open.map(|f| (f.names, upgrade(version, fixes(f)))).unzip();
    let Some(good) = good.into_iter().max() else {
        return Some(Finding::fine(format!(
            "no vulnerability of its script engine is known to tenure ({shown})"
        )));
    };
    Some(Finding::advice(
        format!(
            "the script engine of {shown} has known vulnerabilities ({}): a user that may run scripts \
             may take over the server. A distribution may have fixed them under the same number",
            names.join(", ")
        ),
        format!(
            "upgrade to {} or later, or see your distribution's security notes; let only the \
             users that lock run EVAL",
            show(good)
        ),
    ))
}

/// Whether this version formats integers of scripts correctly (redis#13115).
pub(super) fn numbers(facts: &Facts) -> Option<Finding> {
    let (shown, version, is_valkey) = product(facts)?;
    let fixed = if is_valkey { (7, 2, 6) } else { (7, 2, 5) };
    ((7, 2, 0)..fixed).contains(&version).then(|| {
        Finding::advice(
            format!(
                "{shown} formats some numbers of scripts in scientific notation (redis#13115): \
                 tenure formats its own, but other programs' scripts may damage their data"
            ),
            format!("upgrade to {} or later", show(fixed)),
        )
    })
}

/// The server's name and version in words, its version, and whether it is Valkey.
pub(super) fn product(facts: &Facts) -> Option<(String, Version, bool)> {
    if let Some(version) = facts.info("valkey_version").and_then(parse) {
        return Some((format!("Valkey {}", show(version)), version, true));
    }
    let version = parse(facts.info("redis_version")?)?;
    Some((format!("Redis {}", show(version)), version, false))
}

fn is_open(version: Version, fixes: &[Version]) -> bool {
    match fixes.iter().find(|fix| (fix.0, fix.1) == (version.0, version.1)) {
        Some(fix) => version < *fix,
        None => fixes.last().is_some_and(|last| version < *last),
    }
}

/// The fixed version of this release line, or of the next line that has one.
fn upgrade(version: Version, fixes: &[Version]) -> Version {
    let line = (version.0, version.1);
    let fix = fixes.iter().find(|fix| (fix.0, fix.1) >= line);
    fix.copied().unwrap_or(version)
}

fn parse(text: &str) -> Option<Version> {
    let mut parts = text.split(['.', '-']).map(str::parse);
    let mut part = || parts.next()?.ok();
    Some((part()?, part()?, part().unwrap_or(0)))
}

fn show((major, minor, patch): Version) -> String {
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Severity::{Advice, Fine, Unsafe};

    fn redis(version: &str) -> Facts {
        Facts::new("a", &format!("redis_version:{version}\r\n"), &[])
    }

    #[test]
    fn servers_that_lack_commands_are_unsafe() {
        let severity = |version, cluster| age(&redis(version), cluster).unwrap().severity;
        assert_eq!(severity("6.0.16", false), Unsafe);
        assert_eq!(severity("6.0.16", true), Unsafe);
        assert_eq!((severity("6.2.0", false), severity("6.2.14", true)), (Fine, Advice));
        assert_eq!((severity("7.0.0", true), severity("8.2.2", true)), (Fine, Fine));
        assert!(age(&Facts::new("a", "", &[]), false).is_none());
        assert!(age(&redis("nonsense"), false).is_none());
    }

    #[test]
    fn vulnerabilities_are_reported_below_the_fixed_version_of_the_release_line() {
        let found = |version| script_engine(&redis(version)).unwrap();
        for good in ["7.4.9", "8.2.6", "8.4.3", "8.6.3", "8.8.0", "9.0.0"] {
            assert_eq!(found(good).severity, Fine, "{good}");
        }
        for (bad, names, remedy) in [
            ("6.2.6", "CVE-2022-24735", "7.4.9"),
            ("6.2.15", "CVE-2024-31449", "7.4.9"),
            ("6.2.20", "CVE-2026-23631", "7.4.9"),
            ("7.0.15", "CVE-2024-31449", "7.4.9"),
            ("7.2.6", "CVE-2024-46981", "7.4.9"),
            ("7.2.11", "CVE-2026-23631", "7.4.9"),
            ("7.4.5", "CVE-2025-49844", "7.4.9"),
            ("7.4.8", "CVE-2026-23631", "7.4.9"),
            ("8.0.4", "CVE-2026-23631", "8.2.6"),
            ("8.2.1", "CVE-2025-49844", "8.2.6"),
            ("8.6.2", "CVE-2026-23631", "8.6.3"),
        ] {
            let found = found(bad);
            assert_eq!(found.severity, Advice, "{bad}");
            assert!(found.what.contains(names) && found.remedy.contains(remedy), "{found:?}");
        }
        assert!(!found("7.0.15").what.contains("CVE-2022"));
        assert!(!found("7.2.6").what.contains("CVE-2024-31449"));
        assert!(!found("7.2.11").what.contains("CVE-2025"));
    }

    #[test]
    fn versions_that_format_numbers_wrongly_are_reported() {
        for (version, told) in
            [("7.0.15", false), ("7.2.0", true), ("7.2.4", true), ("7.2.5", false)]
        {
            let found = numbers(&redis(version));
            assert_eq!(found.is_some(), told, "{version}");
            assert!(found.is_none_or(|it| it.remedy.contains("7.2.5")), "{version}");
        }
        for (version, told) in [("7.2.5", true), ("7.2.6", false), ("9.1.2", false)] {
            assert_eq!(numbers(&valkey(version)).is_some(), told, "{version}");
        }
    }

    fn valkey(version: &str) -> Facts {
        // Every Valkey reports this version of Redis, for compatibility.
        Facts::new("a", &format!("redis_version:7.2.4\r\nvalkey_version:{version}\r\n"), &[])
    }

    #[test]
    fn valkey_is_judged_by_its_own_version() {
        let found = |version| script_engine(&valkey(version)).unwrap();
        assert_eq!(["8.1.7", "9.0.4", "9.1.2"].map(|good| found(good).severity), [Fine; 3]);
        assert_eq!(found("8.1.3").severity, Advice);
        assert!(found("8.1.3").what.contains("Valkey 8.1.3"));
        assert!(!found("8.1.3").what.contains("CVE-2024"));
        let age = age(&valkey("8.1.3"), true).unwrap();
        assert!(age.severity == Fine && age.what.contains("Valkey 8.1.3"), "{age:?}");
    }
}
