//! The unsafe system calls: signal dispositions and masks, fork, the hooks between fork and exec, and
//! locks on bytes of files.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::net::{SendFlags, send};
use rustix::process::{
    DumpableBehavior, Pid, Signal, getpid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setsid,
};
use rustix::termios::tcsetpgrp;

/// Whether a signal is ignored because the parent process ignored it (as `nohup` does with SIGHUP).
/// Such a signal stays ignored in tenure and in the command.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given, and the old one is written to memory of the right size, in
    // which zeroes are a valid value if the call fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Calls `action` with a signal blocked in this thread.
pub(crate) fn with_signal_blocked<T>(signal: Signal, action: impl FnOnce() -> T) -> T {
    let before = add_to_mask(signal);
    let done = action();
    change_mask(libc::SIG_SETMASK, Some(&before));
    done
}

/// Sets an environment variable of this process. Must be called while it has one thread.
pub(crate) fn set_variable(name: &str, value: &str) {
    // SAFETY: no other thread can read the environment, because there is none: a guardian starts its
    // runtime after this.
    unsafe { std::env::set_var(name, value) };
}

/// Raises a signal after restoring its default action. Returns only if the default action does not
/// end the process, or if this is the first process of a container, which its own signals do not end.
pub(crate) fn raise_with_default_action(signal: i32) {
    // SIGQUIT would write this process's memory, with passwords, to a core file.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // SAFETY: restoring the default action installs no code, and `raise` takes no memory.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Stops every process of tenure's own group, as the terminal would have done. Returns when tenure is
/// continued, or at once if no shell above it could continue it.
pub(crate) fn stop_own_group(signal: Signal) {
    let number = signal.as_raw();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an all-zero action is the default one (SIG_DFL, no flags, nothing masked); the old
    // action is written to memory of the right size and put back as it was. `kill` takes no
    // memory. Its signal reaches this thread before it returns.
    unsafe {
        let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(number, &default, before.as_mut_ptr());
        libc::kill(0, number);
        libc::sigaction(number, before.as_ptr(), ptr::null_mut());
    }
}

/// Prepares a command that is killed when tenure dies, announces itself to its guardian, leads a
/// process group of its own and, if `terminal` is given, starts in its foreground.
pub(crate) fn prepare_command(command: &mut Command, guardian: OwnedFd, terminal: Option<OwnedFd>) {
    let parent = getpid();
    command.process_group(0);
    let hook = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            // The parent died before the death signal was set.
            return Err(io::ErrorKind::Interrupted.into());
        }
        let me = getpid();
        let number = me.as_raw_pid().to_ne_bytes();
        // If the guardian was killed, the death signal remains.
        let _ = send(guardian.as_fd(), &number, SendFlags::NOSIGNAL);
        if let Some(terminal) = &terminal {
            let _ = with_signal_blocked(Signal::TTOU, || tcsetpgrp(terminal, me));
        }
        Ok(())
    };
    // SAFETY: the hook only makes system calls and uses its own stack: it does not allocate, lock or
    // panic (an error made of an `ErrorKind` has no heap memory).
    unsafe { command.pre_exec(hook) };
}

/// Prepares a guardian: in a session of its own, with the termination signals ignored, so that only
/// the end of its socket ends it.
pub(crate) fn prepare_guardian(command: &mut Command) {
    let hook = || {
        setsid()?;
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
            // SAFETY: ignoring a signal installs no code.
            unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: the hook only makes system calls, as above.
    unsafe { command.pre_exec(hook) };
}

/// Which process this is after a [`fork`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fork {
    Parent { child: Pid },
    Child,
}

/// Forks this process. Must be called while it has one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: with one thread, no other thread can hold a lock that the child would inherit locked.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => {
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Fork::Parent { child })
        }
    }
}

/// Closes all inherited descriptors except standard input, output, error and `keep`. Must be called
/// while this process owns no others.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut open = open_descriptors()?;
    open.retain(|fd| keep.iter().all(|keep| keep.as_raw_fd() != *fd));
    close(&open);
    Ok(())
}

/// All open descriptors except standard input, output and error.
pub(crate) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/self/fd")?;
    let open = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut open: Vec<RawFd> = open.filter(|fd| *fd > 2).collect();
    // The one that listed the directory is closed.
    // SAFETY: the call only asks for flags. A descriptor that is not open is an error.
    open.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1);
    Ok(open)
}

/// Closes descriptors that nothing in this process owns.
pub(crate) fn close(descriptors: &[RawFd]) {
    for fd in descriptors {
        // SAFETY: the caller guarantees that nothing in this process owns the descriptor. One that is
        // not open is an error without effect.
        unsafe { libc::close(*fd) };
    }
}

/// Signals that are read from a descriptor instead of being handled, until it is dropped.
#[derive(Debug)]
pub(crate) struct SignalFd {
    descriptor: OwnedFd,
    mask_before: libc::sigset_t,
}

impl SignalFd {
    pub(crate) fn block(signals: &[Signal]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` makes a valid set of the memory, to which `sigaddset` adds signals.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            set.assume_init()
        };
        // SAFETY: the set is a valid one; the new descriptor is owned by nothing else.
        let descriptor = unsafe {
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                descriptor => OwnedFd::from_raw_fd(descriptor),
            }
        };
        Ok(Self { descriptor, mask_before: change_mask(libc::SIG_BLOCK, Some(&set)) })
    }

    /// The next signal that has arrived, and the process that sent it; `None` if the kernel did, as for
    /// a terminal.
    pub(crate) fn next(&self) -> Option<(Signal, Option<Pid>)> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.descriptor, &mut info).ok()?;
        // The structure begins with the number, an errno, the code and the sender, four bytes each.
        let [number, code, sender] =
            [0, 8, 12].map(|at| info[at..at + 4].try_into().map_or(0, i32::from_ne_bytes));
        let signal = Signal::from_named_raw(number).filter(|_| read == info.len())?;
        Some((signal, Pid::from_raw(sender).filter(|_| code <= 0)))
    }
}

impl AsRef<OwnedFd> for SignalFd {
    fn as_ref(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, Some(&self.mask_before));
    }
}

/// Locks a byte of a file for the open file description of `fd`, without waiting: until the last
/// process that shares the description has closed it.
pub(crate) fn lock_byte(fd: RawFd, at: i64) -> io::Result<()> {
    change_lock(fd, libc::F_OFD_SETLK, at)
}

/// Waits until no other open file description has the byte locked.
pub(crate) fn wait_for_byte(file: impl AsFd, at: i64) -> io::Result<()> {
    loop {
        match change_lock(file.as_fd().as_raw_fd(), libc::F_OFD_SETLKW, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn change_lock(fd: RawFd, command: libc::c_int, at: i64) -> io::Result<()> {
    // SAFETY: zeroes are a valid value of the structure.
    let mut lock = unsafe { MaybeUninit::<libc::flock>::zeroed().assume_init() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    // SAFETY: the structure outlives the call. A descriptor that is not open is an error.
    match unsafe { libc::fcntl(fd, command, &lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn add_to_mask(signal: Signal) -> libc::sigset_t {
    let mut added = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` makes a valid set of the memory, to which `sigaddset` adds one signal.
    let added = unsafe {
        libc::sigemptyset(added.as_mut_ptr());
        libc::sigaddset(added.as_mut_ptr(), signal.as_raw());
        added.assume_init()
    };
    change_mask(libc::SIG_BLOCK, Some(&added))
}

/// Changes this thread's signal mask, and returns the previous one.
fn change_mask(how: libc::c_int, set: Option<&libc::sigset_t>) -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is a valid one or none, and the old mask is written to memory of the right
    // size, in which zeroes are a valid value.
    unsafe {
        libc::pthread_sigmask(how, set.map_or(ptr::null(), ptr::from_ref), before.as_mut_ptr());
        before.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: Signal) -> bool {
        let mask = change_mask(libc::SIG_BLOCK, None);
        // SAFETY: the set is a valid one.
        unsafe { libc::sigismember(&mask, signal.as_raw()) == 1 }
    }

    #[test]
    fn a_signal_is_blocked_only_during_the_action() {
        assert!(!is_blocked(Signal::TTOU));
        assert!(with_signal_blocked(Signal::TTOU, || is_blocked(Signal::TTOU)));
        assert!(!is_blocked(Signal::TTOU));
    }

    #[test]
    fn a_byte_stays_locked_until_every_copy_of_the_descriptor_is_closed() {
        let open = || fs::File::options().write(true).open("/dev/null").unwrap();
        let at = i64::from(std::process::id()) << 20;
        let (held, other) = (open(), open());
        lock_byte(held.as_raw_fd(), at).unwrap();
        let copy = held.try_clone().unwrap();
        drop(held);
        assert!(lock_byte(other.as_raw_fd(), at).is_err());
        lock_byte(other.as_raw_fd(), at + 1).unwrap();
        drop(copy);
        wait_for_byte(&other, at).unwrap();
        let unwritable = fs::File::open("/dev/null").unwrap();
        assert!(lock_byte(unwritable.as_raw_fd(), at + 2).is_err());
    }

    #[test]
    fn an_ignored_signal_is_recognized() {
        // The Rust runtime ignores SIGPIPE and does not ignore SIGSEGV.
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGSEGV));
    }
}
