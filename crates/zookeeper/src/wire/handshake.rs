//! What a connection begins with: a session is opened or resumed, and a user logs in.

use super::jute::{Malformed, Reader, Writer};

/// Opens a session, or goes on with one on another connection.
pub(crate) struct Connect<'a> {
    /// The latest transaction that this session has seen: servers that are behind refuse.
    pub(crate) zxid: i64,
    /// The session timeout that is asked for.
    pub(crate) timeout_ms: i32,
    /// Zero for a new session.
    pub(crate) session: i64,
    /// What the servers gave out with the session.
    pub(crate) password: &'a [u8],
}

impl Connect<'_> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        const PROTOCOL: i32 = 0;
        out.int(PROTOCOL);
        out.long(self.zxid);
        out.int(self.timeout_ms);
        out.long(self.session);
        out.buffer(self.password);
        // A server that has lost the others must not serve this session read-only.
        out.bool(false);
    }
}

/// What a server answers to [`Connect`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Connected {
    /// The session timeout that the server grants. Zero: the session has expired.
    pub(crate) timeout_ms: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

impl Connected {
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let _protocol = input.int()?;
        // Old servers do not say at the end whether they are read-only.
        Ok(Self {
            timeout_ms: input.int()?,
            session: input.long()?,
            password: input.buffer()?.to_vec(),
        })
    }
}

/// A login with a user's name and password (scheme `digest`).
pub(crate) struct Auth<'a> {
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
}

impl Auth<'_> {
    pub(crate) const OPCODE: i32 = 100;

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.int(0);
        out.string("digest");
        out.string(&format!("{}:{}", self.user, self.password));
    }
}
