//! The first commands on a connection: protocol, login and client name.
//!
//! A server that does not know `HELLO` or RESP3 is used with RESP2.
//!
//! Servers repeat arguments in their errors, and proxies answer with any text. So the text of a refused
//! login is never passed on, only known codes in words of our own.

use tenure_core::{Error, ErrorKind, Result};

use crate::credentials::Credentials;
use crate::fault::{CONNECT, fault, kind_of};
use crate::wire::{Command, Connection, Refusal, Value, cmd};

/// Agrees on the protocol and logs in, over a connection that nothing was sent over yet.
pub(crate) async fn log_in(
    connection: &Connection,
    credentials: Option<&Credentials>,
    name: Option<&str>,
) -> Result<()> {
    let mut hello = cmd("HELLO").arg("3");
    if let Some(Credentials { username, password, .. }) = credentials {
        let user = username.as_deref().unwrap_or("default");
        hello = hello.arg("AUTH").arg(user).arg(password);
    }
    if let Some(name) = name {
        hello = hello.arg("SETNAME").arg(name);
    }
    let reply = match call(connection, &hello).await? {
        Value::Refusal(refusal) if is_without_hello(&refusal) => {
            return log_in_by_auth(connection, credentials, name).await;
        }
        reply => reply,
    };
    let reply = accepted(reply)?;
    match reply.field("proto") {
        Some(Value::Integer(3)) => connection.expect_pushes(),
        Some(Value::Integer(2)) => {}
        _ => return Err(nonsense()),
    }
    Ok(())
}

/// As [`log_in`], in RESP2.
pub(crate) async fn log_in_by_auth(
    connection: &Connection,
    credentials: Option<&Credentials>,
    name: Option<&str>,
) -> Result<()> {
    if let Some(Credentials { username, password, .. }) = credentials {
        let auth = cmd("AUTH").args(username.as_deref()).arg(password);
        let reply = accepted(call(connection, &auth).await?)?;
        if reply != Value::Text(b"OK".to_vec()) {
            return Err(nonsense());
        }
    }
    if let Some(name) = name {
        // The name is only shown in `CLIENT LIST`: a refusal does not matter.
        call(connection, &cmd("CLIENT").arg("SETNAME").arg(name)).await?;
    }
    Ok(())
}

/// Whether the server has no `HELLO`, does not let this user call it, or knows only RESP2.
fn is_without_hello(refusal: &Refusal) -> bool {
    let words = refusal.words.to_ascii_lowercase();
    match &*refusal.code {
        "NOPROTO" | "NOPERM" => true,
        "ERR" => ["unknown", "support", "disabled"].iter().any(|word| words.contains(word)),
        _ => false,
    }
}

async fn call(connection: &Connection, command: &Command) -> Result<Value> {
    match connection.call(command).await {
        Some(Ok(value)) => Ok(value),
        Some(Err(loss)) => Err(Error::new(kind_of(&loss), CONNECT, loss.to_string())),
        None => Err(Error::new(ErrorKind::Unreachable, CONNECT, "the server closed it at once")),
    }
}

fn accepted(reply: Value) -> Result<Value> {
    match reply {
        Value::Refusal(refusal) => Err(fault(CONNECT, &known_words(&refusal))),
        reply => Ok(reply),
    }
}

fn nonsense() -> Error {
    let why = "its reply to the login is unexpected: check that this is a Redis server";
    Error::new(ErrorKind::Unreachable, CONNECT, why)
}

/// The refusal of a login in words that cannot contain a part of the login.
fn known_words(refusal: &Refusal) -> Refusal {
    let said = &*refusal.words;
    let (code, words) = match &*refusal.code {
        "WRONGPASS" => ("WRONGPASS", "invalid username-password pair or user is disabled"),
        "NOAUTH" => ("NOAUTH", "authentication is required"),
        "NOPERM" => ("NOPERM", "the user has no permission to log in"),
        "DENIED" => ("DENIED", "the server is in protected mode"),
        "NOPROTO" => ("NOPROTO", "unsupported protocol version"),
        "LOADING" => ("LOADING", "the server is loading its data"),
        "MASTERDOWN" => ("MASTERDOWN", "the link with the master is down"),
        "BUSY" => ("BUSY", "a script runs"),
        _ if said.contains("max number of clients") => ("ERR", "max number of clients reached"),
        _ if said.contains("without any password configured") => {
            ("ERR", "AUTH was called without any password configured")
        }
        _ if said.contains("unknown command") => ("ERR", "unknown command"),
        _ => ("ERR", "the login with AUTH was refused, in words that may repeat it"),
    };
    Refusal { code: code.to_owned(), words: words.to_owned() }
}
