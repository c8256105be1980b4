//! A server whose every move a test decides.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::wire::frame::frame;
use crate::wire::jute::{Reader, Writer};
use crate::wire::messages::{XID_AUTH, XID_PING};

pub(super) const SESSION: i64 = 0x1234;
pub(super) const PASSWORD: &[u8] = b"sixteen bytes !!";

/// A server whose every move a test decides.
pub(super) struct Fake {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    accepted: AtomicUsize,
    ended: AtomicBool,
}

impl Fake {
    /// Serves each connection on a thread of its own, given its number from zero. The connection
    /// ends when `serve` returns.
    pub(super) fn start(serve: impl Fn(usize, Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (shared, serve) = (Arc::<Shared>::default(), Arc::new(serve));
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let number = accepting.accepted.fetch_add(1, Ordering::SeqCst);
                let (serve, peer) = (Arc::clone(&serve), Peer(stream.unwrap()));
                std::thread::spawn(move || serve(number, peer));
            }
        });
        Self { port, shared }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there have been.
    pub(super) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// The connection of a client.
pub(super) struct Peer(TcpStream);

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) zxid: i64,
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) xid: i32,
    pub(super) opcode: i32,
    pub(super) body: Vec<u8>,
}

impl Peer {
    /// The next frame, or `None` if the client has closed the connection.
    fn read(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut content = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut content).ok()?;
        Some(content)
    }

    pub(super) fn write_raw(&mut self, bytes: &[u8]) {
        // The client may have gone.
        let _ = self.0.write_all(bytes);
    }

    pub(super) fn hello(&mut self) -> Option<Hello> {
        let content = self.read()?;
        let mut reader = Reader::new(&content);
        assert_eq!(reader.int(), Ok(0), "the version of the protocol");
        Some(Hello {
            zxid: reader.long().unwrap(),
            timeout_ms: reader.int().unwrap(),
            session: reader.long().unwrap(),
            password: reader.buffer().unwrap().to_vec(),
        })
    }

    pub(super) fn grant(&mut self, timeout_ms: i32) {
        self.write_raw(&granted(timeout_ms));
    }

    /// Writes each of these bytes by itself.
    pub(super) fn write_slowly(&mut self, bytes: &[u8]) {
        let _ = self.0.set_nodelay(true);
        for byte in bytes {
            self.write_raw(&[*byte]);
        }
    }

    /// Opens a session, or goes on with it, with this timeout.
    pub(super) fn welcome(&mut self, timeout_ms: i32) -> Option<Hello> {
        let hello = self.hello()?;
        self.grant(timeout_ms);
        Some(hello)
    }

    /// The next request.
    pub(super) fn asked(&mut self) -> Option<Asked> {
        let content = self.read()?;
        let mut reader = Reader::new(&content);
        let (xid, opcode) = (reader.int().unwrap(), reader.int().unwrap());
        Some(Asked { xid, opcode, body: reader.rest().to_vec() })
    }

    /// The next request that is no ping. Pings are answered.
    pub(super) fn asked_besides_pings(&mut self) -> Option<Asked> {
        loop {
            let asked = self.asked()?;
            if asked.xid != XID_PING {
                return Some(asked);
            }
            self.reply(XID_PING, 0, 0, &[]);
        }
    }

    pub(super) fn reply(&mut self, xid: i32, zxid: i64, code: i32, body: &[u8]) {
        let mut content = Vec::new();
        let mut writer = Writer::new(&mut content);
        writer.int(xid);
        writer.long(zxid);
        writer.int(code);
        content.extend_from_slice(body);
        let mut out = u32::try_from(content.len()).unwrap().to_be_bytes().to_vec();
        out.extend(content);
        self.write_raw(&out);
    }

    /// Answers a login.
    pub(super) fn log_in(&mut self, code: i32) {
        if self.asked().is_some_and(|asked| asked.xid == XID_AUTH) {
            self.reply(XID_AUTH, 0, code, &[]);
        }
    }

    /// Answers all requests without a body, until the client closes the connection.
    pub(super) fn serve(&mut self) {
        while let Some(asked) = self.asked_besides_pings() {
            self.reply(asked.xid, 0, 0, &[]);
        }
    }

    /// Says nothing until the client closes the connection.
    pub(super) fn say_nothing(&mut self) {
        while self.read().is_some() {}
    }
}

/// The frame that opens a session, or goes on with it, with this timeout.
pub(super) fn granted(timeout_ms: i32) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, |out| {
        out.int(0);
        out.int(timeout_ms);
        out.long(if timeout_ms == 0 { 0 } else { SESSION });
        out.buffer(PASSWORD);
        out.bool(false);
    })
    .unwrap();
    out
}
