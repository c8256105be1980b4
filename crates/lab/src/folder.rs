//! The directory of everything that experiments write.

use std::io;

use tenure_testkit::TempDir;

/// Makes one directory for the files of all servers that this process starts from now on. It is removed when it is
/// dropped; a program that is interrupted removes it by its path.
///
/// # Errors
/// If it cannot be made, or was made before.
pub fn private_folder() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("tenure-lab-").tempdir()?;
    let was_set = |_| io::Error::other("this process has a laboratory already");
    tempfile::env::override_temp_dir(folder.path()).map_err(was_set)?;
    Ok(folder)
}
