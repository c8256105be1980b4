//! Passwords that can be replaced while the program runs.

use std::fmt;
use std::path::PathBuf;

use crate::{Error, ErrorKind, Result};

/// The password of a login, or the file that it stands in.
///
/// A file is read for each login, so that a password can be replaced without a restart. What the
/// password is appears in no output.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The password itself.
    Text(String),
    /// The file whose first line it is.
    File(PathBuf),
}

impl Password {
    /// The password.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) if its file cannot be read.
    pub fn read(&self) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let why = format!("the password file {}: {error}", path.display());
                    Error::new(ErrorKind::Denied, "log in", why)
                })?;
                Ok(text.lines().next().unwrap_or_default().to_owned())
            }
        }
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_each_time_and_its_first_line_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let password = Password::File(path.clone());
        assert_eq!(password.read().unwrap_err().kind(), ErrorKind::Denied);
        for (content, wanted) in [("one", "one"), ("two\n", "two"), ("three\r\nfour\n", "three")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(password.read().unwrap(), wanted);
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(format!("{:?}", Password::from("secret")), "***");
    }
}
