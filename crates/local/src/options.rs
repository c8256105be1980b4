//! The options of opening a local store.

use std::path::Path;

use tenure_core::Result;

use crate::access::Access;
use crate::store::LocalStore;
use crate::table::Setup;

/// How to open a local store. By default, its directory is private to one user and on a local
/// disk, and everything else is refused: [`LocalStore::open`] does that.
///
/// ```no_run
/// # async fn example() -> tenure::Result<()> {
/// use tenure::local;
///
/// let store = local::Config::new().group("deploy").open("/var/lib/app/locks")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    group: Option<String>,
    any_owner: bool,
    any_file_system: bool,
    setup: Setup,
}

impl LocalOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shares the directory with the users of a group, given by its name in `/etc/group` or by its
    /// number. The directory is created with mode 2770, and its files with mode 0660. One that
    /// exists must belong to the group, with at least the bits 2070; its owner may be any member.
    ///
    /// Every member of the group can take, evict and damage the locks.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Accepts a directory and files that belong to any user. By default only this user's and
    /// root's are accepted, because the owner of a file can change it at any time.
    #[must_use]
    pub const fn any_owner(mut self, accept: bool) -> Self {
        self.any_owner = accept;
        self
    }

    /// Accepts any file system. By default network file systems and FUSE are refused: behind one
    /// there may be another machine that does not see this machine's locks. Insist only where
    /// every process that uses the directory runs on this machine.
    #[must_use]
    pub const fn any_file_system(mut self, accept: bool) -> Self {
        self.any_file_system = accept;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn for_test(mut self, setup: Setup) -> Self {
        self.setup = setup;
        self
    }

    /// Opens the directory, and creates it if it is missing.
    ///
    /// # Errors
    /// [`Denied`](tenure_core::ErrorKind::Denied) for a directory that this user may not write to or that
    /// belongs to another user, [`Invalid`](tenure_core::ErrorKind::Invalid) for a path that is no directory,
    /// [`Unsupported`](tenure_core::ErrorKind::Unsupported) for a file system that other machines may share
    /// and for a table in use by processes of another version, boot id or clock,
    /// [`Damaged`](tenure_core::ErrorKind::Damaged), [`Full`](tenure_core::ErrorKind::Full).
    pub fn open(&self, dir: impl AsRef<Path>) -> Result<LocalStore> {
        let operation = "open the local store";
        // The working directory may change later.
        let dir = &std::path::absolute(&dir).unwrap_or_else(|_| dir.as_ref().to_owned());
        Access::new(self.group.as_deref(), self.any_owner, self.any_file_system)
            .and_then(|access| LocalStore::start(dir, access, self.setup))
            .map_err(|fault| fault.during(operation, dir))
    }
}
