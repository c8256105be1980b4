//! What something that is not a lock of Redisson looks like.

use tenure_core::{Error, ErrorKind, Result};

use super::RedissonStore;
use super::names::{Names, is_holder};
use crate::wire::{Value, cmd};

impl RedissonStore {
    /// Says what has the name of a lock or semaphore.
    pub(super) async fn foreign(
        &self,
        operation: &'static str,
        names: &Names,
        wanted: &str,
    ) -> Error {
        let found = self.family(operation, names).await;
        let found = found.unwrap_or_else(|_| "something else".into());
        let why = format!(
            "the key {:?} holds {found}, not a {wanted} in Redisson's layout; nothing was touched: use \
             another name, or the settings of the client that wrote it",
            names.lock
        );
        Error::new(ErrorKind::Damaged, operation, why)
    }

    async fn family(&self, operation: &'static str, names: &Names) -> Result<String> {
        let send = async |command| {
            let (reply, _) = self.base.servers.call(operation, names.slot, &command, None).await?;
            Ok::<_, Error>(reply)
        };
        let kind = send(cmd("TYPE").arg(&names.lock)).await?.text().unwrap_or_default();
        let sample = match &*kind {
            "string" => send(cmd("GETRANGE").arg(&names.lock).arg("0").arg("127")).await?,
            "hash" => send(cmd("HRANDFIELD").arg(&names.lock).arg("8")).await?,
            _ => Value::Null,
        };
        Ok(of_type(&kind, &sample))
    }

    /// Says that a semaphore's name is that of a latch.
    pub(super) fn awaited_latch(names: &Names) -> Error {
        let why = format!(
            "Java programs wait for {:?} as for an RCountDownLatch of Redisson, so it is not a semaphore: a \
             claim would count it down. Nothing was touched: use another name",
            names.lock
        );
        Error::new(ErrorKind::Damaged, "acquire", why)
    }
}

/// Names the family of a string under a lock's name.
fn of_string(value: &[u8]) -> &'static str {
    let Ok(text) = std::str::from_utf8(value) else {
        return match value.len() {
            20 => "a lock of rslock (20 random bytes)",
            _ => "a string of bytes that are no text",
        };
    };
    let all = |test: fn(u8) -> bool| text.bytes().all(test);
    let is_hex = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if text.parse::<i64>().is_ok() {
        "a counter, such as RSemaphore, RCountDownLatch or RAtomicLong"
    } else if is_hex(text) {
        "a lock of redis-py or node-redlock (32 hexadecimal digits)"
    } else if text.split_at_checked(32).is_some_and(|(owner, rest)| {
        is_hex(owner) && rest.starts_with([' ', '!', 's']) || text.starts_with("pool ")
    }) {
        "a lock of tenure without dialect=redisson"
    } else if text.len() == 24 && text.ends_with("==") {
        "a lock of redsync (16 bytes in base64)"
    } else if text.len() == 24 && all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/')) {
        "a lock of python-redis-lock (18 bytes in base64)"
    } else if text.len() >= 22
        && text.bytes().take(22).all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        && text.len() != 36
    {
        "a lock of bsm/redislock (16 bytes in base64url)"
    } else if text.len() == 36 && all(|b| b.is_ascii_hexdigit() || b == b'-') {
        "a lock whose value is a UUID, such as redis-semaphore's"
    } else {
        "a string"
    }
}

/// Names the family of a hash, of which these are some fields.
fn of_hash(fields: &[String]) -> &'static str {
    let any = |test: fn(&str) -> bool| fields.iter().any(|field| test(field));
    if any(|field| field.ends_with(":lock_count") || field.ends_with(":expire_time")) {
        "a group lock of Redisson (getMultiLock with a group and values), which tenure does not join"
    } else if any(|field| field == "rate") && any(|field| field == "interval") {
        "a rate limiter of Redisson (RRateLimiter)"
    } else if fields.iter().all(|field| is_holder(field) || field == "mode") && fields.len() <= 2 {
        "a lock, such as RLock or RReadWriteLock"
    } else if fields.iter().all(|field| is_holder(field)) {
        "a hash with the holders of several locks"
    } else {
        "a hash that is no lock"
    }
}

/// Names the family by what `TYPE` says.
fn of_type(kind: &str, sample: &Value) -> String {
    match (kind, sample) {
        ("string", Value::Text(value)) => of_string(value).into(),
        ("hash", fields) => of_hash(&fields.clone().texts().unwrap_or_default()).into(),
        (kind, _) => format!("a {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_recognised_by_what_it_writes() {
        let hex = "0123456789abcdef0123456789abcdef";
        for (value, family) in [
            (hex.as_bytes(), "redis-py"),
            (format!("{hex} 12 - 7 host label").as_bytes(), "tenure"),
            (format!("{hex}!12 - 7 host label").as_bytes(), "tenure"),
            (format!("{hex}s12 - 7 host label").as_bytes(), "tenure"),
            (b"pool s 3 ................................", "tenure"),
            (b"AAECAwQFBgcICQoLDA0ODw==", "redsync"),
            (b"AAECAwQFBgcICQoLDA0ODxAR", "python-redis-lock"),
            (b"AAECAwQFBgcICQoLDA0ODw", "bsm/redislock"),
            (b"AAECAwQFBgcICQoLDA0ODwmetadata", "bsm/redislock"),
            (&[0xff; 20], "rslock"),
            (b"17", "RSemaphore"),
            (b"-1", "RSemaphore"),
            (b"00112233-4455-6677-8899-aabbccddeeff", "UUID"),
            (b"hello", "a string"),
            (b"", "a string"),
        ] {
            assert!(of_string(value).contains(family), "{:?}", of_string(value));
        }
    }

    #[test]
    fn hashes_that_are_no_locks_are_told_apart() {
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        let hash = |fields: &[&str]| {
            of_hash(&fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>())
        };
        let count = format!("sku:{uuid}:17:lock_count");
        assert!(hash(&["sku", &count]).contains("group lock"));
        assert!(hash(&["rate", "interval", "type"]).contains("RRateLimiter"));
        let holders = [1, 2].map(|thread| format!("{uuid}:{thread}"));
        assert!(hash(&[&holders[0]]).contains("RLock"), "to a semaphore, it is something else");
        assert!(hash(&["mode", &holders[0]]).contains("RReadWriteLock"));
        assert!(hash(&["mode", &holders[0], &holders[1]]).contains("no lock"));
        assert!(hash(&["name", "street"]).contains("no lock"));
        assert_eq!(of_type("zset", &Value::Null), "a zset");
    }
}
