//! Where a resource keeps the highest token it has seen.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tenure_core::{LockName, Token};

use crate::GateError;

/// The highest token that a resource has seen, for each of its locks.
///
/// [`admit`](Register::admit) compares and records in one atomic step.
pub trait Register: Send + Sync {
    /// Records `token`, unless a higher one was recorded before.
    ///
    /// # Errors
    /// [`GateError::Stale`] if a higher one was; [`GateError::Resource`] if the record cannot be read or
    /// written. Then the write must not take place.
    fn admit(&self, lock: &LockName, token: Token) -> Result<(), GateError>;
}

/// A register in memory. It forgets its tokens when the process ends: until the present holder has written
/// again, a restarted resource accepts the token of an earlier one. Use a [`FileRegister`] where that
/// matters.
///
/// It keeps one number for each lock that it admits, so admit a fixed set of locks.
#[derive(Debug, Default)]
pub struct MemoryRegister(Mutex<HashMap<LockName, Token>>);

impl MemoryRegister {
    /// A register that has seen no token.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Register for MemoryRegister {
    fn admit(&self, lock: &LockName, token: Token) -> Result<(), GateError> {
        let mut tokens = self.0.lock();
        match tokens.get_mut(lock) {
            Some(newest) => compare(lock, token, *newest).map(|()| *newest = token),
            None => {
                tokens.insert(lock.clone(), token);
                Ok(())
            }
        }
    }
}

/// A register in a file, for one lock. The file names the lock and its highest token, is locked while it is
/// read and written, and is synced before a token is admitted.
///
/// It blocks for as long as a sync takes. In asynchronous code, call it with
/// [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html).
#[derive(Debug)]
pub struct FileRegister {
    path: PathBuf,
}

impl FileRegister {
    /// A register in this file, which is made with the first token.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Admits `token` and does `write` before any other process can be admitted. If `write` fails, the token
    /// stays admitted.
    pub(crate) fn admit_and<T>(
        &self,
        lock: &LockName,
        token: Token,
        write: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, GateError> {
        let resource = |source| GateError::Resource { lock: lock.clone(), source };
        // A file of its own: the register itself is replaced by every new token.
        let turn = File::create(beside(&self.path, "lock")).map_err(resource)?;
        turn.lock().map_err(resource)?;
        let newest = self.newest(lock).map_err(resource)?;
        if let Some(newest) = newest {
            compare(lock, token, newest)?;
        }
        if newest != Some(token) {
            replace(&self.path, format!("{token} {lock}\n").as_bytes()).map_err(resource)?;
        }
        write().map_err(resource)
    }

    fn newest(&self, lock: &LockName) -> io::Result<Option<Token>> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let invalid = |why: String| {
            let path = self.path.display();
            io::Error::new(io::ErrorKind::InvalidData, format!("{path} {why}"))
        };
        let line = text.strip_suffix('\n');
        let (token, name) = line.and_then(|line| line.split_once(' ')).ok_or_else(|| {
            invalid(
                "is not a record of tokens: restore it, or delete it if no old holder can write"
                    .into(),
            )
        })?;
        if name != lock.as_str() {
            return Err(invalid(format!(
                "has the tokens of lock {name:?}: use a file for each lock"
            )));
        }
        let token = token.parse().map_err(|_| invalid(format!("has no token, but {token:?}")))?;
        Ok(Some(Token::new(token)))
    }
}

impl Register for FileRegister {
    fn admit(&self, lock: &LockName, token: Token) -> Result<(), GateError> {
        self.admit_and(lock, token, || Ok(()))
    }
}

fn compare(lock: &LockName, token: Token, newest: Token) -> Result<(), GateError> {
    match token < newest {
        true => Err(GateError::Stale { lock: lock.clone(), token, newest }),
        false => Ok(()),
    }
}

/// Replaces a file so that readers, and this machine after a crash, find the old bytes or the new ones.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_folder(path)
}

/// Makes the new name of a file durable.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Other systems cannot sync a directory.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The path of a file that belongs to `path`.
pub(crate) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> LockName {
        LockName::new("report").unwrap()
    }

    fn rising(register: &dyn Register) {
        let admit = |token| register.admit(&lock(), Token::new(token));
        admit(5).unwrap();
        admit(5).unwrap();
        admit(7).unwrap();
        let refused = admit(6).unwrap_err();
        let newest = Token::new(7);
        assert!(matches!(refused, GateError::Stale { newest: seen, .. } if seen == newest));
        assert!(refused.to_string().contains("report"), "{refused}");
        admit(7).unwrap();
    }

    #[test]
    fn a_lower_token_is_refused_and_an_equal_one_is_not() {
        rising(&MemoryRegister::new());
        let folder = tempfile::tempdir().unwrap();
        rising(&FileRegister::new(folder.path().join("tokens")));
    }

    #[test]
    fn a_file_remembers_its_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        FileRegister::new(&path).admit(&lock(), Token::new(9)).unwrap();
        let refused = FileRegister::new(&path).admit(&lock(), Token::new(8));
        assert!(refused.unwrap_err().is_stale());
    }

    #[test]
    fn a_record_that_cannot_be_read_admits_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let register = FileRegister::new(&path);
        for damaged in ["", "\n", "12", "x report\n", "12 report", "12 other\n", "-1 report\n"] {
            fs::write(&path, damaged).unwrap();
            let refused = register.admit(&lock(), Token::new(u64::MAX)).unwrap_err();
            assert!(matches!(refused, GateError::Resource { .. }), "{damaged:?}: {refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn of_many_threads_the_highest_token_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::thread::scope(|scope| {
            for first in 1..=4 {
                let path = &path;
                scope.spawn(move || {
                    for token in (first..=100).step_by(4) {
                        // Refused if another thread was ahead.
                        let _ = FileRegister::new(path).admit(&lock(), Token::new(token));
                    }
                });
            }
        });
        let register = FileRegister::new(&path);
        assert!(register.admit(&lock(), Token::new(99)).unwrap_err().is_stale());
        register.admit(&lock(), Token::new(100)).unwrap();
    }
}
