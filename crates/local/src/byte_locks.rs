//! Locks on single bytes of a file. The kernel releases them when the process that holds them ends, in
//! whatever way.
//!
//! They are "open file description" locks, because a classic record lock is lost as soon as the process
//! closes any descriptor of the file.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks a byte for this open file. False if another open file has it locked.
pub(crate) fn try_lock(file: &File, byte: u32) -> io::Result<bool> {
    let mut lock = whole_byte(byte);
    match control(file, libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether another open file has a byte locked.
pub(crate) fn is_locked(file: &File, byte: u32) -> io::Result<bool> {
    let mut lock = whole_byte(byte);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// A byte that another open file has locked, if there is one.
pub(crate) fn any_locked(file: &File) -> io::Result<Option<u32>> {
    let mut lock = whole_byte(0);
    // A length of zero means up to the end of the file.
    lock.l_len = 0;
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    let is_locked = lock.l_type != libc::F_UNLCK as libc::c_short;
    Ok(is_locked.then(|| u32::try_from(lock.l_start).unwrap_or(u32::MAX)))
}

fn whole_byte(byte: u32) -> libc::flock {
    // SAFETY: `flock` is a plain C structure of integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::from(byte);
    lock.l_len = 1;
    lock
}

fn control(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed, and both commands read
        // and write one `flock` structure, which `lock` is.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
        if answer != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_locked_by_one_open_file_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members");
        let open = || {
            let mut options = File::options();
            options.create(true).truncate(false).read(true).write(true);
            options.open(&path).unwrap()
        };
        let (ours, theirs) = (open(), open());
        assert!(try_lock(&ours, 3).unwrap());
        assert!(!try_lock(&theirs, 3).unwrap());
        assert!(is_locked(&theirs, 3).unwrap());
        assert!(!is_locked(&theirs, 4).unwrap());
        assert_eq!(any_locked(&theirs).unwrap(), Some(3));
        assert_eq!(any_locked(&ours).unwrap(), None, "an open file does not see its own lock");
        drop(open());
        assert!(is_locked(&theirs, 3).unwrap(), "closing another descriptor leaves it locked");
        drop(ours);
        assert_eq!(any_locked(&theirs).unwrap(), None);
        assert!(!is_locked(&theirs, 3).unwrap());
    }
}
