//! A way to a server that can swallow what goes one way, or both.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// Passes connections on to a port, as long as it is open.
pub(crate) struct Proxy {
    port: u16,
    way: watch::Sender<Way>,
    server: Arc<AtomicU16>,
    carriers: Arc<Mutex<Vec<AbortHandle>>>,
    task: JoinHandle<()>,
}

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// What the server says is lost on the way.
    Deaf,
    /// Nothing passes, and nothing is closed.
    Cut,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (way, heard) = watch::channel(Way::Open);
        let server = Arc::new(AtomicU16::new(server));
        let target = Arc::clone(&server);
        let carriers = Arc::new(Mutex::new(Vec::new()));
        let carried = Arc::clone(&carriers);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let to = ("127.0.0.1", target.load(Ordering::SeqCst));
                let Ok(server) = TcpStream::connect(to).await else { continue };
                let ((from, to), (back, answer)) = (client.into_split(), server.into_split());
                let there = tokio::spawn(pass(from, answer, heard.clone(), false));
                let back = tokio::spawn(pass(back, to, heard.clone(), true));
                carried.lock().extend([there.abort_handle(), back.abort_handle()]);
            }
        });
        Ok(Self { port, way, server, carriers, task })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From now on this is what passes.
    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// From now on connections go to another server; those there are end.
    pub(crate) fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::SeqCst);
        self.heal();
    }

    /// Opens the way, and closes all connections there are.
    pub(crate) fn heal(&self) {
        self.set(Way::Open);
        for carrier in self.carriers.lock().drain(..) {
            carrier.abort();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.heal();
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
    back: bool,
) {
    let mut bytes = vec![0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if way.wait_for(|way| *way != Way::Cut).await.is_err() {
            return;
        }
        let lost = back && *way.borrow() == Way::Deaf;
        if !lost && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
