//! A wall clock that tests can set forward, for processes that they start.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::temp_dir;

/// A clock that agrees with the machine's until it is set. Needs `cc`.
#[derive(Debug)]
pub struct FakeClock {
    folder: TempDir,
}

impl FakeClock {
    /// A clock that agrees with the machine's.
    ///
    /// # Errors
    /// If there is no `cc`, or it fails.
    pub fn new() -> io::Result<Self> {
        let folder = temp_dir();
        let source = folder.path().join("clock.c");
        fs::write(&source, include_str!("clock.c"))?;
        fs::write(folder.path().join("shift"), 0i64.to_ne_bytes())?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.path().join("clock.so"));
        let made = cc.arg(&source).output()?;
        match made.status.success() {
            true => Ok(Self { folder }),
            false => Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned())),
        }
    }

    /// Sets it ahead of the machine's clock by this much.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn set_ahead(&self, by: Duration) -> io::Result<()> {
        let nanos = i64::try_from(by.as_nanos()).map_err(io::Error::other)?;
        let file = OpenOptions::new().write(true).open(self.folder.path().join("shift"))?;
        file.write_all_at(&nanos.to_ne_bytes(), 0)
    }

    /// The environment variables that a process needs to use it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        vec![("LD_PRELOAD".into(), path("clock.so")), ("TENURE_FALSE_CLOCK".into(), path("shift"))]
    }
}
