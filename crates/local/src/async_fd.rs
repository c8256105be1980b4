//! File descriptors that tasks can wait on.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the current runtime, which must have its I/O driver enabled.
pub(crate) fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and names the same file until it is dropped, which only the
    // `AsyncFd` that owns it can do.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
        .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pipe_becomes_readable_when_something_is_written() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let reader = readable(reader).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        reader.readable().await.unwrap().clear_ready();
    }
}
