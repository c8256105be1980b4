//! Scripts by which Redis refuses late writes. Run them with any client, by `EVAL` or `EVALSHA`.
//!
//! The script compares the token, records it and writes, in one atomic step. The record of the highest
//! token is a string of its own, which must be in the hash slot of the data on a Cluster: give both keys
//! the same hash tag, such as `{stock}` and `{stock}:fence`. It must neither expire nor be evicted before
//! the data.
//!
//! ```text
//! EVAL <SET> 2 {stock}:fence {stock} 34 10   ->  "written"
//! EVAL <SET> 2 {stock}:fence {stock} 33 99   ->  "stale 34"
//! ```
//!
//! A Redis that loses its data, or fails over to a replica that lags, loses the record, too: it is as durable
//! as the data that it protects.

use tenure_core::{LockName, Token};

use crate::GateError;

/// Sets a key: `KEYS` are the record and the key, `ARGV` the token and the value. Returns `written`, or
/// `stale <newest>` for a token that is out of date ([`refusal`] reads it).
pub const SET: &str = concat!(include_str!("../lua/gate.lua"), include_str!("../lua/set.lua"));

/// A script that runs `body` if its token is current. In the body, `KEYS[1]` is the record and `ARGV[1]` the
/// token; its own keys and arguments follow.
///
/// ```
/// let debit = tenure::gate::redis::gated("return redis.call('DECRBY', KEYS[2], ARGV[2])");
/// ```
pub fn gated(body: &str) -> String {
    concat!(include_str!("../lua/gate.lua"), "\n").to_owned() + body
}

/// The error of a reply that says `stale <newest>`. `None` for every other reply: the script ran.
pub fn refusal(reply: &str, lock: &LockName, token: Token) -> Option<GateError> {
    let newest = reply.strip_prefix("stale ")?.parse().ok()?;
    Some(GateError::Stale { lock: lock.clone(), token, newest: Token::new(newest) })
}
