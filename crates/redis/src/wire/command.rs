//! Commands, as they are sent to a server.

use std::fmt;

use tenure_core::OwnerId;

/// An encoded command, without its first line.
#[derive(Clone)]
pub(crate) struct Command {
    words: usize,
    body: Vec<u8>,
}

/// An argument may be a password.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("words", &self.words).finish_non_exhaustive()
    }
}

/// An argument of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Owner(OwnerId),
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Arg<'a> {
    fn from(text: &'a T) -> Self {
        Self::Bytes(text.as_ref())
    }
}

impl From<OwnerId> for Arg<'_> {
    fn from(owner: OwnerId) -> Self {
        Self::Owner(owner)
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// A command without arguments.
pub(crate) fn cmd(name: &str) -> Command {
    Command { words: 0, body: Vec::with_capacity(512) }.arg(name)
}

impl Command {
    pub(crate) fn arg(mut self, argument: impl AsRef<[u8]>) -> Self {
        self.push(argument.as_ref());
        self
    }

    pub(crate) fn args<T: AsRef<[u8]>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        for argument in arguments {
            self.push(argument.as_ref());
        }
        self
    }

    pub(crate) fn number(mut self, number: impl Into<u64>) -> Self {
        let mut digits = [0; 20];
        self.push(decimal(number.into(), &mut digits));
        self
    }

    /// Adds arguments of any kind.
    pub(crate) fn mixed(self, arguments: &[Arg<'_>]) -> Self {
        arguments.iter().fold(self, |command, argument| match argument {
            Arg::Bytes(bytes) => command.arg(bytes),
            Arg::Number(number) => command.number(*number),
            Arg::Owner(owner) => command.arg(owner.to_hex()),
        })
    }

    /// Appends the whole command to `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        head(out, b'*', self.words);
        out.extend_from_slice(&self.body);
    }

    fn push(&mut self, argument: &[u8]) {
        head(&mut self.body, b'$', argument.len());
        self.body.extend_from_slice(argument);
        self.body.extend_from_slice(b"\r\n");
        self.words += 1;
    }
}

fn head(out: &mut Vec<u8>, kind: u8, number: usize) {
    let mut digits = [0; 20];
    out.push(kind);
    out.extend_from_slice(decimal(number as u64, &mut digits));
    out.extend_from_slice(b"\r\n");
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_list_of_strings() {
        let mut out = Vec::new();
        cmd("SET").arg("k").args(["", "PX"]).number(u64::MAX).write_to(&mut out);
        let expected =
            "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n$2\r\nPX\r\n$20\r\n18446744073709551615\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn arguments_are_not_shown() {
        assert!(!format!("{:?}", cmd("AUTH").arg("secret")).contains("secret"));
    }
}
