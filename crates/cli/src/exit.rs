//! Exit codes, and the one place where an error becomes one.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::Signal;
use tenure::{Error, ErrorKind};

pub(crate) const OK: u8 = 0;
/// `status` found the lock free.
pub(crate) const FREE: u8 = 1;
/// `release` found nothing to release.
pub(crate) const NOTHING_DONE: u8 = 1;
/// `doctor` found something that is unsafe.
pub(crate) const UNSAFE: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const INTERNAL: u8 = 70;
pub(crate) const BUSY: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// The table that `--help` and the manual page show.
pub(crate) const TABLE: &str = "\
Exit codes:
  run ends with the code of its command, or with 128 + N where signal N ended it. Otherwise:
    0  done; hold: released on request; status: the lock is held
    1  status: the lock is free; release: nobody held it; doctor: something is unsafe
   64  usage: the command line, a name, a duration or a store URL is wrong
   69  the store is unavailable: unreachable, too slow, full or damaged
   70  a fault of tenure's own
   75  busy, or not free in time (run and hold; -E chooses another code)
   76  the lock was lost while it was needed, or the command was stopped because the lock was
       about to be lost
   77  the store does not allow it: permissions or credentials
  126  the command cannot be executed
  127  the command is not found
  128 + N  signal N ended tenure, as a shell shows it: it came before the lock was held, or was
           passed on to the command and ended it";

/// The code of a process that signal number `signal` ended, as shells count.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The signal to die of when everything is given back; zero for none.
static DYING_OF: AtomicI32 = AtomicI32::new(0);

/// Ends the program by a signal when everything is given back: a shell goes on with its script
/// unless what it ran has died of ^C. Returns the code for where no signal can end us, as in the
/// first process of a container.
pub(crate) fn die_of(signal: Signal) -> u8 {
    DYING_OF.store(signal.as_raw(), Ordering::Relaxed);
    by_signal(signal.as_raw())
}

/// The signal that was asked for with [`die_of`].
pub(crate) fn dying_of() -> Option<i32> {
    Some(DYING_OF.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Why a command ends without having done its work: one line for people, one code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Empty where the code says everything.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Something the operating system refused us.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(INTERNAL, format!("could not {what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code(error.kind()), line(&error))
    }
}

/// Results of commands: the exit code, or a failure.
pub(crate) type Outcome = Result<u8, Failure>;

/// The exit code for a kind of error.
pub(crate) const fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Busy | ErrorKind::TimedOut => BUSY,
        ErrorKind::Lost => LOST,
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::Denied => DENIED,
        // A store that is full, damaged or too slow for the TTL serves nobody, as one that does
        // not answer: the caller can only try later or elsewhere.
        ErrorKind::Unreachable
        | ErrorKind::QuorumLost
        | ErrorKind::LeaseTooShort
        | ErrorKind::Full
        | ErrorKind::Damaged => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// An error with its causes, in one line: unless it says itself what is at the bottom of it.
pub(crate) fn line(error: &Error) -> String {
    let mut line = error.to_string();
    let causes: Vec<String> = std::iter::successors(error.source(), |cause| (*cause).source())
        .map(ToString::to_string)
        .collect();
    if causes.last().is_some_and(|last| line.contains(last)) {
        return line;
    }
    for cause in causes {
        // Many errors repeat their cause.
        if !line.contains(&cause) {
            // Writing to a string cannot fail.
            let _ = write!(line, ": {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_text_names_every_exit_code() {
        let codes = [OK, NOTHING_DONE, USAGE, UNAVAILABLE, INTERNAL, BUSY, LOST, DENIED];
        for code in codes.into_iter().chain([CANNOT_EXECUTE, NOT_FOUND]) {
            let has = |line: &str| line.split_whitespace().next() == Some(&code.to_string());
            assert!(TABLE.lines().any(has), "{code}");
        }
    }

    #[test]
    fn kinds_that_call_for_different_actions_have_different_codes() {
        for (kind, expected) in [
            (ErrorKind::Busy, 75),
            (ErrorKind::TimedOut, 75),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Lost, 76),
            (ErrorKind::Invalid, 64),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::Denied, 77),
            (ErrorKind::Full, 69),
            (ErrorKind::Damaged, 69),
            (ErrorKind::Internal, 70),
        ] {
            assert_eq!(code(kind), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_line_tells_each_cause_once() {
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply: refused");
        assert_eq!(line(&error.caused_by("refused")), "could not list: no reply: refused");
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply");
        assert_eq!(line(&error.caused_by("refused")), "could not list: no reply: refused");
        // What lies between an error and the cause that it names says nothing more.
        let between = Error::new(ErrorKind::Internal, "connect", "code 14").caused_by("refused");
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply: refused");
        assert_eq!(line(&error.caused_by(between)), "could not list: no reply: refused");
    }
}
