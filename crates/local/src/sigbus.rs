//! Lost pages of a mapped file: the file was truncated, or the disk failed or ran full under a file system
//! that allocates late. The kernel raises SIGBUS on access, which would end the program. The handler here
//! replaces the page by zeros for this process and marks the mapping as broken, so that every operation on
//! it fails.
//!
//! A file on disk cannot be sealed against truncation, and a check before each access would be slow and too
//! early. The program's own handling of SIGBUS is kept: a signal that is not a fault in one of our mappings
//! goes to the handler that was installed before. A handler that the program installs later replaces ours.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The addresses of one mapping. It is never freed, only reused for another mapping: the handler may read it
/// at any time and cannot take a lock.
#[derive(Debug)]
struct Range {
    /// Zero while unused.
    base: AtomicUsize,
    length: AtomicUsize,
    broken: AtomicBool,
    next: *const Self,
}

// SAFETY: `next` is set before the range is published and never changes; the rest is atomic.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

static RANGES: AtomicPtr<Range> = AtomicPtr::new(ptr::null_mut());
static BEFORE: OnceLock<Before> = OnceLock::new();

/// The previous handler, and the page size, which a handler must not ask for.
struct Before {
    action: libc::sigaction,
    page: usize,
}

/// Makes the faults of a mapping errors, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guarded(&'static Range);

impl Guarded {
    pub(crate) fn new(base: *const u8, length: usize) -> io::Result<Self> {
        /// Marks a range as taken. It is no address of a mapping.
        const RESERVED: usize = 1;
        install()?;
        let reserve = |range: &&Range| {
            range.base.compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let range = ranges().find(reserve).unwrap_or_else(|| publish(RESERVED));
        range.length.store(length, Ordering::Release);
        range.broken.store(false, Ordering::Release);
        range.base.store(base.addr(), Ordering::Release);
        Ok(Self(range))
    }

    /// Whether a page of the mapping was lost.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.base.store(0, Ordering::Release);
    }
}

fn ranges() -> impl Iterator<Item = &'static Range> {
    let mut next: *const Range = RANGES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a range that was published and is never freed.
        let range = unsafe { next.as_ref() }?;
        next = range.next;
        Some(range)
    })
}

fn publish(base: usize) -> &'static Range {
    let mut next = RANGES.load(Ordering::Acquire);
    let range = Box::leak(Box::new(Range {
        base: AtomicUsize::new(base),
        length: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
        next,
    }));
    loop {
        let swapped = RANGES.compare_exchange(next, range, Ordering::AcqRel, Ordering::Acquire);
        match swapped {
            Ok(_) => return range,
            Err(other) => next = other,
        }
        range.next = next;
    }
}

/// Installs the handler once per process. If it were installed again after the program's own handler, which
/// passes signals on to ours, the two would call each other without end.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<c_int> = OnceLock::new();
    let error = *INSTALLED.get_or_init(|| {
        // SAFETY: plain C structures of integers and pointers, for which zero is a valid value.
        let (mut before, mut ours): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: asks for the action of a signal that exists, into a structure of ours.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) } != 0 {
            return io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        }
        BEFORE.get_or_init(|| Before { action: before, page: rustix::param::page_size() });
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        ours.sa_sigaction = handler as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler is written for SA_SIGINFO, and does only what a handler may do.
        if unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) } != 0 {
            return io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        }
        0
    });
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Uses only atomics and system calls, which are allowed in a handler.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else {
        return;
    };
    // SAFETY: each thread has its own `errno`, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid structure, and for SIGBUS by a fault it has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code != libc::BUS_ADRERR || !replace(address, before.page) {
        pass_on(&before.action, signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Maps a page of zeros at a fault in one of our mappings.
fn replace(address: usize, page: usize) -> bool {
    let mut ours = false;
    for range in ranges() {
        let base = range.base.load(Ordering::Acquire);
        let length = range.length.load(Ordering::Acquire);
        let inside = address >= base && address - base < length;
        // Read again, because another thread may be changing both.
        if inside && base > 1 && range.base.load(Ordering::Acquire) == base {
            range.broken.store(true, Ordering::Release);
            ours = true;
        }
    }
    if !ours {
        return false;
    }
    let at = ptr::without_provenance_mut(address & !(page - 1));
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: replaces one page of a mapping of ours, which is in use: the thread was just reading
    // it. It is reached through atomics only, for which every value is valid.
    unsafe { libc::mmap(at, page, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Does what would have happened without our handler.
fn pass_on(
    before: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel passes a valid structure.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: plain C structure, for which zero is valid and means the default action.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: both may be called in a handler. A fault happens again when this returns; a
            // signal that was sent must be sent again, and arrives when this returns.
            unsafe {
                libc::sigaction(signal, &default, ptr::null_mut());
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a handler with these arguments.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as a handler with this argument.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_reused() {
        let memory = [0_u8; 64];
        let count = || ranges().count();
        let first = Guarded::new(memory.as_ptr(), 64).unwrap();
        assert!(!first.is_broken());
        drop(first);
        let before = count();
        for _ in 0..100 {
            drop(Guarded::new(memory.as_ptr(), 64).unwrap());
        }
        // Other tests may have opened mappings of their own meanwhile.
        assert!(count() < before + 50, "{} after {before}", count());
    }
}
