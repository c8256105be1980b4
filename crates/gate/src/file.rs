//! A file that only the present holder of a lock can replace.

use std::fs;
use std::io;
use std::path::PathBuf;

use tenure_core::{LockName, Token};

use crate::GateError;
use crate::register::{FileRegister, beside, replace};

/// A file whose content is replaced only by writes with a current token.
///
/// The highest token is kept in a second file beside it (`NAME.fence`). A write is one atomic step: the
/// token is compared and recorded, and the file replaced, under a lock of the operating system (on
/// `NAME.fence.lock`), so writers on one machine cannot cross. Readers need no gate: they find the old
/// content or the new one, never a mixture. A gate does not stop writers that do not use one.
///
/// ```
/// use tenure::gate::FileGate;
/// use tenure::{LockName, Token};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("report.json");
/// let gate = FileGate::new(path, LockName::new("nightly-report")?);
/// gate.write(Token::new(34), b"the present holder's")?;
///
/// // A holder that was paused wakes up with the token of an earlier hold.
/// let refused = gate.write(Token::new(33), b"an old holder's").unwrap_err();
/// assert!(refused.is_stale());
/// # Ok(())
/// # }
/// ```
///
/// Each write syncs to disk and blocks meanwhile. In asynchronous code, call it with
/// [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html).
#[derive(Debug)]
pub struct FileGate {
    path: PathBuf,
    lock: LockName,
    register: FileRegister,
}

impl FileGate {
    /// A gate for the file at `path`, which `lock` protects. The file need not exist.
    pub fn new(path: impl Into<PathBuf>, lock: LockName) -> Self {
        let path = path.into();
        let register = FileRegister::new(beside(&path, "fence"));
        Self { path, lock, register }
    }

    /// Replaces the content, if `token` is current.
    ///
    /// # Errors
    /// [`GateError::Stale`] if a higher token was seen; [`GateError::Resource`] if a file cannot be read or
    /// written. The old content is still there.
    pub fn write(&self, token: Token, content: &[u8]) -> Result<(), GateError> {
        self.update(token, |_| content.to_vec())
    }

    /// Replaces the content by what `change` makes of it (`None` where there is no file yet), if `token` is
    /// current.
    ///
    /// # Errors
    /// As [`write`](FileGate::write).
    pub fn update(
        &self,
        token: Token,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
    ) -> Result<(), GateError> {
        self.register.admit_and(&self.lock, token, || {
            let old = match fs::read(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                content => Some(content?),
            };
            replace(&self.path, &change(old))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_write_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stock");
        let gate = FileGate::new(&path, LockName::new("stock").unwrap());
        gate.write(Token::new(2), b"10").unwrap();
        gate.update(Token::new(3), |old| {
            assert_eq!(old.as_deref(), Some(&b"10"[..]));
            b"5".to_vec()
        })
        .unwrap();
        let late = gate.update(Token::new(2), |_| unreachable!("the token is compared first"));
        assert!(late.unwrap_err().is_stale());
        assert_eq!(fs::read(&path).unwrap(), b"5");
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_content_and_the_new_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stock");
        let gate = FileGate::new(&path, LockName::new("stock").unwrap());
        gate.write(Token::new(1), b"10").unwrap();
        // The new content cannot be written where a directory is in its way.
        fs::create_dir(beside(&path, "new")).unwrap();
        let failed = gate.write(Token::new(2), b"5").unwrap_err();
        assert!(matches!(failed, GateError::Resource { .. }));
        assert_eq!(fs::read(&path).unwrap(), b"10");
        fs::remove_dir(beside(&path, "new")).unwrap();
        assert!(gate.write(Token::new(1), b"late").unwrap_err().is_stale());
        gate.write(Token::new(2), b"5").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"5");
    }
}
