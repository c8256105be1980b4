//! A simulated disk that confirms writes late or never, for processes that tests start.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use crate::temp_dir;

/// Intercepts `fdatasync` of all files of one name in a process. Needs `cc`.
#[derive(Debug)]
pub struct FakeSync {
    folder: TempDir,
    name: String,
}

impl FakeSync {
    /// A disk that works until [`hold`](Self::hold) or [`fail`](Self::fail) is called.
    ///
    /// # Errors
    /// If there is no `cc`, or it fails.
    pub fn of(name: &str) -> io::Result<Self> {
        let folder = temp_dir();
        let source = folder.path().join("sync.c");
        fs::write(&source, include_str!("sync.c"))?;
        fs::write(folder.path().join("state"), [0; 8])?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.path().join("sync.so"));
        let made = cc.arg(&source).output()?;
        match made.status.success() {
            true => Ok(Self { folder, name: name.to_owned() }),
            false => Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned())),
        }
    }

    /// Makes all calls block from now on.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn hold(&self) -> io::Result<()> {
        self.set(1)
    }

    /// Makes all calls fail with "disk full" from now on.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn fail(&self) -> io::Result<()> {
        self.set(rustix::io::Errno::NOSPC.raw_os_error())
    }

    /// Makes all calls work again, including the blocked ones.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn recover(&self) -> io::Result<()> {
        self.set(0)
    }

    /// How many calls are blocked now.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn held(&self) -> io::Result<i32> {
        let mut count = [0; 4];
        self.state()?.read_exact_at(&mut count, 4)?;
        Ok(i32::from_ne_bytes(count))
    }

    /// The environment variables that a process needs to be affected.
    pub fn environment(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        vec![
            ("LD_PRELOAD".into(), path("sync.so")),
            ("TENURE_FALSE_SYNC".into(), path("state")),
            ("TENURE_FALSE_SYNC_OF".into(), self.name.clone()),
        ]
    }

    fn set(&self, state: i32) -> io::Result<()> {
        self.state()?.write_all_at(&state.to_ne_bytes(), 0)
    }

    fn state(&self) -> io::Result<fs::File> {
        OpenOptions::new().read(true).write(true).open(self.folder.path().join("state"))
    }
}

impl Drop for FakeSync {
    /// Unblocks processes, which would otherwise hang after their test.
    fn drop(&mut self) {
        let _ = self.recover();
    }
}
