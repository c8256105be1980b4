//! Exit codes, and the mapping from errors to exit codes and messages.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Signal, WaitStatus};
use tenure::{Error, ErrorKind};

pub(crate) const OK: u8 = 0;
/// `status` found the lock free.
pub(crate) const FREE: u8 = 1;
/// `release` or `revoke` found nothing to release.
pub(crate) const NOTHING_DONE: u8 = 1;
/// `doctor` found something unsafe.
pub(crate) const UNSAFE: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const INTERNAL: u8 = 70;
pub(crate) const BUSY: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// The table of exit codes in `--help` and the manual page.
pub(crate) const TABLE: &str = "\
Exit codes:
  run and elect exit with the code of their command, or with 128 + N if signal N ended it. Otherwise:
    0  success; hold: released on request; status: the lock is held; revoke: it was let go or
       evicted; run --once-per: not run again (-E sets another code)
    1  status: the lock is free; release, revoke: the lock was not held; doctor: something is
       unsafe
   64  usage error: invalid command line, lock name, duration or store URL
   69  the store is unavailable: unreachable, too slow, full or damaged
   70  internal error
   75  the lock is busy or did not become free in time (run and hold; -E sets another code);
       revoke: it was not let go within --wait
   76  the lock was lost while it was needed, or the command was stopped because the lock was
       about to be lost, or `tenure revoke` asked for it
   77  the store denied access: permissions or credentials
  126  the command cannot be executed
  127  the command was not found
  128 + N  signal N ended tenure before it held the lock, or was forwarded to the command and
           ended it";

/// The exit code that shells show for a process that signal number `signal` ended.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The signal that [`main`](crate::main) raises at its end; zero for none.
static FINAL_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Makes this process end by a signal after all locks are released: a shell continues its script
/// after ^C unless the program that it ran was killed by SIGINT itself. Returns the exit code to use
/// if the signal does not end the process, as in the first process of a container.
pub(crate) fn with_signal(signal: Signal) -> u8 {
    FINAL_SIGNAL.store(signal.as_raw(), Ordering::Relaxed);
    by_signal(signal.as_raw())
}

/// The exit code of this process if it ends as a child did.
pub(crate) fn of_process(status: WaitStatus) -> u8 {
    let by_signal =
        || status.terminating_signal().and_then(Signal::from_named_raw).map(with_signal);
    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
    code.or_else(by_signal).unwrap_or(INTERNAL)
}

/// The signal of [`with_signal`], if it was called. This process does not raise it any more.
pub(crate) fn take_final_signal() -> Option<i32> {
    let signal = final_signal();
    FINAL_SIGNAL.store(0, Ordering::Relaxed);
    signal
}

/// The signal of [`with_signal`], if it was called.
pub(crate) fn final_signal() -> Option<i32> {
    Some(FINAL_SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Why a command failed: a message for the user and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Empty if only the exit code is reported.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failed call of the operating system.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(INTERNAL, format!("could not {what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code(error.kind()), line(&error))
    }
}

/// The result of a command: its exit code, or a failure.
pub(crate) type Outcome = Result<u8, Failure>;

/// The exit code for a kind of error.
pub(crate) const fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Busy | ErrorKind::TimedOut => BUSY,
        ErrorKind::Lost => LOST,
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::Denied => DENIED,
        // A full, damaged or slow store is as unavailable as one that does not answer: the caller can
        // only try later or elsewhere.
        ErrorKind::Unreachable
        | ErrorKind::QuorumLost
        | ErrorKind::LeaseTooShort
        | ErrorKind::Full
        | ErrorKind::Damaged => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// An error and its causes in one line, without causes that its message already contains.
pub(crate) fn line(error: &Error) -> String {
    let mut line = error.to_string();
    let causes: Vec<String> = std::iter::successors(error.source(), |cause| (*cause).source())
        .map(ToString::to_string)
        .collect();
    if causes.last().is_some_and(|last| line.contains(last)) {
        return line;
    }
    for cause in causes {
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
    fn the_help_text_lists_every_exit_code() {
        let codes = [OK, NOTHING_DONE, USAGE, UNAVAILABLE, INTERNAL, BUSY, LOST, DENIED];
        for code in codes.into_iter().chain([CANNOT_EXECUTE, NOT_FOUND]) {
            let has = |line: &str| line.split_whitespace().next() == Some(&code.to_string());
            assert!(TABLE.lines().any(has), "{code}");
        }
    }

    #[test]
    fn error_kinds_map_to_exit_codes_by_what_the_caller_can_do() {
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
    fn a_message_contains_each_cause_once() {
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply: refused");
        assert_eq!(line(&error.caused_by("refused")), "could not list: no reply: refused");
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply");
        assert_eq!(line(&error.caused_by("refused")), "could not list: no reply: refused");
        // An error whose message has the root cause does not show the causes in between.
        let between = Error::new(ErrorKind::Internal, "connect", "code 14").caused_by("refused");
        let error = Error::new(ErrorKind::Unreachable, "list", "no reply: refused");
        assert_eq!(line(&error.caused_by(between)), "could not list: no reply: refused");
    }
}
