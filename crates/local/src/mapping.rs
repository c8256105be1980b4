//! A file mapped into memory and shared with other processes, as atomic words.
//!
//! The address range is reserved once, for the largest size of the file; the file grows into it. This module
//! gives out references to atomics only, and only to words that the file had disk blocks for when its size
//! was last read. If such a page is lost all the same, its words read as zero and the mapping is broken
//! (module `sigbus`).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::fault::{Fault, Result};
use crate::sigbus::Guarded;

#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<AtomicU64>,
    limit: usize,
    backed: AtomicUsize,
    /// `None` only while the mapping is being removed.
    faults: Option<Guarded>,
    file: File,
}

// SAFETY: the mapping is reached through atomics only, and lives as long as `self`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file, with room to grow to `words`.
    pub(crate) fn new(file: File, words: usize) -> io::Result<Self> {
        let length = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh mapping at an address the kernel chooses touches no memory of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base: NonNull<AtomicU64> =
            NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let faults = Some(Guarded::new(base.as_ptr().cast(), length)?);
        let mapping = Self { base, limit: words, backed: AtomicUsize::new(0), faults, file };
        mapping.refresh()?;
        Ok(mapping)
    }

    /// Whether a page of the file was lost when it was accessed. From then on this process sees other content
    /// than other processes do.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.faults.as_ref().is_some_and(Guarded::is_broken)
    }

    /// Fails if the mapping [is broken](Self::is_broken).
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_broken() {
            false => Ok(()),
            true => Err(Fault::damaged(
                "the file was truncated, or the disk failed or is full, while it was in use",
            )),
        }
    }

    /// All words that the file backs, by its size when last read.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let backed = self.backed.load(Ordering::Relaxed);
        // SAFETY: `backed` never exceeds `limit`, so the slice stays inside the mapping, which
        // outlives the reference; pages are aligned, so words are too; every bit pattern is a
        // u64; and all processes that share the memory use atomics. If the file shrinks, zeros take its
        // place.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), backed) }
    }

    /// The word with this number, if the file backs it.
    #[inline]
    pub(crate) fn word(&self, number: usize) -> Option<&AtomicU64> {
        self.words().get(number)
    }

    /// The first half of the word with this number, for a futex.
    pub(crate) fn half(&self, number: usize) -> Option<&AtomicU32> {
        let word = self.word(number)?;
        // SAFETY: the first four bytes of a live, aligned word. The word is never accessed as a
        // whole, so there are no mixed-size accesses.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// How many words the file backs, by its size when last read.
    pub(crate) fn backed(&self) -> usize {
        self.backed.load(Ordering::Relaxed)
    }

    /// Reads the file's size again: another process may have grown it.
    pub(crate) fn refresh(&self) -> io::Result<usize> {
        let bytes = usize::try_from(self.file.metadata()?.len()).unwrap_or(usize::MAX);
        let backed = (bytes / 8).min(self.limit);
        self.backed.store(backed, Ordering::Relaxed);
        Ok(backed)
    }

    /// Grows the file to at least `words`, all of them with allocated blocks.
    pub(crate) fn grow(&self, words: usize) -> io::Result<()> {
        if words > self.limit {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        allocate(&self.file, words as u64 * 8)?;
        self.refresh().map(drop)
    }

    /// The file itself.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// For tests: the next access of this process to the word's page faults, as on a failing disk.
    #[cfg(test)]
    pub(crate) fn lose_page(&self, word: usize) -> io::Result<()> {
        let page = rustix::param::page_size();
        let empty = tempfile::tempfile()?;
        let at = self.base.as_ptr().wrapping_byte_add(word * 8 / page * page);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        assert!(word < self.backed());
        // SAFETY: replaces one page of our own mapping, which is reached through atomics only.
        unsafe { mmap(at.cast(), page, access, flags | MapFlags::FIXED, &empty, 0) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, because the addresses may be reused for another mapping.
        self.faults.take();
        // SAFETY: the range is the one mapped in `new`; no reference into it outlives `self`.
        // A failure leaves the range mapped, which is harmless.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.limit * 8) };
    }
}

/// Turns off copy-on-write for a new, empty file (btrfs). Otherwise each write to an allocated block may need
/// another block, and fail on a full disk.
pub(crate) fn write_in_place(file: &File) {
    let Ok(flags) = ioctl_getflags(file) else {
        return;
    };
    // File systems without copy-on-write do not know the flag.
    let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
}

/// As [`allocate`], but safe while other processes do the same. False if the file system cannot.
pub(crate) fn allocate_ahead(file: &File, bytes: u64) -> io::Result<bool> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Allocates disk blocks for the first `bytes` of the file, so that a full disk is an error here and not a
/// signal later. Called by one process at a time, because it may have to write zeros.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    if allocate_ahead(file, bytes)? {
        return Ok(());
    }
    let mut at = file.metadata()?.len();
    let zeros = vec![0; 1 << 16];
    while at < bytes {
        let part = (bytes - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..part as usize], at)?;
        at += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_beyond_the_file_are_not_accessible_until_it_grows() {
        let file = tempfile::tempfile().unwrap();
        allocate(&file, 4096).unwrap();
        let ours = Mapping::new(file.try_clone().unwrap(), 4096).unwrap();
        let theirs = Mapping::new(file, 4096).unwrap();
        assert!(ours.word(511).is_some());
        assert!(ours.word(512).is_none());
        ours.grow(1024).unwrap();
        ours.word(1023).unwrap().store(7, Ordering::Release);
        assert!(theirs.word(1023).is_none(), "not before it reads the size again");
        theirs.refresh().unwrap();
        assert_eq!(theirs.word(1023).unwrap().load(Ordering::Acquire), 7);
        assert!(ours.grow(4097).is_err());
    }
}
