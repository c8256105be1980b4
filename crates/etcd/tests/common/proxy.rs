//! A way to a server that can be cut without either side noticing.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Passes connections on to a port. While it is cut, nothing passes and nothing is closed.
pub(crate) struct Proxy {
    port: u16,
    cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (cut, heard) = watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let ((from, to), (back, answer)) = (client.into_split(), server.into_split());
                tokio::spawn(pass(from, answer, heard.clone()));
                tokio::spawn(pass(back, to, heard.clone()));
            }
        });
        Ok(Self { port, cut, task })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut bytes = vec![0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if cut.wait_for(|cut| !*cut).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
