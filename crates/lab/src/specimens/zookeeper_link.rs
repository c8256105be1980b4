//! A minimal ZooKeeper client: one session on one connection.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinHandle;

use super::REPLY;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const PING: i32 = 11;
const CLOSE: i32 = -11;

pub(crate) const NODE_EXISTS: i32 = -110;
pub(crate) const NO_NODE: i32 = -101;

/// An error code, and what follows it.
type Reply = (i32, Vec<u8>);

/// A session. It ends with its connection.
pub(crate) struct Session {
    writer: Rc<Mutex<OwnedWriteHalf>>,
    replies: Mutex<mpsc::UnboundedReceiver<Reply>>,
    changed: Rc<Notify>,
    tasks: [JoinHandle<()>; 2],
}

impl Session {
    pub(crate) async fn open(server: &str, timeout: Duration) -> io::Result<Self> {
        let mut stream = TcpStream::connect(server).await?;
        let millis = i32::try_from(timeout.as_millis()).map_err(io::Error::other)?;
        let mut hello = vec![0; 12];
        hello.extend(millis.to_be_bytes());
        hello.extend([0; 8]);
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 16]);
        send(&mut stream, &hello).await?;
        let mut reply = [0; 4];
        let welcome = async {
            stream.read_exact(&mut reply).await?;
            let length = i32::from_be_bytes(reply).clamp(0, 256) as usize;
            stream.read_exact(&mut vec![0; length]).await
        };
        let welcomed = tokio::time::timeout(REPLY, welcome).await;
        welcomed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (reader, writer) = stream.into_split();
        let (writer, changed) = (Rc::new(Mutex::new(writer)), Rc::new(Notify::new()));
        let (sender, replies) = mpsc::unbounded_channel();
        let listen = tokio::task::spawn_local(listen(reader, sender, Rc::clone(&changed)));
        let ping = tokio::task::spawn_local(ping(Rc::clone(&writer), timeout / 3));
        Ok(Self { writer, replies: Mutex::new(replies), changed, tasks: [listen, ping] })
    }

    /// Creates a node. Returns the server's error code.
    pub(crate) async fn create(&self, path: &str, data: &str, ephemeral: bool) -> io::Result<i32> {
        let mut body = text(path);
        body.extend(text(data));
        body.extend(1_i32.to_be_bytes());
        body.extend(31_i32.to_be_bytes());
        body.extend(text("world"));
        body.extend(text("anyone"));
        body.extend(i32::from(ephemeral).to_be_bytes());
        self.call(CREATE, &body).await.map(|(code, _)| code)
    }

    /// Deletes a node. Returns the server's error code.
    pub(crate) async fn delete(&self, path: &str) -> io::Result<i32> {
        let mut body = text(path);
        body.extend((-1_i32).to_be_bytes());
        self.call(DELETE, &body).await.map(|(code, _)| code)
    }

    /// Whether a node exists. [`changed`](Self::changed) tells when that changes.
    pub(crate) async fn watch(&self, path: &str) -> io::Result<bool> {
        let mut body = text(path);
        body.push(1);
        Ok(self.call(EXISTS, &body).await?.0 == 0)
    }

    /// The data of a node. `None` if it does not exist.
    pub(crate) async fn data(&self, path: &str) -> io::Result<Option<String>> {
        let mut body = text(path);
        body.push(0);
        match self.call(GET_DATA, &body).await? {
            (0, reply) => {
                let length = reply.first_chunk().map_or(0, |length| i32::from_be_bytes(*length));
                let data = reply.get(4..4 + length.max(0) as usize).unwrap_or_default();
                Ok(Some(String::from_utf8_lossy(data).into_owned()))
            }
            (NO_NODE, _) => Ok(None),
            (code, _) => Err(io::Error::other(format!("ZooKeeper's error {code}"))),
        }
    }

    /// Returns when a watched node has changed, or the connection has ended.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.tasks[0].is_finished()
    }

    async fn call(&self, operation: i32, body: &[u8]) -> io::Result<Reply> {
        let mut replies = self.replies.lock().await;
        let mut request = 1_i32.to_be_bytes().to_vec();
        request.extend(operation.to_be_bytes());
        request.extend(body);
        send(&mut *self.writer.lock().await, &request).await?;
        let reply = tokio::time::timeout(REPLY, replies.recv()).await;
        match reply {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Ends the session.
    pub(crate) async fn close(&self) -> io::Result<()> {
        self.call(CLOSE, &[]).await.map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Passes on replies, and news of watched nodes.
async fn listen(
    mut reader: OwnedReadHalf,
    replies: mpsc::UnboundedSender<Reply>,
    changed: Rc<Notify>,
) {
    loop {
        let frame = async {
            let length = reader.read_i32().await?.clamp(16, 1 << 20) as usize;
            let mut frame = vec![0; length];
            reader.read_exact(&mut frame).await?;
            io::Result::Ok(frame)
        };
        let Ok(frame) = frame.await else { break };
        let number = |at: usize| {
            i32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
        };
        match number(0) {
            -1 => changed.notify_one(),
            -2 => {}
            _ => drop(replies.send((number(12), frame[16..].to_vec()))),
        }
    }
    changed.notify_one();
}

async fn ping(writer: Rc<Mutex<OwnedWriteHalf>>, every: Duration) {
    let mut request = (-2_i32).to_be_bytes().to_vec();
    request.extend(PING.to_be_bytes());
    loop {
        tokio::time::sleep(every).await;
        if send(&mut *writer.lock().await, &request).await.is_err() {
            return;
        }
    }
}

async fn send(stream: &mut (impl AsyncWriteExt + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), frame].concat()).await
}

fn text(text: &str) -> Vec<u8> {
    // Names here are short.
    let mut bytes = (text.len() as i32).to_be_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes
}
