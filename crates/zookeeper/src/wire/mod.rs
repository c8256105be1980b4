//! The connection to ZooKeeper: its protocol, written from scratch, and sessions over it.
//!
//! [`Session`] is what the rest of the crate uses. It keeps one connection at a time to one of the
//! servers of a [`Target`], moves to another server when that one is silent, and says when the
//! session is over. [`Session::send`] takes the requests of `messages.rs`.
//!
//! A user logs in with the scheme `digest`, and servers and clients authenticate each other with
//! TLS. SASL (Kerberos, DIGEST-MD5) is absent: it would go into the handshake in `dial.rs`, after
//! the session is established and before the login.

mod code;
mod connection;
mod dial;
mod fault;
mod frame;
mod handshake;
mod jute;
mod messages;
mod multi;
mod session;
#[cfg(test)]
mod tests;
mod watches;

pub(crate) use code::Code;
pub(crate) use dial::{Target, address};
pub(crate) use fault::Fault;
pub(crate) use messages::{
    Acl, Create, CreateMode, Delete, Event, Exists, GetAcl, GetChildren, GetData, Request, SetData,
    Stat, Sync,
};
pub(crate) use multi::{Check, FailedOp, Multi, Op, OpReply};
pub(crate) use session::{Call, Session};
pub(crate) use watches::Watch;
