//! Opening what lies in the directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation, access, flock, statfs};
use tenure_core::ErrorKind;

use crate::fault::{Fault, Result};

/// How long to wait for another process that is just opening the same directory.
const OPENING_TAKES: Duration = Duration::from_secs(5);

/// Creates the directory if it is missing, and refuses one that cannot serve.
pub(crate) fn prepare(dir: &Path) -> Result<()> {
    make_dir(dir)?;
    access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| Fault::io("writing to", dir, error))?;
    let stats = statfs(dir).map_err(|error| Fault::io("looking at", dir, error))?;
    if let Some(name) = network_name(stats.f_type as u64 & 0xffff_ffff) {
        let why = format!(
            "{} is on a network file system ({name}), where machines would not see each \
             other's locks: choose a directory on a local disk",
            dir.display()
        );
        return Err(Fault::new(ErrorKind::Unsupported, why));
    }
    make_dir(&dir.join("wake"))
}

/// Opens for reading and writing, private to the user, not inherited by other programs.
pub(crate) fn open_or_create(path: &Path) -> Result<File> {
    private().create(true).open(path).map_err(|error| Fault::io("opening", path, error))
}

pub(crate) fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW);
    options
}

/// Keeps others from creating or replacing the table until the file is dropped.
pub(crate) fn hold_init(dir: &Path) -> Result<File> {
    let path = dir.join("init");
    let mut file = open_or_create(&path)?;
    let started = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_linked(&file, &path)? => return Ok(file),
            // Deleted meanwhile: other processes lock another file.
            Ok(()) => file = open_or_create(&path)?,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
                if started.elapsed() < OPENING_TAKES =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(rustix::io::Errno::AGAIN) => {
                let why = format!(
                    "another process has been opening {} for more than {OPENING_TAKES:?}: it \
                     may be stopped; let it go on or kill it",
                    dir.display()
                );
                return Err(Fault::new(ErrorKind::Unreachable, why));
            }
            Err(error) => return Err(Fault::io("locking", &path, error)),
        }
    }
}

/// Whether who opens the path now gets this very file.
pub(crate) fn is_linked(file: &File, path: &Path) -> Result<bool> {
    let ours = file.metadata().map_err(|error| Fault::io("looking at", path, error))?;
    let named = std::fs::symlink_metadata(path);
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())))
}

/// Makes names in a directory survive a power cut.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(|error| Fault::io("syncing", dir, error))
}

fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Fault::new(
            ErrorKind::Invalid,
            format!("{} is not a directory: choose another path or remove it", dir.display()),
        )),
        Err(error) => Err(Fault::io("creating", dir, error)),
        Ok(()) => Ok(()),
    }
}

/// The file systems on which another machine can have the same file, by their magic number.
fn network_name(magic: u64) -> Option<&'static str> {
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
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_name(0xef53), None, "ext4");
        assert_eq!(network_name(0x0102_1994), None, "tmpfs");
    }

    #[test]
    fn a_directory_that_cannot_be_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        for path in [file.clone(), file.join("below")] {
            let fault = prepare(&path).unwrap_err();
            assert_eq!(fault.kind(), ErrorKind::Invalid, "{fault:?}");
            assert!(format!("{fault:?}").contains("choose another"), "{fault:?}");
        }
        // Even root may not make directories there.
        let fault = prepare(Path::new("/sys/kernel/tenure")).unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Denied, "{fault:?}");
        assert!(format!("{fault:?}").contains("may write to"), "{fault:?}");
    }
}
