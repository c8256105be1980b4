//! The requests and replies that tenure uses, each with its type.

use std::fmt;

use super::jute::{Malformed, Reader, Writer};

/// A request, and how its reply is read.
pub(crate) trait Request: Send + 'static {
    /// What a server answers when it has done what was asked.
    type Reply: Send + 'static;

    /// The number of the operation.
    fn opcode(&self) -> i32;

    /// Appends the request without its header.
    fn write(&self, out: &mut Writer<'_>);

    /// Reads the reply without its header.
    fn read(input: &mut Reader<'_>) -> Result<Self::Reply, Malformed>;

    /// Turns an error code into a reply, for requests where the code is a regular answer.
    fn refused(code: Code) -> Result<Self::Reply, Code> {
        Err(code)
    }
}

/// A request that can leave a watch: [`Exists`], [`GetData`] or [`GetChildren`].
pub(crate) trait Watchable: Request {
    /// The same request, asking for a watch.
    fn watching(self) -> Self;

    fn path(&self) -> &str;

    /// Which watch a reply with this code leaves, if any. `None` means success.
    fn watch(code: Option<Code>) -> Option<WatchKind>;
}

/// What a watch waits for. The servers must be told after a reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchKind {
    /// A change or the deletion of a node that is there.
    Data,
    /// The creation of a node that is not there.
    Exist,
    /// A change of a node's list of children.
    Children,
}

/// What happened to a watched node, or to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
    /// The watch is gone with its session: nothing is known of the node.
    SessionOver,
}

/// Creates a node; the reply has the name that it was given.
#[derive(Clone, Debug)]
pub(crate) struct Create {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    pub(crate) acl: Vec<Acl>,
    pub(crate) mode: CreateMode,
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateMode {
    Persistent,
    #[allow(dead_code, reason = "part of the protocol, not needed by the locks yet")]
    PersistentSequential,
    /// Deleted with its session.
    Ephemeral,
    EphemeralSequential,
    /// Deleted by the servers some time after its last child.
    Container,
}

/// Deletes a node, if it has this version.
#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub(crate) path: String,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
}

/// Replaces a node's data, if it has this version.
#[derive(Clone, Debug)]
pub(crate) struct SetData {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
}

/// Part of a [`Multi`]: fails unless the node is there, with this version.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) path: String,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
}

/// A node's [`Stat`], or `None` if there is no such node.
#[derive(Clone, Debug)]
pub(crate) struct Exists {
    path: String,
    watch: bool,
}

/// A node's data.
#[derive(Clone, Debug)]
pub(crate) struct GetData {
    path: String,
    watch: bool,
}

/// The names of a node's children, in no order, and the node's own [`Stat`].
#[derive(Clone, Debug)]
pub(crate) struct GetChildren {
    path: String,
    watch: bool,
}

/// A node's access control list.
#[derive(Clone, Debug)]
pub(crate) struct GetAcl {
    pub(crate) path: String,
}

/// Makes the server catch up with the leader before it answers later requests.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    pub(crate) path: String,
}

/// The paths of this session's ephemeral nodes that begin with `prefix`. Servers before 3.6 answer
/// with [`Code::Unimplemented`].
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "part of the protocol, not needed by the locks yet")]
pub(crate) struct GetEphemerals {
    pub(crate) prefix: String,
}

/// Several operations, of which the servers do all or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Multi {
    pub(crate) ops: Vec<Op>,
}

/// One operation of a [`Multi`].
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(Create),
    Delete(Delete),
    SetData(SetData),
    Check(Check),
}

/// What one operation of a [`Multi`] answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpReply {
    Created(OpCreated),
    Deleted,
    Set(Stat),
    Checked,
}

/// A node that an operation of a [`Multi`] created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpCreated {
    /// Its path, with the number of a sequential node.
    pub(crate) path: String,
    /// Servers leave it out, but for containers. A [`SetData`] in the same `Multi` has the same
    /// transaction, as its [`mzxid`](Stat::mzxid).
    pub(crate) stat: Option<Stat>,
}

/// The operation for which a [`Multi`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedOp {
    /// Its place among the operations, from zero.
    pub(crate) index: usize,
    pub(crate) code: Code,
}

/// A node that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Its path, with the number of a sequential node.
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

/// What the servers keep about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that created the node.
    pub(crate) czxid: i64,
    /// The transaction that last changed its data.
    pub(crate) mzxid: i64,
    /// When it was created, in milliseconds since 1970 by the leader's clock.
    pub(crate) ctime: i64,
    /// When its data was last changed.
    pub(crate) mtime: i64,
    /// How often its data was changed.
    pub(crate) version: i32,
    /// How often its list of children was changed.
    pub(crate) cversion: i32,
    /// How often its access control list was changed.
    pub(crate) aversion: i32,
    /// The session whose end deletes the node; zero for a node that stays.
    pub(crate) ephemeral_owner: i64,
    pub(crate) data_length: i32,
    pub(crate) num_children: i32,
    /// The transaction that last changed its list of children.
    pub(crate) pzxid: i64,
}

/// One entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) permissions: i32,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

impl Acl {
    pub(crate) const CREATE: i32 = 4;
    pub(crate) const DELETE: i32 = 8;
    pub(crate) const ALL: i32 = 31;

    pub(crate) fn new(permissions: i32, scheme: &str, id: &str) -> Self {
        Self { permissions, scheme: scheme.into(), id: id.into() }
    }

    /// Everything, for every client.
    pub(crate) fn anyone_all() -> Vec<Self> {
        vec![Self::new(Self::ALL, "world", "anyone")]
    }

    /// Everything, for the user that creates the node.
    pub(crate) fn creator_all() -> Vec<Self> {
        vec![Self::new(Self::ALL, "auth", "")]
    }
}

macro_rules! codes {
    ($($name:ident = $number:literal,)*) => {
        /// Why a server did not do what it was asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Code {
            $($name,)*
            /// A code that this crate does not know.
            Other(i32),
        }

        impl From<i32> for Code {
            fn from(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }

        impl From<Code> for i32 {
            fn from(code: Code) -> Self {
                match code {
                    $(Code::$name => $number,)*
                    Code::Other(other) => other,
                }
            }
        }
    };
}

codes! {
    SystemError = -1,
    RuntimeInconsistency = -2,
    DataInconsistency = -3,
    ConnectionLoss = -4,
    MarshallingError = -5,
    Unimplemented = -6,
    OperationTimeout = -7,
    BadArguments = -8,
    ApiError = -100,
    NoNode = -101,
    NoAuth = -102,
    BadVersion = -103,
    NoChildrenForEphemerals = -108,
    NodeExists = -110,
    NotEmpty = -111,
    SessionExpired = -112,
    InvalidAcl = -114,
    AuthFailed = -115,
    SessionMoved = -118,
    NotReadOnly = -119,
    EphemeralOnLocalSession = -120,
    NoWatcher = -121,
    RequestTimeout = -122,
    ReconfigDisabled = -123,
    SaslRequired = -124,
    QuotaExceeded = -125,
    Throttled = -127,
}

impl Code {
    /// Whether the servers certainly did nothing. With other codes they may have, or may yet.
    pub(crate) const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::MarshallingError
                | Self::Unimplemented
                | Self::BadArguments
                | Self::NoNode
                | Self::NoAuth
                | Self::BadVersion
                | Self::NoChildrenForEphemerals
                | Self::NodeExists
                | Self::NotEmpty
                | Self::InvalidAcl
                | Self::AuthFailed
                | Self::NotReadOnly
                | Self::EphemeralOnLocalSession
                | Self::NoWatcher
                | Self::ReconfigDisabled
                | Self::SaslRequired
                | Self::QuotaExceeded
                | Self::Throttled
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoNode => "there is no such node",
            Self::NoAuth => "the user lacks a permission",
            Self::BadVersion => "the node has another version",
            Self::NoChildrenForEphemerals => "an ephemeral node has no children",
            Self::NodeExists => "the node is there already",
            Self::NotEmpty => "the node has children",
            Self::SessionExpired => "the session has expired",
            Self::InvalidAcl => "the access control list makes no sense",
            Self::AuthFailed => "the login was refused",
            Self::SessionMoved => "the session has moved to another server",
            Self::NotReadOnly => "the server is read-only",
            Self::Unimplemented => "the server does not know the operation",
            Self::SaslRequired => "the server wants clients to log in with SASL",
            Self::QuotaExceeded => "a quota is used up",
            Self::Throttled => "the server has too much to do",
            other => return write!(f, "ZooKeeper's error {} ({other:?})", i32::from(*other)),
        };
        f.write_str(text)
    }
}

impl Exists {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
    }
}

impl GetData {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
    }
}

impl GetChildren {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
    }
}

impl Request for Create {
    type Reply = Created;

    fn opcode(&self) -> i32 {
        match self.mode {
            CreateMode::Container => CREATE_CONTAINER,
            _ => CREATE2,
        }
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.buffer(&self.data);
        out.vector(&self.acl, |out, acl| {
            out.int(acl.permissions);
            out.string(&acl.scheme);
            out.string(&acl.id);
        });
        out.int(match self.mode {
            CreateMode::Persistent => 0,
            CreateMode::Ephemeral => 1,
            CreateMode::PersistentSequential => 2,
            CreateMode::EphemeralSequential => 3,
            CreateMode::Container => 4,
        });
    }

    fn read(input: &mut Reader<'_>) -> Result<Created, Malformed> {
        Ok(Created { path: input.string()?.to_owned(), stat: Stat::read(input)? })
    }
}

impl Request for Delete {
    type Reply = ();

    fn opcode(&self) -> i32 {
        DELETE
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.int(self.version.unwrap_or(ANY_VERSION));
    }

    fn read(_: &mut Reader<'_>) -> Result<(), Malformed> {
        Ok(())
    }
}

impl Request for SetData {
    type Reply = Stat;

    fn opcode(&self) -> i32 {
        SET_DATA
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.buffer(&self.data);
        out.int(self.version.unwrap_or(ANY_VERSION));
    }

    fn read(input: &mut Reader<'_>) -> Result<Stat, Malformed> {
        Stat::read(input)
    }
}

impl Request for Exists {
    type Reply = Option<Stat>;

    fn opcode(&self) -> i32 {
        EXISTS
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.bool(self.watch);
    }

    fn read(input: &mut Reader<'_>) -> Result<Option<Stat>, Malformed> {
        Stat::read(input).map(Some)
    }

    fn refused(code: Code) -> Result<Option<Stat>, Code> {
        if code == Code::NoNode { Ok(None) } else { Err(code) }
    }
}

impl Watchable for Exists {
    fn watching(self) -> Self {
        Self { watch: true, ..self }
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn watch(code: Option<Code>) -> Option<WatchKind> {
        match code {
            None => Some(WatchKind::Data),
            Some(Code::NoNode) => Some(WatchKind::Exist),
            Some(_) => None,
        }
    }
}

impl Request for GetData {
    type Reply = (Vec<u8>, Stat);

    fn opcode(&self) -> i32 {
        GET_DATA
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.bool(self.watch);
    }

    fn read(input: &mut Reader<'_>) -> Result<(Vec<u8>, Stat), Malformed> {
        Ok((input.buffer()?.to_vec(), Stat::read(input)?))
    }
}

impl Watchable for GetData {
    fn watching(self) -> Self {
        Self { watch: true, ..self }
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn watch(code: Option<Code>) -> Option<WatchKind> {
        code.is_none().then_some(WatchKind::Data)
    }
}

impl Request for GetChildren {
    type Reply = (Vec<String>, Stat);

    fn opcode(&self) -> i32 {
        GET_CHILDREN2
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
        out.bool(self.watch);
    }

    fn read(input: &mut Reader<'_>) -> Result<(Vec<String>, Stat), Malformed> {
        Ok((strings(input)?, Stat::read(input)?))
    }
}

impl Watchable for GetChildren {
    fn watching(self) -> Self {
        Self { watch: true, ..self }
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn watch(code: Option<Code>) -> Option<WatchKind> {
        code.is_none().then_some(WatchKind::Children)
    }
}

impl Request for GetAcl {
    type Reply = (Vec<Acl>, Stat);

    fn opcode(&self) -> i32 {
        GET_ACL
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
    }

    fn read(input: &mut Reader<'_>) -> Result<(Vec<Acl>, Stat), Malformed> {
        let acl = input.vector(|input| {
            let permissions = input.int()?;
            Ok(Acl::new(permissions, input.string()?, input.string()?))
        })?;
        Ok((acl, Stat::read(input)?))
    }
}

impl Request for Sync {
    type Reply = ();

    fn opcode(&self) -> i32 {
        SYNC
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.path);
    }

    fn read(input: &mut Reader<'_>) -> Result<(), Malformed> {
        input.string().map(drop)
    }
}

impl Request for GetEphemerals {
    type Reply = Vec<String>;

    fn opcode(&self) -> i32 {
        GET_EPHEMERALS
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.string(&self.prefix);
    }

    fn read(input: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
        strings(input)
    }
}

impl Request for Multi {
    type Reply = Result<Vec<OpReply>, FailedOp>;

    fn opcode(&self) -> i32 {
        MULTI
    }

    fn write(&self, out: &mut Writer<'_>) {
        for op in &self.ops {
            match op {
                Op::Create(create) => op_of(create, out),
                Op::Delete(delete) => op_of(delete, out),
                Op::SetData(set) => op_of(set, out),
                Op::Check(check) => {
                    op_header(CHECK, out);
                    out.string(&check.path);
                    out.int(check.version.unwrap_or(ANY_VERSION));
                }
            }
        }
        out.int(ERROR);
        out.bool(true);
        out.int(-1);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self::Reply, Malformed> {
        let (mut replies, mut index, mut failed) = (Vec::new(), 0, None);
        loop {
            let (kind, done, _) = (input.int()?, input.bool()?, input.int()?);
            if done {
                return Ok(failed.map_or(Ok(replies), Err));
            }
            match kind {
                CREATE | CREATE2 => {
                    let path = input.string()?.to_owned();
                    let stat = (kind == CREATE2).then(|| Stat::read(input)).transpose()?;
                    replies.push(OpReply::Created(OpCreated { path, stat }));
                }
                DELETE => replies.push(OpReply::Deleted),
                SET_DATA => replies.push(OpReply::Set(Stat::read(input)?)),
                CHECK => replies.push(OpReply::Checked),
                // The operations before the one that failed have the code 0, those after it
                // `RuntimeInconsistency`.
                ERROR => match input.int()? {
                    0 => {}
                    code => {
                        failed.get_or_insert(FailedOp { index, code: code.into() });
                    }
                },
                _ => return Err(Malformed),
            }
            index += 1;
        }
    }
}

fn op_of(op: &impl Request, out: &mut Writer<'_>) {
    op_header(op.opcode(), out);
    op.write(out);
}

fn op_header(opcode: i32, out: &mut Writer<'_>) {
    out.int(opcode);
    out.bool(false);
    out.int(-1);
}

impl Stat {
    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            czxid: input.long()?,
            mzxid: input.long()?,
            ctime: input.long()?,
            mtime: input.long()?,
            version: input.int()?,
            cversion: input.int()?,
            aversion: input.int()?,
            ephemeral_owner: input.long()?,
            data_length: input.int()?,
            num_children: input.int()?,
            pzxid: input.long()?,
        })
    }
}

/// Ends the session, and with it its ephemeral nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseSession;

impl Request for CloseSession {
    type Reply = ();

    fn opcode(&self) -> i32 {
        CLOSE_SESSION
    }

    fn write(&self, _: &mut Writer<'_>) {}

    fn read(_: &mut Reader<'_>) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Tells a server which watches a session has left on another: what has changed since `zxid` is
/// reported at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetWatches {
    pub(crate) zxid: i64,
    pub(crate) data: Vec<String>,
    pub(crate) exist: Vec<String>,
    pub(crate) children: Vec<String>,
}

impl Request for SetWatches {
    type Reply = ();

    fn opcode(&self) -> i32 {
        SET_WATCHES
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.long(self.zxid);
        for paths in [&self.data, &self.exist, &self.children] {
            out.vector(paths, |out, path| out.string(path));
        }
    }

    fn read(_: &mut Reader<'_>) -> Result<(), Malformed> {
        Ok(())
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

/// What a server answers to [`Connect`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Connected {
    /// The session timeout that the server grants. Zero: the session has expired.
    pub(crate) timeout_ms: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
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

/// The header of every frame from the server but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyHeader {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    /// `None` means success.
    pub(crate) code: Option<Code>,
}

impl ReplyHeader {
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (xid, zxid, code) = (input.int()?, input.long()?, input.int()?);
        Ok(Self { xid, zxid, code: (code != 0).then(|| code.into()) })
    }
}

/// The xid of a watch event.
pub(crate) const XID_EVENT: i32 = -1;
/// The xid of a ping and of its reply.
pub(crate) const XID_PING: i32 = -2;
/// The xid of a login and of its reply.
pub(crate) const XID_AUTH: i32 = -4;
/// The xid of a request that restores watches, and of its reply.
pub(crate) const XID_SET_WATCHES: i32 = -8;
/// The opcode of a ping.
pub(crate) const PING: i32 = 11;

/// Reads what follows the header of a watch event. `None`: it is not about a node.
pub(crate) fn read_event<'a>(
    input: &mut Reader<'a>,
) -> Result<Option<(Event, &'a str)>, Malformed> {
    let (kind, _state, path) = (input.int()?, input.int()?, input.string()?);
    let event = match kind {
        1 => Event::Created,
        2 => Event::Deleted,
        3 => Event::DataChanged,
        4 => Event::ChildrenChanged,
        _ => return Ok(None),
    };
    Ok(Some((event, path)))
}

fn strings(input: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    input.vector(|input| input.string().map(str::to_owned))
}

const ANY_VERSION: i32 = -1;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_ACL: i32 = 6;
const SYNC: i32 = 9;
const GET_CHILDREN2: i32 = 12;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const CREATE2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const SET_WATCHES: i32 = 101;
const GET_EPHEMERALS: i32 = 103;
const CLOSE_SESSION: i32 = -11;
const ERROR: i32 = -1;

#[cfg(test)]
mod tests;
