//! A minimal client of etcd's JSON gateway: HTTP/1.0, a connection per call.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::REPLY;

/// Sends a request and returns the reply.
pub(crate) async fn post(server: &str, path: &str, body: &Value) -> io::Result<Value> {
    let exchange = async {
        let mut stream = open(server, path, body).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        serde_json::from_str(&reply).map_err(io::Error::other)
    };
    let done = tokio::time::timeout(REPLY, exchange).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Watches a key from now on, and returns when it is changed or deleted. A stream that ends is opened again, at the
/// revision of that moment: a change in between is missed.
pub(crate) async fn until_changed(server: &str, key: &str) {
    while !watch(server, key).await.unwrap_or(false) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the key changed before the stream ended.
async fn watch(server: &str, key: &str) -> io::Result<bool> {
    let request = serde_json::json!({"create_request": {"key": base64(key)}});
    let mut stream = open(server, "/v3/watch", &request).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        if line.contains("\"events\"") {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// The reply's body.
async fn open(server: &str, path: &str, body: &Value) -> io::Result<BufReader<TcpStream>> {
    let mut stream = BufReader::new(TcpStream::connect(server).await?);
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.trim().is_empty() {
            return Ok(stream);
        }
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text that was coded as base64.
pub(crate) fn text_of(base64: &str) -> String {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in base64.bytes().filter_map(|byte| DIGITS.iter().position(|it| *it == byte)) {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The gateway takes keys and values in base64.
pub(crate) fn base64(text: &str) -> String {
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let byte = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => out.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => out.push('='),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{base64, text_of};

    #[test]
    fn base64_pads_to_four_and_is_read_back() {
        let coded: Vec<String> = ["", "f", "fo", "foo", "foob"].map(base64).into();
        assert_eq!(coded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
        let texts: Vec<String> = coded.iter().map(|coded| text_of(coded)).collect();
        assert_eq!(texts, ["", "f", "fo", "foo", "foob"]);
    }
}
