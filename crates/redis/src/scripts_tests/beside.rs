//! Scripts for what is kept beside locks: audit records, values, counters and rate limits.

use tenure_core::store::AUDIT_KEPT;

use super::{Bench, TTL, id, token};

pub(super) fn audit_records(bench: &Bench) {
    let kept = AUDIT_KEPT.as_millis() as usize;
    let expires = |scene: &str| {
        let left = bench.count("PTTL", "audit");
        assert!((kept - 600_000..=kept).contains(&left), "{scene}: {left} of {kept} ms");
    };
    token(&bench.take(1));
    assert_eq!(bench.evict(&id(1)), "1");
    expires("an eviction");
    let many = ["older"; 1_000];
    bench.command(&[&["RPUSH", "audit"], &many[..]].concat());
    bench.command(&["PEXPIRE", "audit", "60000"]);
    bench.record();
    expires("a record");
    assert_eq!(bench.count("LLEN", "audit"), 1_000);
    assert_eq!(bench.command(&["LINDEX", "audit", "0"]), "a record");
}

pub(super) fn cells(bench: &Bench) {
    let swap = |words: [&str; 4]| bench.eval("cells/swap", &["k"], &words);
    let [first, second] = [16, 17].map(|number| format!("{number:016x}"));
    assert_eq!(swap(["", &first, "a value", "never"]), "1");
    assert_eq!(swap([&first, &second, "a value", TTL]), "1");
    assert_eq!(swap([&second, &first, "another", "keep"]), "1");
    assert!(bench.count("PTTL", "k") > 0);
    assert_eq!(swap(["", &second, "a third", "never"]), format!("{first}another"));
}

pub(super) fn counters(bench: &Bench) {
    // A sum that a Lua number shows as 9.0071992547409e+15, and one with zeros at its end.
    let sums = ["9007199254740991", "1837918400000000"];
    for (at, sum) in (1..).zip(sums) {
        for (expiry, id) in [(TTL, "request1"), ("", "request2")] {
            bench.clear();
            let version = format!("{at:016x}");
            let add = |id: &str, by: &str| {
                let range = ["-9007199254740991", "9007199254740991"];
                let words = [&[&*version, id, by], &range[..], &[expiry, "", ""]].concat();
                bench.eval("cells/add", &["k"], &words)
            };
            assert_eq!(add(id, sum), format!("done {sum}"));
            assert_eq!(add(id, sum), format!("done {sum}"), "it is a repetition");
            assert!(add("request3", "0").ends_with(sum));
            assert!(bench.command(&["GET", "k"]).ends_with(sum));
        }
    }
}

pub(super) fn rate_limits(bench: &Bench) {
    for (rule, period, limit) in [("window", "60000000", "1"), ("gcra", "60000000", "60000000")] {
        bench.clear();
        let take = |peek: &str| bench.eval("cells/take", &["k"], &[rule, period, limit, "1", peek]);
        assert!(take("peek").starts_with("1 "), "{rule}");
        assert_eq!(bench.count("EXISTS", "k"), 0);
        assert!(take("").starts_with("1 "), "{rule}");
        assert!(take("").starts_with("0 "), "{rule}");
        let kept = bench.command(&["GET", "k"]);
        assert!(kept.bytes().all(|byte| byte.is_ascii_digit() || byte == b' '), "{kept}");
    }
}
