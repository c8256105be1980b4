//! A way to a server that can stop carrying anything, carry it late, or lead elsewhere.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A TCP proxy on the loopback address. It carries what its [`Way`] says. It can also keep what is
/// sent, and hand it over after its sender has gone.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// What passes. Connections are accepted, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Everything.
    Open,
    /// What goes to the server. What it says is lost.
    Deaf,
    /// Nothing: all is lost.
    Black,
    /// Nothing: what is sent waits until the way is another.
    Shut,
}

#[derive(Debug)]
struct Shared {
    target: AtomicU16,
    way: Mutex<Way>,
    changed: Condvar,
    /// Connections before this one are black.
    first_carried: AtomicUsize,
    carried: AtomicUsize,
    swallowed: AtomicUsize,
    replied: AtomicUsize,
    keeping: AtomicBool,
    ended: AtomicBool,
    /// Each connection's two ends, of the client and of the server.
    open: Mutex<Vec<[TcpStream; 2]>>,
    /// What was sent on the way to these servers.
    kept: Mutex<Vec<(TcpStream, Vec<u8>)>>,
}

impl Proxy {
    /// Starts one to this port of the loopback address.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            way: Mutex::new(Way::Open),
            changed: Condvar::new(),
            first_carried: AtomicUsize::new(0),
            carried: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
            replied: AtomicUsize::new(0),
            keeping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
            kept: Mutex::default(),
        });
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

    /// Its address.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From now on this passes, on connections old and new.
    pub fn set(&self, way: Way) {
        *lock(&self.shared.way) = way;
        self.shared.changed.notify_all();
    }

    /// From now on nothing comes back on the connections there are. They stay open, and new ones
    /// are carried.
    pub fn strand(&self) {
        let next = self.shared.carried.load(Ordering::SeqCst);
        self.shared.first_carried.store(next, Ordering::SeqCst);
    }

    /// How many connections it has accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }

    /// How many bytes have vanished in it so far.
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(Ordering::SeqCst)
    }

    /// How many bytes of the servers' replies it has passed on so far.
    pub fn replied(&self) -> usize {
        self.shared.replied.load(Ordering::SeqCst)
    }

    /// From now on new connections lead to this port. Those there are end.
    pub fn lead_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
        self.shared.close_all();
    }

    /// From now on new connections lead to this port. Those there are stay.
    pub fn lead_new_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// From now on what is sent does not arrive, but is kept.
    pub fn keep(&self) {
        self.shared.keeping.store(true, Ordering::SeqCst);
    }

    /// Closes all connections on the client's side alone, and carries new ones.
    pub fn cut(&self) {
        self.shared.keeping.store(false, Ordering::SeqCst);
        for [client, _] in lock(&self.shared.open).drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Hands over what was kept, late as it is, and returns when the servers have dealt with it.
    /// True if there was anything.
    pub fn deliver(&self) -> bool {
        let kept = std::mem::take(&mut *lock(&self.shared.kept));
        for (mut server, bytes) in
            kept.iter().filter_map(|(it, bytes)| Some((it.try_clone().ok()?, bytes)))
        {
            // A server that has closed its end refuses it.
            let _ = server.write_all(bytes);
            // Some servers drop what they are at when a connection ends: so it ends when they are silent.
            let _ = server.set_read_timeout(Some(Duration::from_millis(500)));
            let _ = io::copy(&mut server, &mut io::sink());
            let _ = server.set_read_timeout(None).and_then(|()| server.shutdown(Shutdown::Write));
            let _ = io::copy(&mut server, &mut io::sink());
        }
        !kept.is_empty()
    }

    /// From now on new connections are carried again. Those there are may have lost bytes, and end;
    /// so does what waited.
    pub fn heal(&self) {
        let mut way = lock(&self.shared.way);
        *way = Way::Open;
        self.shared.close_all();
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.heal();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.target.load(Ordering::SeqCst)))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let number = self.carried.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).push([client.try_clone()?, server.try_clone()?]);
        self.copy(number, client.try_clone()?, server.try_clone()?, true);
        self.copy(number, server, client, false);
        Ok(())
    }

    /// Whether what was sent is lost. Waits while the way is shut.
    fn loses(&self, number: usize, there: bool) -> bool {
        let shut = self.changed.wait_while(lock(&self.way), |way| *way == Way::Shut);
        match *shut.unwrap_or_else(PoisonError::into_inner) {
            Way::Black => true,
            Way::Deaf if !there => true,
            _ => number < self.first_carried.load(Ordering::SeqCst),
        }
    }

    fn copy(self: &Arc<Self>, number: usize, mut from: TcpStream, mut to: TcpStream, there: bool) {
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let (mut chunk, mut late) = ([0; 16 << 10], Vec::new());
            while let Ok(length @ 1..) = from.read(&mut chunk) {
                if there && shared.keeping.load(Ordering::SeqCst) {
                    late.extend_from_slice(&chunk[..length]);
                } else if shared.loses(number, there) {
                    shared.swallowed.fetch_add(length, Ordering::SeqCst);
                } else if to.write_all(&chunk[..length]).is_err() {
                    break;
                } else if !there {
                    shared.replied.fetch_add(length, Ordering::SeqCst);
                }
            }
            match late.is_empty() {
                true => drop(to.shutdown(Shutdown::Both)),
                false => lock(&shared.kept).push((to, late)),
            }
        });
    }

    fn close_all(&self) {
        for stream in lock(&self.open).drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GENEROUS, eventually};

    /// A server that says back what it hears, on each of its connections.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        port
    }

    /// What comes back within this time: nothing also if the connection has ended.
    fn hears(stream: &mut TcpStream, within: Duration) -> Option<u8> {
        stream.set_read_timeout(Some(within)).unwrap();
        let mut byte = [0];
        matches!(stream.read(&mut byte), Ok(1)).then_some(byte[0])
    }

    #[tokio::test]
    async fn a_shut_way_delays_bytes_and_deaf_and_black_ways_lose_them() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        // The answer to the first, and the second itself.
        for (sent, way) in [(1, Way::Deaf), (2, Way::Black)] {
            proxy.set(way);
            stream.write_all(&[sent]).unwrap();
            let lost = || async { proxy.swallowed() == usize::from(sent) };
            assert!(eventually(GENEROUS, lost).await, "{way:?}");
        }
        proxy.set(Way::Shut);
        stream.write_all(&[3]).unwrap();
        assert_eq!(hears(&mut stream, Duration::from_millis(100)), None);
        proxy.set(Way::Open);
        assert_eq!(hears(&mut stream, GENEROUS), Some(3));
    }

    #[test]
    fn a_way_that_is_healed_has_forgotten_what_waited() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut before = TcpStream::connect(proxy.address()).unwrap();
        before.write_all(&[1]).unwrap();
        assert_eq!(hears(&mut before, GENEROUS), Some(1));
        proxy.set(Way::Shut);
        before.write_all(&[2]).unwrap();
        proxy.heal();
        assert_eq!(hears(&mut before, GENEROUS), None);
        let mut after = TcpStream::connect(proxy.address()).unwrap();
        after.write_all(&[3]).unwrap();
        assert_eq!(hears(&mut after, GENEROUS), Some(3));
    }
}
