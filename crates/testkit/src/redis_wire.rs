//! A minimal client for Redis's wire protocol.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::GENEROUS;

/// Sends one command on a connection of its own, and returns the reply's text.
pub(crate) fn command(port: u16, words: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(GENEROUS))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    reply(&mut BufReader::new(stream))
}

/// One reply as text: the elements of an array one a line.
fn reply(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let length = || line[1..].parse::<i64>().map_err(io::Error::other);
    match kind {
        '$' => match usize::try_from(length()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Err(_) => Ok("(nil)".into()),
        },
        '*' => {
            let parts = (0..length()?).map(|_| reply(reader));
            Ok(parts.collect::<io::Result<Vec<_>>>()?.join("\n"))
        }
        '-' => Ok(line.to_owned()),
        _ => Ok(line[1..].to_owned()),
    }
}
