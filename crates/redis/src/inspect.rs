//! What Redis holds of a lock, read into words.

use std::time::Duration;

use tenure_core::{
    Error, ErrorKind, Holder, LockName, LockState, Mode, OwnerId, Result, Token, Waiter,
};

use crate::wire::Value;

/// Reads the reply of `inspect.lua`.
pub(crate) fn read(name: &LockName, reply: Value) -> Result<LockState> {
    parse(name, reply).ok_or_else(|| {
        let why = "what is stored makes no sense: was it written by another version?";
        Error::new(ErrorKind::Damaged, "inspect", why).about(name)
    })
}

fn parse(name: &LockName, reply: Value) -> Option<LockState> {
    let [now, value, left, pool, line] = <[Value; 5]>::try_from(reply.array()?).ok()?;
    let now: u64 = now.text()?.parse().ok()?;
    let left = match left {
        Value::Integer(left) => u64::try_from(left).ok().map(Duration::from_millis),
        _ => return None,
    };
    let value = match value {
        Value::Null => None,
        Value::Text(value) => Some(value),
        _ => return None,
    };
    let pool = pool.texts()?;
    let mut holders: Vec<Holder> =
        pool.chunks_exact(3).filter_map(|holder| pooled(now, holder)).collect();
    if let Some(value) = value.filter(|_| holders.is_empty()) {
        holders.push(alone(now, &value, left));
    }
    let line = line.texts()?;
    let waiters = line.chunks_exact(2).filter_map(|waiter| waiting(now, waiter)).collect();
    Some(LockState { name: name.clone(), holders, waiters })
}

/// `<owner><mark><token> <since> <pid> <host> <label>`, or whatever another client wrote.
fn alone(now: u64, value: &[u8], expires_in: Option<Duration>) -> Holder {
    let text = String::from_utf8_lossy(value);
    let words: Vec<&str> = text.splitn(2, [' ', '!']).collect();
    let words: Vec<&str> = match words[..] {
        [owner, rest] => std::iter::once(owner).chain(rest.splitn(5, ' ')).collect(),
        _ => Vec::new(),
    };
    let ours = words.len() == 6 && words[0].parse::<OwnerId>().is_ok();
    let word = |place: usize| ours.then(|| words[place]);
    Holder {
        owner: word(0).map_or_else(|| spell(value), str::to_owned),
        mode: Mode::Exclusive,
        token: word(1).and_then(|token| token.parse().ok()).map(Token::new),
        host: word(4).map(str::to_owned),
        pid: word(3).and_then(|pid| pid.parse().ok()),
        label: word(5).unwrap_or_default().to_owned(),
        age: word(2).and_then(|since| match since {
            // The token begins as the server's time.
            "-" => age(now, &(word(1)?.parse::<u64>().ok()? / 1024).to_string()),
            since => age(now, since),
        }),
        expires_in,
    }
}

/// Owner, end, `<token> <since> <kind> <take> <of> <ttl> <pid> <host> <label>`.
fn pooled(now: u64, holder: &[String]) -> Option<Holder> {
    let ends: f64 = holder[1].parse().ok()?;
    let words: Vec<&str> = holder[2].splitn(9, ' ').collect();
    let [token, since, kind, take, of, _, pid, host, label] = words[..] else { return None };
    Some(Holder {
        owner: holder[0].clone(),
        mode: mode(kind, take, of)?,
        token: token.parse().ok().map(Token::new),
        host: Some(host.to_owned()),
        pid: pid.parse().ok(),
        label: label.to_owned(),
        age: age(now, since),
        expires_in: Some(Duration::from_millis((ends as u64).saturating_sub(now))),
    })
}

/// Owner, `<ends> <arrived> <kind> <take> <of> <ttl> <inbox> <pid> <host> <label>`.
fn waiting(now: u64, waiter: &[String]) -> Option<Waiter> {
    let words: Vec<&str> = waiter[1].splitn(10, ' ').collect();
    let [_, arrived, kind, take, of, _, _, pid, host, label] = words[..] else { return None };
    Some(Waiter {
        owner: waiter[0].clone(),
        mode: mode(kind, take, of)?,
        host: Some(host.to_owned()),
        pid: pid.parse().ok(),
        label: label.to_owned(),
        age: age(now, arrived)?,
    })
}

fn mode(kind: &str, take: &str, of: &str) -> Option<Mode> {
    match kind {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "p" => Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? }),
        _ => None,
    }
}

fn age(now: u64, since: &str) -> Option<Duration> {
    // Both are cut to whole milliseconds: the difference may be one too many.
    let since: u64 = since.parse().ok()?;
    Some(Duration::from_millis(now.saturating_sub(since).saturating_sub(1)))
}

/// A holder's value as text: as it is, or in hexadecimal digits where it is no text that can be
/// shown and typed.
fn spell(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let digits = value.iter().map(|byte| format!("{byte:02x}"));
            std::iter::once("0x".to_owned()).chain(digits).collect()
        }
    }
}

/// The value that [`spell`] gave in digits.
pub(crate) fn unspell(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    if !digits.is_ascii() || digits.len() % 2 == 1 {
        return None;
    }
    let byte = |place| u8::from_str_radix(digits.get(place..place + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_text_is_spelled_in_digits_and_read_back() {
        assert_eq!(spell(b"some token"), "some token");
        for value in [&b"\xff\x00\x80"[..], b"a\nb", b""] {
            assert_eq!(unspell(&spell(value)).as_deref(), Some(value));
        }
        for other in ["abc", "0xabc", "0xgg", "0x\u{e4}"] {
            assert_eq!(unspell(other), None, "{other}");
        }
    }
}
