//! A proxy that remembers what a client sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Outcome;

/// Passes one connection after the other on to a server. Its threads end with the connections.
pub(crate) struct Recorder {
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start(server: u16) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&sent);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten().take(8) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
                let (Ok(reader), Ok(back)) = (client.try_clone(), server.try_clone()) else {
                    return;
                };
                let record = Arc::clone(&record);
                std::thread::spawn(move || pass(reader, server, Some(&record)));
                std::thread::spawn(move || pass(back, client, None));
            }
        });
        Ok(Self { port, sent })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What was sent since the last call.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, record: Option<&Mutex<Vec<u8>>>) {
    let mut bytes = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(record) = record {
            let mut sent = record.lock().unwrap_or_else(PoisonError::into_inner);
            sent.extend_from_slice(&bytes[..read]);
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
