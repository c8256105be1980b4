//! The directory and its files: how they are created, opened and checked.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, statfs};
use tenure_core::ErrorKind;

use crate::access::{Access, share};
use crate::fault::{Fault, Result};

/// How long to wait for another process that is opening the same directory.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the directory if it is missing, and refuses an unsuitable one.
pub(crate) fn prepare(dir: &Path, access: &Access) -> Result<()> {
    if make_dir(dir, access)? {
        access.hand_over(dir)?;
    }
    let looked = |path: &Path, error| Fault::io("looking at", path, error);
    let metadata = std::fs::metadata(dir).map_err(|error| looked(dir, error))?;
    access.check_directory(&metadata, dir)?;
    access.check_owner(&metadata, dir)?;
    rustix::fs::access(
        dir,
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .map_err(|error| Fault::io("writing to", dir, error))?;
    let stats = statfs(dir).map_err(|error| looked(dir, error.into()))?;
    if let Some(name) = remote_name(stats.f_type as u64 & 0xffff_ffff)
        && !access.any_file_system
    {
        let why = format!(
            "{} is on {name}, behind which there may be another machine that does not see this \
             machine's locks: choose a directory on a local disk, or insist with filesystem=any \
             if every process that locks there runs on this machine",
            dir.display()
        );
        return Err(Fault::new(ErrorKind::Unsupported, why));
    }
    let wake = dir.join("wake");
    make_shared_dir(dir, "wake", access)?;
    // The other files are checked when they are opened.
    for path in [wake, dir.join("audit.log"), dir.join("audit.log.1")] {
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) => access.check_owner(&metadata, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(looked(&path, error)),
        }
    }
    Ok(())
}

/// Opens a file for reading and writing, and refuses one of another user. It checks the opened file, not
/// the path, which may name another file by then.
pub(crate) fn open(path: &Path, access: &Access) -> Result<Option<File>> {
    let failed = |error| Fault::io("opening", path, error);
    match private().open(path) {
        Ok(file) => {
            access.check_owner(&file.metadata().map_err(failed)?, path)?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// As [`open`], but creates the file if it is missing.
pub(crate) fn open_or_create(dir: &Path, name: &str, access: &Access) -> Result<File> {
    let path = dir.join(name);
    let failed = |error| Fault::io("opening", &path, error);
    for _ in 0..2 {
        if let Some(file) = open(&path, access)? {
            return Ok(file);
        }
        match private().create_new(true).open(&path) {
            Ok(file) => return share(dir, &file, &path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::ErrorKind::NotFound.into()))
}

/// Creates a draft file, to be renamed when it is complete. Deletes one that an earlier attempt left.
pub(crate) fn draft(dir: &Path, name: &str) -> Result<File> {
    let path = dir.join(name);
    let failed = |error| Fault::io("writing", &path, error);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = private().create_new(true).open(&path).map_err(failed)?;
    share(dir, &file, &path)?;
    Ok(file)
}

fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW);
    options
}

/// Keeps other processes from creating or replacing the table until the file is dropped.
pub(crate) fn hold_init(dir: &Path, access: &Access) -> Result<File> {
    let path = dir.join("init");
    let mut file = open_or_create(dir, "init", access)?;
    let started = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_linked(&file, &path)? => return Ok(file),
            // The file was deleted meanwhile: other processes lock a new one.
            Ok(()) => file = open_or_create(dir, "init", access)?,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
                if started.elapsed() < OPEN_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(rustix::io::Errno::AGAIN) => {
                let why = format!(
                    "another process has been opening {} for more than {OPEN_TIMEOUT:?}: it \
                     may be stopped; let it go on or kill it",
                    dir.display()
                );
                return Err(Fault::new(ErrorKind::Unreachable, why));
            }
            Err(error) => return Err(Fault::io("locking", &path, error)),
        }
    }
}

/// Whether `path` still names this file.
pub(crate) fn is_linked(file: &File, path: &Path) -> Result<bool> {
    let ours = file.metadata().map_err(|error| Fault::io("looking at", path, error))?;
    let named = std::fs::symlink_metadata(path);
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(|error| Fault::io("syncing", dir, error))
}

/// Creates a directory inside the store's, for all that share it, unless it exists.
pub(crate) fn make_shared_dir(dir: &Path, name: &str, access: &Access) -> Result<()> {
    let path = dir.join(name);
    if make_dir(&path, access)? {
        let made = File::open(&path).map_err(|error| Fault::io("looking at", &path, error))?;
        share(dir, &made, &path)?;
    }
    Ok(())
}

/// Creates a directory. False if it exists.
fn make_dir(dir: &Path, access: &Access) -> Result<bool> {
    let failed = |error| Fault::io("creating", dir, error);
    if let Some(above) = dir.parent().filter(|above| !above.exists()) {
        // The group must be able to traverse the parents of a shared directory, unless the umask forbids
        // it.
        let mode = if access.is_shared() { 0o755 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(above).map_err(failed)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error)),
        Err(_) if dir.is_dir() => Ok(false),
        Err(_) => Err(Fault::new(
            ErrorKind::Invalid,
            format!("{} is not a directory: choose another path or remove it", dir.display()),
        )),
    }
}

/// The name of a file system that other machines may share, by its magic number.
pub(crate) fn remote_name(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB 2",
        0x0102_1997 => "9P",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x564c => "NCP",
        0x4750_4653 => "GPFS",
        0x6163_6673 => "ACFS",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0xaad7_aaea => "PanFS",
        0xbeef_dead => "StorNext",
        0xa501_fcf5 => "VxFS",
        0x786f_4256 => "a VirtualBox folder",
        0xbacb_acbc => "a VMware folder",
        0x7c7c_6673 => "a Parallels folder",
        // sshfs, GlusterFS, virtiofs and many others; also ntfs-3g, which is local.
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_other_machines_may_share_are_known_by_number() {
        assert_eq!(remote_name(0x6969), Some("NFS"));
        assert_eq!(remote_name(0xff53_4d42), Some("CIFS"));
        assert_eq!(remote_name(0x6573_5546), Some("FUSE"));
        assert_eq!(remote_name(0xef53), None, "ext4");
        assert_eq!(remote_name(0x794c_7630), None, "overlay");
        assert_eq!(remote_name(0x0102_1994), None, "tmpfs");
    }

    #[test]
    fn an_impossible_directory_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        for path in [file.clone(), file.join("below")] {
            let fault = prepare(&path, &Access::default()).unwrap_err();
            assert_eq!(fault.kind(), ErrorKind::Invalid, "{fault:?}");
            assert!(format!("{fault:?}").contains("choose another"), "{fault:?}");
        }
        // Even root may not make directories there.
        let fault = prepare(Path::new("/sys/kernel/tenure"), &Access::default()).unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Denied, "{fault:?}");
        assert!(format!("{fault:?}").contains("may write to"), "{fault:?}");
    }
}
