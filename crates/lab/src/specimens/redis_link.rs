//! A minimal Redis client. A call that is dropped, or gets no reply in time, closes the connection.

use std::cell::RefCell;
use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use super::REPLY;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    Many(Vec<Reply>),
}

impl Reply {
    pub(crate) fn is_ok(&self) -> bool {
        *self == Self::Text("OK".into())
    }

    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(text) => text.parse().unwrap_or(0),
            _ => 0,
        }
    }

    pub(crate) fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A connection, opened when it is needed.
pub(crate) struct Link {
    address: String,
    open: RefCell<Option<BufStream<TcpStream>>>,
}

impl Link {
    pub(crate) fn to(address: &str) -> Self {
        Self { address: address.to_owned(), open: RefCell::new(None) }
    }

    /// Sends a command and returns the reply. An error reply is an error.
    pub(crate) async fn call(&self, words: &[&str]) -> io::Result<Reply> {
        match self.ask(words).await? {
            Reply::Error(error) => Err(io::Error::other(error)),
            reply => Ok(reply),
        }
    }

    /// Sends a command and returns the reply.
    pub(crate) async fn ask(&self, words: &[&str]) -> io::Result<Reply> {
        let taken = self.open.borrow_mut().take();
        let exchange = async {
            let mut stream = match taken {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect(&self.address).await?;
                    stream.set_nodelay(true)?;
                    BufStream::new(stream)
                }
            };
            let mut request = format!("*{}\r\n", words.len());
            for word in words {
                request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            let reply = read(&mut stream).await?;
            io::Result::Ok((reply, stream))
        };
        let done = tokio::time::timeout(REPLY, exchange).await;
        let (reply, stream) = done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        *self.open.borrow_mut() = Some(stream);
        Ok(reply)
    }
}

async fn read(stream: &mut BufStream<TcpStream>) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let rest = &line[kind.len_utf8()..];
    let number = || rest.parse::<i64>().map_err(io::Error::other);
    Ok(match kind {
        '+' => Reply::Text(rest.to_owned()),
        '-' => Reply::Error(rest.to_owned()),
        ':' => Reply::Int(number()?),
        '$' => match usize::try_from(number()?) {
            // More than any reply here has.
            Ok(length) if length < 1 << 20 => {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await?;
                Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(_) => Reply::Nil,
        },
        '*' => match number()? {
            count @ 0..1_000 => {
                let mut all = Vec::new();
                for _ in 0..count {
                    all.push(Box::pin(read(stream)).await?);
                }
                Reply::Many(all)
            }
            _ => Reply::Nil,
        },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}
