//! Tokens rise whatever stands in the counter, and are written in digits.

use tenure_testkit::lacks;

use super::{Bench, id, token};

type Take<'a> = Box<dyn Fn(usize) -> String + 'a>;

/// Every way to a token.
fn grants<'a>(bench: &'a Bench, node: &'a Bench) -> [(&'a Bench, Take<'a>); 5] {
    let handed_over = |owner| {
        bench.claim(100, "x 0 0", "-");
        bench.claim(owner, "x 0 0", "-");
        bench.release(100);
        bench.claim(owner, "x 0 0", "-")
    };
    [
        (bench, Box::new(|owner| bench.take(owner))),
        (bench, Box::new(|owner| bench.attempt(owner, "s 1 0"))),
        (bench, Box::new(handed_over)),
        (node, Box::new(|owner| node.vote(owner, "x 0 0", &[]))),
        (node, Box::new(|owner| node.vote(owner, "s 1 0", &[]))),
    ]
}

/// In this millisecond, Redis 7.2.4 would write a Lua number as 1.8379184e+15.
#[test]
fn a_token_that_ends_in_zeros_is_written_in_digits() {
    if lacks("redis-server", "tokens that end in zeros") {
        return;
    }
    let (bench, node) = (Bench::single(), Bench::node());
    for server in [&bench, &node] {
        server.command(&["RPUSH", "clock", "1794842187", "500000"]);
    }
    for (bench, take) in grants(&bench, &node) {
        for (stored, least) in
            [("0", 1_837_918_400_000_000), ("1837918499999999", 1_837_918_500_000_000_u64)]
        {
            bench.clear();
            bench.command(&["SET", "t", stored]);
            let own = token(&take(1));
            assert!((least..least + 2).contains(&own), "{own}");
            assert_eq!(bench.command(&["GET", "t"]), own.to_string());
            // It is still a counter.
            assert_eq!(bench.command(&["INCR", "t"]), (own + 1).to_string());
        }
    }
}

/// A counter as a server of those versions left it, with eight zeros at its end.
#[test]
fn a_damaged_counter_is_healed_and_tokens_rise_across_it() {
    if lacks("redis-server", "damaged counters") {
        return;
    }
    let (bench, node) = (Bench::single(), Bench::node());
    for (bench, take) in grants(&bench, &node) {
        for (stored, above) in [
            ("1.8379184e+15", 1_837_918_400_000_000),
            ("9e+15", 9_000_000_000_000_000),
            ("9007199254740992.0", 9_007_199_254_740_992),
            ("1e+18", 1_000_000_000_000_000_000),
            // No number can be read: the server's time is above what the counter may have been.
            ("nonsense", 1_700_000_000_000 * 1024),
            ("", 1_700_000_000_000 * 1024),
        ] {
            bench.clear();
            bench.command(&["SET", "t", stored]);
            let first = token(&take(1));
            assert!(first > above, "{first} after {stored}");
            bench.command(&["DEL", "k", "p", "e"]);
            let second = token(&take(2));
            assert!(second > first, "{second} after {first}, after {stored}");
        }
    }
}

/// A Lua number is exact up to 2^53 only; the counter goes on to 2^63.
#[test]
fn tokens_rise_strictly_above_what_a_lua_number_holds() {
    if lacks("redis-server", "tokens above 2^53") {
        return;
    }
    let bench = Bench::single();
    for start in [9_007_199_254_740_990_u64, 9_007_199_254_740_992, 1 << 62] {
        bench.clear();
        bench.command(&["SET", "t", &start.to_string()]);
        for number in 1..5 {
            assert_eq!(token(&bench.take(number)), start + number as u64);
            bench.command(&["DEL", "k"]);
        }
    }
}

/// A quorum's renewal raises the node's counter to the holder's token, and never lowers it.
#[test]
fn a_quorum_renewal_raises_exactly_and_passes_a_damaged_counter() {
    if lacks("redis-server", "renewals on damaged counters") {
        return;
    }
    let node = Bench::node();
    for (stored, raised) in [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740994", "9007199254740994"),
        ("1.8379184e+15", "9007199254740993"),
        ("nonsense", "9007199254740993"),
        ("1e+18", "1e+18"),
    ] {
        node.command(&["SET", "t", stored]);
        node.command(&["SET", "k", &format!("{} 1 1 1 host label", id(1))]);
        assert_eq!(node.raise(1, "9007199254740993"), "1");
        assert_eq!(node.command(&["GET", "t"]), raised);
    }
}
