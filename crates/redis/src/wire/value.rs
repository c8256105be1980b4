//! What a server says (RESP3).

use std::fmt;

/// A reply, in as many kinds as anybody here tells apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    /// Any kind of string; also numbers that are no integers.
    Text(Vec<u8>),
    /// A list or a set; a map as key, value, key, value.
    Array(Vec<Value>),
    Refusal(Refusal),
}

/// An error reply: `<CODE> <words>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) words: String,
}

/// One thing that the server sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    /// The answer to the oldest command that has none.
    Reply(Value),
    /// Something that nobody asked for.
    Push(Vec<Value>),
}

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has not all arrived.
    More,
    /// This is not what a Redis server sends.
    Nonsense,
}

/// Nothing that is asked here has an answer as deep.
const DEEPEST: usize = 16;
/// Nor one as large, in bytes or elements.
const LARGEST: usize = 512 << 20;
/// The longest line without a length of its own.
const LONGEST_LINE: usize = 64 << 10;

/// Reads one frame, and how many bytes it took.
pub(crate) fn frame(input: &[u8]) -> Result<(Frame, usize), Stop> {
    let mut cursor = Cursor { input, at: 0 };
    loop {
        let frame = match input.get(cursor.at) {
            // Attributes describe the reply behind them.
            Some(b'|') => {
                cursor.at += 1;
                let pairs = cursor.length()?.unwrap_or(0);
                cursor.values(pairs * 2, 0)?;
                continue;
            }
            Some(b'>') => {
                cursor.at += 1;
                let length = cursor.length()?.ok_or(Stop::Nonsense)?;
                Frame::Push(cursor.values(length, 0)?)
            }
            _ => Frame::Reply(cursor.value(0)?),
        };
        return Ok((frame, cursor.at));
    }
}

struct Cursor<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let kind = *self.input.get(self.at).ok_or(Stop::More)?;
        self.at += 1;
        Ok(match kind {
            b'+' | b',' | b'(' => Value::Text(self.line()?.to_vec()),
            b'-' => Value::Refusal(Refusal::read(self.line()?)),
            b':' => Value::Integer(self.number()?),
            b'#' => Value::Integer(i64::from(self.line()? == b"t")),
            b'_' => {
                self.line()?;
                Value::Null
            }
            b'$' => self.bytes()?.map_or(Value::Null, |bytes| Value::Text(bytes.to_vec())),
            // `txt:` or `mkd:` comes first.
            b'=' => match self.bytes()? {
                Some(bytes) => Value::Text(bytes.get(4..).ok_or(Stop::Nonsense)?.to_vec()),
                None => Value::Null,
            },
            b'!' => Value::Refusal(Refusal::read(self.bytes()?.ok_or(Stop::Nonsense)?)),
            b'*' | b'~' | b'%' => match self.length()? {
                Some(length) => {
                    let length = if kind == b'%' { length * 2 } else { length };
                    Value::Array(self.values(length, depth)?)
                }
                None => Value::Null,
            },
            _ => return Err(Stop::Nonsense),
        })
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, Stop> {
        if depth == DEEPEST {
            return Err(Stop::Nonsense);
        }
        // What is announced is not yet there: no more room is made than for what is.
        let mut values = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            values.push(self.value(depth + 1)?);
        }
        Ok(values)
    }

    fn bytes(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        let Some(length) = self.length()? else { return Ok(None) };
        let end = self.at + length;
        let bytes = self.input.get(self.at..end).ok_or(Stop::More)?;
        match self.input.get(end..end + 2) {
            Some(b"\r\n") => self.at = end + 2,
            Some(_) => return Err(Stop::Nonsense),
            None => return Err(Stop::More),
        }
        Ok(Some(bytes))
    }

    fn length(&mut self) -> Result<Option<usize>, Stop> {
        match self.number()? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= LARGEST => Ok(Some(length)),
                _ => Err(Stop::Nonsense),
            },
        }
    }

    fn number(&mut self) -> Result<i64, Stop> {
        let line = std::str::from_utf8(self.line()?).map_err(|_| Stop::Nonsense)?;
        line.parse().map_err(|_| Stop::Nonsense)
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = self.input.get(self.at..).ok_or(Stop::More)?;
        let window = &rest[..rest.len().min(LONGEST_LINE)];
        let Some(length) = window.iter().position(|byte| *byte == b'\r') else {
            return Err(if rest.len() < LONGEST_LINE { Stop::More } else { Stop::Nonsense });
        };
        match rest.get(length + 1) {
            Some(b'\n') => self.at += length + 2,
            Some(_) => return Err(Stop::Nonsense),
            None => return Err(Stop::More),
        }
        Ok(&rest[..length])
    }
}

impl Value {
    /// A string or a number as text, whatever its encoding: another client may have written it.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The elements of a list. RESP has one empty list, and Lua has no other empty table.
    pub(crate) fn array(self) -> Option<Vec<Self>> {
        match self {
            Self::Array(values) => Some(values),
            Self::Null => Some(Vec::new()),
            _ => None,
        }
    }

    /// A list of strings.
    pub(crate) fn texts(self) -> Option<Vec<String>> {
        self.array()?.iter().map(Self::text).collect()
    }

    /// What a map has under this key.
    pub(crate) fn field(&self, key: &str) -> Option<&Self> {
        let Self::Array(pairs) = self else { return None };
        let found = pairs.chunks_exact(2).find(|pair| pair[0].text().as_deref() == Some(key))?;
        Some(&found[1])
    }
}

impl Refusal {
    fn read(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let (code, words) = line.split_once(' ').unwrap_or((&line, ""));
        // What was sent is not repeated: it may be a secret, and is long.
        let words = words.split_once(", with args beginning with").map_or(words, |cut| cut.0);
        let code = in_script(words).filter(|_| code == "ERR").unwrap_or(code);
        Self { code: code.to_owned(), words: words.to_owned() }
    }

    /// Where `MOVED` and `ASK` point to: `<slot> <host>:<port>`.
    pub(crate) fn address(&self) -> Option<(String, u16)> {
        let (host, port) = self.words.split_once(' ')?.1.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    }
}

/// Before 7.0, what a command said against its call by a script came as the words of an `ERR`:
/// `Error running script (call to f_…): @user_script:9: @user_script: 9: -READONLY You can't …`.
fn in_script(words: &str) -> Option<&str> {
    let (_, said) = words.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
    let (_line, said) = said.split_once(": ")?;
    let code = said.trim_start_matches('-').split(' ').next()?;
    let is_code = code.len() > 1 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some(code)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_said_to_a_script_is_found_whatever_the_servers_version() {
        let begin = "-ERR Error running script (call to f_0123): @user_script:";
        for (line, code) in [
            (format!("{begin}9: @user_script: 9: -READONLY You can't write\r\n"), "READONLY"),
            (format!("{begin}9: @user_script: 9: -NOREPLICAS Not enough\r\n"), "NOREPLICAS"),
            (format!("{begin}12: WRONGTYPE Operation against a key\r\n"), "WRONGTYPE"),
            (format!("{begin}3: @user_script: 3: Unknown Redis command\r\n"), "ERR"),
            (format!("{begin}3: attempt to index a nil value\r\n"), "ERR"),
            ("-OOM command not allowed script: 0123, on @user_script:1.\r\n".to_owned(), "OOM"),
        ] {
            let Value::Refusal(refusal) = reply(&line) else { panic!("{line}") };
            assert_eq!(refusal.code, code, "{line}");
        }
    }

    fn reply(input: &str) -> Value {
        match frame(input.as_bytes()) {
            Ok((Frame::Reply(value), taken)) if taken == input.len() => value,
            other => panic!("{input:?}: {other:?}"),
        }
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        for (input, expected) in [
            ("+OK\r\n", text("OK")),
            (":-7\r\n", Value::Integer(-7)),
            ("$3\r\na\r\n\r\n", text("a\r\n")),
            ("$-1\r\n", Value::Null),
            ("*-1\r\n", Value::Null),
            ("_\r\n", Value::Null),
            ("#t\r\n", Value::Integer(1)),
            (",1.5\r\n", text("1.5")),
            ("(123456789012345678901\r\n", text("123456789012345678901")),
            ("=6\r\ntxt:ab\r\n", text("ab")),
            ("*2\r\n:1\r\n*0\r\n", Value::Array(vec![Value::Integer(1), Value::Array(vec![])])),
            ("~1\r\n+a\r\n", Value::Array(vec![text("a")])),
            ("%1\r\n+k\r\n+v\r\n", Value::Array(vec![text("k"), text("v")])),
            ("|1\r\n+ttl\r\n:3\r\n:4\r\n", Value::Integer(4)),
        ] {
            assert_eq!(reply(input), expected, "{input:?}");
        }
        let Value::Refusal(moved) = reply("-MOVED 17 10.0.0.1:7001\r\n") else { panic!() };
        assert_eq!((&*moved.code, moved.address()), ("MOVED", Some(("10.0.0.1".into(), 7001))));
        let (push, _) = frame(b">2\r\n+message\r\n+c\r\n").unwrap();
        assert_eq!(push, Frame::Push(vec![text("message"), text("c")]));
    }

    #[test]
    fn a_frame_cut_anywhere_needs_more() {
        let whole = b"*4\r\n$5\r\nab\r\nc\r\n:12\r\n%1\r\n+k\r\n=5\r\ntxt:v\r\n-ERR no\r\n";
        for cut in 0..whole.len() {
            assert_eq!(frame(&whole[..cut]), Err(Stop::More), "cut at {cut}");
        }
        assert_eq!(frame(whole).unwrap().1, whole.len());
    }

    #[test]
    fn nonsense_is_refused_and_makes_no_room() {
        for input in [
            "HTTP/1.1 400 Bad Request\r\n",
            "$99999999999\r\n",
            "$-2\r\n",
            "$x\r\n",
            "$1\r\nabc",
            ":1\rx",
            "=2\r\nab\r\n",
        ] {
            assert_eq!(frame(input.as_bytes()), Err(Stop::Nonsense), "{input:?}");
        }
        assert_eq!(frame("*1\r\n".repeat(99).as_bytes()), Err(Stop::Nonsense), "too deep");
        assert_eq!(frame(&[b'+'; LONGEST_LINE + 2]), Err(Stop::Nonsense), "an endless line");
        assert_eq!(frame(b"*500000000\r\n"), Err(Stop::More), "announced, not there");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes: Vec<u8>) {
            if let Ok((_, taken)) = frame(&bytes) {
                assert!(taken <= bytes.len());
            }
        }
    }
}
