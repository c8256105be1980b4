//! A proxy in front of a server that can lose traffic, delay it, or lead to another server.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A TCP proxy on the loopback address. Its [`Way`] decides what it carries. It can also keep what a
/// client sends, and deliver it after the client has gone.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// What the proxy carries. It accepts connections in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Everything.
    Open,
    /// What clients send. The server's replies are lost.
    Deaf,
    /// Nothing: traffic in both directions is lost.
    Black,
    /// Nothing: traffic waits until another way is set.
    Shut,
}

#[derive(Debug)]
struct Shared {
    target: AtomicU16,
    way: Mutex<Way>,
    changed: Condvar,
    /// Everything is lost on connections with a lower number.
    first_carried: AtomicUsize,
    carried: AtomicUsize,
    swallowed: AtomicUsize,
    replied: AtomicUsize,
    keeping: AtomicBool,
    ended: AtomicBool,
    /// The connections that have not ended, by their numbers.
    open: Mutex<HashMap<usize, Carried>>,
    /// What clients sent while the proxy kept it, with the connections to the servers.
    kept: Mutex<Vec<(TcpStream, Vec<u8>)>>,
}

/// A connection, with handles to close it.
#[derive(Debug)]
struct Carried {
    client: TcpStream,
    server: TcpStream,
    /// How many of its two directions have ended.
    ended: usize,
}

impl Proxy {
    /// Starts a proxy to this port of the loopback address.
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

    /// Sets what passes from now on, on existing and new connections.
    pub fn set(&self, way: Way) {
        *lock(&self.shared.way) = way;
        self.shared.changed.notify_all();
    }

    /// From now on, replies on the existing connections are lost. These stay open, and new ones are
    /// carried.
    pub fn strand(&self) {
        let next = self.shared.carried.load(Ordering::SeqCst);
        self.shared.first_carried.store(next, Ordering::SeqCst);
    }

    /// How many connections the proxy has accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }

    /// How many bytes the proxy has lost so far.
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(Ordering::SeqCst)
    }

    /// How many bytes of the servers' replies the proxy has passed on so far.
    pub fn replied(&self) -> usize {
        self.shared.replied.load(Ordering::SeqCst)
    }

    /// From now on, new connections lead to this port. The existing ones end.
    pub fn lead_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
        self.shared.close_all();
    }

    /// From now on, new connections lead to this port. The existing ones stay.
    pub fn lead_new_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// From now on, what clients send is kept and not delivered.
    pub fn keep(&self) {
        self.shared.keeping.store(true, Ordering::SeqCst);
    }

    /// Closes all connections on the client's side alone, and carries new ones.
    pub fn cut(&self) {
        self.shared.keeping.store(false, Ordering::SeqCst);
        for (_, carried) in lock(&self.shared.open).drain() {
            let _ = carried.client.shutdown(Shutdown::Both);
        }
    }

    /// Delivers what was kept, and returns when the servers have handled it. True if there was anything.
    pub fn deliver(&self) -> bool {
        let kept = std::mem::take(&mut *lock(&self.shared.kept));
        for (mut server, bytes) in
            kept.iter().filter_map(|(it, bytes)| Some((it.try_clone().ok()?, bytes)))
        {
            // This fails if the server has closed its end.
            let _ = server.write_all(bytes);
            // Some servers drop a request under way when its connection ends, so wait until the server is
            // silent.
            let _ = server.set_read_timeout(Some(Duration::from_millis(500)));
            let _ = io::copy(&mut server, &mut io::sink());
            let _ = server.set_read_timeout(None).and_then(|()| server.shutdown(Shutdown::Write));
            let _ = io::copy(&mut server, &mut io::sink());
        }
        !kept.is_empty()
    }

    /// From now on, new connections are carried again. The existing ones may have lost bytes, and end;
    /// traffic that waited is lost.
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
        let carried =
            Carried { client: client.try_clone()?, server: server.try_clone()?, ended: 0 };
        lock(&self.open).insert(number, carried);
        self.copy(number, client.try_clone()?, server.try_clone()?, true);
        self.copy(number, server, client, false);
        Ok(())
    }

    /// Whether what was sent is lost. Waits while nothing passes.
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
            shared.end_direction(number);
        });
    }

    /// Forgets a connection when both of its directions have ended, so that its descriptors are closed.
    fn end_direction(&self, number: usize) {
        let mut open = lock(&self.open);
        if let Some(carried) = open.get_mut(&number) {
            carried.ended += 1;
            if carried.ended == 2 {
                open.remove(&number);
            }
        }
    }

    fn close_all(&self) {
        for (_, Carried { client, server, .. }) in lock(&self.open).drain() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
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

    /// A server that echoes each byte, on each of its connections.
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

    /// The byte that comes back within this time. `None` also if the connection has ended.
    fn hears(stream: &mut TcpStream, within: Duration) -> Option<u8> {
        stream.set_read_timeout(Some(within)).unwrap();
        let mut byte = [0];
        matches!(stream.read(&mut byte), Ok(1)).then_some(byte[0])
    }

    #[tokio::test]
    async fn a_shut_proxy_delays_bytes_and_a_deaf_or_black_one_loses_them() {
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

    #[tokio::test]
    async fn a_connection_that_has_ended_keeps_no_descriptors() {
        let proxy = Proxy::start(echo()).unwrap();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            stream.write_all(&[1]).unwrap();
            assert_eq!(hears(&mut stream, GENEROUS), Some(1));
        }
        let closed = || async { lock(&proxy.shared.open).is_empty() };
        assert!(eventually(GENEROUS, closed).await, "{} are open", lock(&proxy.shared.open).len());
    }

    #[test]
    fn a_healed_proxy_drops_the_traffic_that_waited() {
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
