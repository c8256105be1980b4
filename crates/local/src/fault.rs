//! The error type inside this crate, which is cheap to pass around.

use std::fmt;
use std::io;
use std::path::Path;

use tenure_core::{Error, ErrorKind};

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// A fault on its way to becoming an [`Error`]. Boxed, because reading a word of the table can
/// fail and must stay cheap when it does not.
pub(crate) struct Fault(Box<Details>);

struct Details {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
    /// Whether the table is damaged: then the message gets its path and a remedy.
    of_table: bool,
    /// Whether only a fencing token is missing.
    no_token: bool,
}

impl Fault {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Details { kind, message, source: None, of_table: false, no_token: false }))
    }

    /// The table does not hold together: `what` completes "the table is damaged: …".
    #[cold]
    pub(crate) fn damaged(what: &str) -> Self {
        let mut fault = Self::new(ErrorKind::Damaged, format!("the lock table is damaged: {what}"));
        fault.0.of_table = true;
        fault
    }

    /// No fencing token is left: the caller waits for a reservation and repeats the work.
    #[cold]
    pub(crate) fn no_token() -> Self {
        let why = "all reserved fencing tokens are used up: try again";
        let mut fault = Self::new(ErrorKind::Unreachable, why);
        fault.0.no_token = true;
        fault
    }

    pub(crate) const fn is_no_token(&self) -> bool {
        self.0.no_token
    }

    /// A copy for another caller, without the source, which is in the message.
    pub(crate) fn again(&self) -> Self {
        let mut fault = Self::new(self.0.kind, self.0.message.clone());
        fault.0.of_table = self.0.of_table;
        fault
    }

    /// A system call failed on `path`.
    pub(crate) fn io(doing: &str, path: &Path, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let (kind, remedy) = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                (ErrorKind::Full, "make room on the disk")
            }
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                (ErrorKind::Denied, "choose a directory this user may write to")
            }
            Some(libc::ENOTDIR | libc::ENAMETOOLONG | libc::ENOENT | libc::ELOOP) => {
                (ErrorKind::Invalid, "choose another directory")
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                (ErrorKind::Unreachable, "raise the limit of open files")
            }
            _ => (ErrorKind::Unreachable, "see the cause"),
        };
        let message = format!("{doing} {} failed ({error}): {remedy}", path.display());
        let mut fault = Self::new(kind, message);
        fault.0.source = Some(error);
        fault
    }

    /// The public error, with the operation and, for a damaged table, a remedy.
    pub(crate) fn during(self, operation: &'static str, dir: &Path) -> Error {
        let Details { kind, mut message, source, of_table, no_token: _ } = *self.0;
        if of_table {
            let table = dir.join("table");
            let remedy =
                "; stop the processes that use it and delete it, or choose another directory";
            message.push_str(&format!(" ({}){remedy}", table.display()));
        }
        let error = Error::new(kind, operation, message);
        match source {
            Some(source) => error.caused_by(source),
            None => error,
        }
    }

    #[cfg(test)]
    pub(crate) const fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}
