//! A way to a server that can stop carrying anything.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A TCP proxy on the loopback address. As a black hole, it accepts connections and bytes, and
/// nothing ever comes back.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    black: AtomicBool,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts one to this port of the loopback address.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let (black, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { target, black, ended, open: Mutex::default() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    // A connection that cannot be carried on is closed.
                    let _ = accepting.carry(client);
                }
            }
        });
        Ok(Self { port, shared })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on nothing comes back, on connections old and new.
    pub fn turn_black(&self) {
        self.shared.black.store(true, Ordering::SeqCst);
    }

    /// From now on new connections are carried again. Those there are have lost bytes, and end.
    pub fn heal(&self) {
        self.shared.black.store(false, Ordering::SeqCst);
        self.shared.close_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.close_all();
        // Wakes whoever accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.target))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.push(stream.try_clone()?);
        }
        self.copy(client.try_clone()?, server.try_clone()?);
        self.copy(server, client);
        Ok(())
    }

    fn copy(self: &Arc<Self>, mut from: TcpStream, mut to: TcpStream) {
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let mut chunk = [0; 16 << 10];
            while let Ok(length @ 1..) = from.read(&mut chunk) {
                let black = shared.black.load(Ordering::SeqCst);
                if !black && to.write_all(&chunk[..length]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    }

    fn close_all(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
