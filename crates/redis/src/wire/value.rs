//! Replies of a server (RESP2 and RESP3), and the reader that parses them.

use std::fmt;

/// A reply, in the kinds that matter here.
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

/// One reply or push that the server sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    /// The reply to the oldest unanswered command.
    Reply(Value),
    /// A push: it answers no command.
    Push(Vec<Value>),
}

/// Why no frame could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has not arrived completely.
    More,
    /// This is not what a Redis server sends.
    Nonsense,
}

/// The deepest nesting that is accepted: no reply to our commands comes near.
const DEEPEST: usize = 16;
/// The most bytes of one frame: the longest queue of waiters takes a few millions.
const LARGEST: usize = 64 << 20;
/// The most elements of one frame.
const MOST: usize = 1 << 20;
/// The longest line without a length of its own.
const LONGEST_LINE: usize = 64 << 10;

/// Reads frames from bytes that arrive in pieces. What was looked at once is not looked at again
/// when more arrives, so the work is linear in what the server sends, however it is cut.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// How much of the frame's bytes has been made into values.
    at: usize,
    /// How much behind that was searched for the end of a line, in vain.
    searched: usize,
    /// The length of the string whose bytes come next.
    string: Option<(u8, usize)>,
    /// Lists that are not complete, from the outermost.
    open: Vec<List>,
    /// How many elements the frame has, as far as announced.
    elements: usize,
    /// How many bytes were looked at in all.
    #[cfg(test)]
    examined: usize,
}

/// A list on its way.
#[derive(Debug)]
struct List {
    kind: u8,
    missing: usize,
    values: Vec<Value>,
}

/// What one step of reading found.
enum Step {
    Value(Value),
    /// A list begins, or the bytes of a string.
    Begun,
}

impl Reader {
    /// Reads one frame, and how many bytes it took. If it has not all arrived, the next call must
    /// be with the same bytes and those behind them.
    pub(crate) fn frame(&mut self, input: &[u8]) -> Result<(Frame, usize), Stop> {
        loop {
            let value = match self.step(input)? {
                Step::Value(value) => value,
                Step::Begun => continue,
            };
            if let Some(frame) = self.place(value) {
                let taken = self.at;
                #[cfg(test)]
                let examined = self.examined;
                *self = Self::default();
                #[cfg(test)]
                {
                    self.examined = examined;
                }
                return Ok((frame, taken));
            }
        }
    }

    /// Puts a value where it belongs, and each list that it completes. The frame, if that is all.
    fn place(&mut self, mut value: Value) -> Option<Frame> {
        loop {
            let Some(list) = self.open.last_mut() else { return Some(Frame::Reply(value)) };
            list.values.push(value);
            list.missing -= 1;
            if list.missing > 0 {
                return None;
            }
            let list = self.open.pop()?;
            match list.kind {
                b'>' => return Some(Frame::Push(list.values)),
                // Attributes describe the value behind them.
                b'|' => return None,
                _ => value = Value::Array(list.values),
            }
        }
    }

    /// Reads one value, or the beginning of one.
    fn step(&mut self, input: &[u8]) -> Result<Step, Stop> {
        if let Some((kind, length)) = self.string {
            let bytes = self.bytes(input, length)?;
            self.string = None;
            return string(kind, bytes).map(Step::Value);
        }
        let line = self.line(input)?;
        let (kind, line) = line.split_first().ok_or(Stop::Nonsense)?;
        let value = match kind {
            b'+' | b',' | b'(' => Value::Text(line.to_vec()),
            b'-' => Value::Refusal(Refusal::read(line)),
            b':' => Value::Integer(number(line)?),
            b'#' => Value::Integer(i64::from(line == b"t")),
            b'_' => Value::Null,
            b'$' | b'=' | b'!' => match length(line, LARGEST)? {
                Some(length) => {
                    self.string = Some((*kind, length));
                    return Ok(Step::Begun);
                }
                None if *kind == b'!' => return Err(Stop::Nonsense),
                None => Value::Null,
            },
            b'*' | b'~' | b'%' | b'|' | b'>' => return self.list(*kind, length(line, MOST)?),
            _ => return Err(Stop::Nonsense),
        };
        Ok(Step::Value(value))
    }

    fn list(&mut self, kind: u8, length: Option<usize>) -> Result<Step, Stop> {
        // A push is never nested in another value.
        if kind == b'>' && (length.is_none() || !self.open.is_empty()) {
            return Err(Stop::Nonsense);
        }
        let pairs = matches!(kind, b'%' | b'|');
        let missing = length.unwrap_or(0) * if pairs { 2 } else { 1 };
        self.elements += missing;
        if self.elements > MOST || self.open.len() == DEEPEST {
            return Err(Stop::Nonsense);
        }
        Ok(match (kind, length, missing) {
            (b'|', _, 0) => Step::Begun,
            (b'>', _, 0) => return Err(Stop::Nonsense),
            (_, None, _) => Step::Value(Value::Null),
            (_, Some(_), 0) => Step::Value(Value::Array(Vec::new())),
            // Memory is reserved for what has arrived, not for what is announced.
            _ => {
                let values = Vec::with_capacity(missing.min(1024));
                self.open.push(List { kind, missing, values });
                Step::Begun
            }
        })
    }

    /// The bytes of a string, and behind them the end of a line.
    fn bytes<'a>(&mut self, input: &'a [u8], length: usize) -> Result<&'a [u8], Stop> {
        let end = self.at + length;
        if end + 2 > LARGEST {
            return Err(Stop::Nonsense);
        }
        // Only bytes that have arrived are checked.
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Stop::Nonsense),
            None => return Err(Stop::More),
        }
        self.examine(length + 2);
        let bytes = &input[self.at..end];
        self.at = end + 2;
        Ok(bytes)
    }

    /// The next line without its end, beginning with its kind.
    fn line<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], Stop> {
        let rest = input.get(self.at..).ok_or(Stop::More)?;
        match rest.first() {
            None => return Err(Stop::More),
            Some(b'+' | b',' | b'(' | b'-' | b':' | b'#' | b'_') => {}
            Some(b'$' | b'=' | b'!' | b'*' | b'~' | b'%' | b'|' | b'>') => {}
            Some(_) => return Err(Stop::Nonsense),
        }
        let window = &rest[..rest.len().min(LONGEST_LINE)];
        let new = &window[self.searched.min(window.len())..];
        let Some(found) = new.iter().position(|byte| *byte == b'\r') else {
            self.examine(new.len());
            self.searched = window.len();
            return Err(if rest.len() < LONGEST_LINE { Stop::More } else { Stop::Nonsense });
        };
        let length = self.searched + found;
        match rest.get(length + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(Stop::Nonsense),
            None => {
                self.examine(found);
                self.searched = length;
                return Err(Stop::More);
            }
        }
        self.examine(found + 2);
        (self.at, self.searched) = (self.at + length + 2, 0);
        if self.at > LARGEST {
            return Err(Stop::Nonsense);
        }
        Ok(&rest[..length])
    }

    fn examine(&mut self, _bytes: usize) {
        #[cfg(test)]
        {
            self.examined += _bytes;
        }
    }
}

fn string(kind: u8, bytes: &[u8]) -> Result<Value, Stop> {
    Ok(match kind {
        b'!' => Value::Refusal(Refusal::read(bytes)),
        // `txt:` or `mkd:` comes first.
        b'=' => Value::Text(bytes.get(4..).ok_or(Stop::Nonsense)?.to_vec()),
        _ => Value::Text(bytes.to_vec()),
    })
}

fn length(line: &[u8], most: usize) -> Result<Option<usize>, Stop> {
    match number(line)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= most => Ok(Some(length)),
            _ => Err(Stop::Nonsense),
        },
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    let line = std::str::from_utf8(line).map_err(|_| Stop::Nonsense)?;
    line.parse().map_err(|_| Stop::Nonsense)
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
#[path = "value_tests.rs"]
mod tests;
