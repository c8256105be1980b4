//! What stubs of Redis servers say.

use tenure_testkit::RedisStub;

/// The answer to `HELLO 3`.
pub(crate) const HELLO: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";

/// A digest for `SCRIPT LOAD`.
pub(crate) const DIGEST: &str = "$40\r\n0123456789012345678901234567890123456789\r\n";

pub(crate) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// `CLUSTER SHARDS` of masters on the loopback address: first slot, last slot, port.
pub(crate) fn shards(masters: &[(u16, u16, u16)]) -> String {
    let mut said = format!("*{}\r\n", masters.len());
    for (first, last, port) in masters {
        said += &format!("%2\r\n{}*2\r\n:{first}\r\n:{last}\r\n", bulk("slots"));
        said += &format!("{}*1\r\n%5\r\n{}:{port}\r\n", bulk("nodes"), bulk("port"));
        for (field, value) in [
            ("endpoint", "127.0.0.1"),
            ("ip", "127.0.0.1"),
            ("role", "master"),
            ("health", "online"),
        ] {
            said += &(bulk(field) + &bulk(value));
        }
    }
    said
}

/// A stub that accepts every login, and replies to other commands what `answer` returns.
pub(crate) fn stub(
    answer: impl Fn(&[&str]) -> Option<String> + Send + Sync + 'static,
) -> RedisStub {
    RedisStub::start(move |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["HELLO", ..] => Some(HELLO.into()),
            ["SCRIPT", "LOAD", ..] => Some(DIGEST.into()),
            ["ROLE"] => Some(format!("*1\r\n{}", bulk("master"))),
            _ => answer(&words),
        }
    })
    .unwrap()
}
