//! The resource that a lock protects, with a fence: it rejects a token that is smaller than one it has seen.
//!
//! It listens on the loopback address. A line is a request: `read` or `write`, the lock, the grant, and the token
//! or `-`. The reply is `accepted` or `rejected`. It stamps requests in the order of their arrival.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::history::{Access, Kind, now};

/// A resource.
#[derive(Debug)]
pub struct Resource {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    log: Mutex<Log>,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Log {
    accesses: Vec<Access>,
    greatest: HashMap<String, u64>,
}

impl Resource {
    /// Starts one.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&serving);
                // A client that has gone is served no more.
                if let Ok(stream) = stream {
                    std::thread::spawn(move || state.serve(stream));
                }
            }
        });
        Ok(Self { port, state })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What has reached it since the last call.
    pub(crate) fn take_accesses(&self) -> Vec<Access> {
        let mut log = self.state.log.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut log.accesses)
    }

    /// What has reached it so far.
    pub fn accesses(&self) -> Vec<Access> {
        self.state.log.lock().unwrap_or_else(PoisonError::into_inner).accesses.clone()
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut out = stream.try_clone()?;
        for line in BufReader::new(stream).lines() {
            let Some(accepted) = self.arrive(&line?) else { continue };
            writeln!(out, "{}", if accepted { "accepted" } else { "rejected" })?;
        }
        Ok(())
    }

    fn arrive(&self, line: &str) -> Option<bool> {
        let [kind, lock, grant, token] = line.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let kind = if kind == "read" { Kind::Read } else { Kind::Write };
        let token: Option<u64> = token.parse().ok();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let greatest = log.greatest.entry(lock.to_owned()).or_default();
        let accepted = token.is_none_or(|token| token >= *greatest);
        *greatest = (*greatest).max(token.unwrap_or(0));
        let (lock, grant) = (lock.to_owned(), grant.to_owned());
        log.accesses.push(Access { at: now(), grant, lock, kind, token, accepted });
        Some(accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_below_the_greatest_one_is_rejected_and_none_is_not_checked() {
        let resource = Resource::start().unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", resource.port())).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut ask = |line: &str| {
            writeln!(stream, "{line}").unwrap();
            replies.next().unwrap().unwrap()
        };
        assert_eq!(ask("read a A1 5"), "accepted");
        assert_eq!(ask("write a A1 5"), "accepted");
        assert_eq!(ask("write a B1 4"), "rejected");
        assert_eq!(ask("write b B1 4"), "accepted", "another lock");
        assert_eq!(ask("write a C1 -"), "accepted");
        let log = resource.accesses();
        assert_eq!(log.len(), 5);
        assert!(log.is_sorted_by_key(|access| access.at));
        assert_eq!(log.iter().filter(|access| !access.accepted).count(), 1);
    }
}
