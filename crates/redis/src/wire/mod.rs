//! Redis on the wire: commands, replies, and one connection that many calls share.

mod busy_poll;
mod command;
mod connection;
mod task;
mod value;

pub(crate) use command::{Arg, Command, cmd};
pub(crate) use connection::{Connection, Lost, MessageListener, Outcome, Reply};
pub(crate) use tenure_tls::Stream;
pub(crate) use value::{Refusal, Value};
