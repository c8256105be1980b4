//! The requests and replies that tenure uses, each with its type.

use super::code::Code;
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
    /// Deleted with its session.
    Ephemeral,
    EphemeralSequential,
    /// Deleted by the servers some time after its last child.
    Container,
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
            CreateMode::EphemeralSequential => 3,
            CreateMode::Container => 4,
        });
    }

    fn read(input: &mut Reader<'_>) -> Result<Created, Malformed> {
        Ok(Created { path: input.string()?.to_owned(), stat: Stat::read(input)? })
    }
}

/// A node that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Its path, with the number of a sequential node.
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

/// Deletes a node, if it has this version.
#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub(crate) path: String,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
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

/// Replaces a node's data, if it has this version.
#[derive(Clone, Debug)]
pub(crate) struct SetData {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
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

/// A node's [`Stat`], or `None` if there is no such node.
#[derive(Clone, Debug)]
pub(crate) struct Exists {
    path: String,
    watch: bool,
}

impl Exists {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
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

/// A node's data.
#[derive(Clone, Debug)]
pub(crate) struct GetData {
    path: String,
    watch: bool,
}

impl GetData {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
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

/// The names of a node's children, in no order, and the node's own [`Stat`].
#[derive(Clone, Debug)]
pub(crate) struct GetChildren {
    path: String,
    watch: bool,
}

impl GetChildren {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), watch: false }
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

/// A node's access control list.
#[derive(Clone, Debug)]
pub(crate) struct GetAcl {
    pub(crate) path: String,
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

/// Makes the server catch up with the leader before it answers later requests.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    pub(crate) path: String,
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

impl Stat {
    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
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

fn strings(input: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    input.vector(|input| input.string().map(str::to_owned))
}

pub(super) const ANY_VERSION: i32 = -1;

pub(super) const CREATE: i32 = 1;
pub(super) const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
pub(super) const SET_DATA: i32 = 5;
const GET_ACL: i32 = 6;
const SYNC: i32 = 9;
const GET_CHILDREN2: i32 = 12;
pub(super) const CREATE2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const SET_WATCHES: i32 = 101;
const CLOSE_SESSION: i32 = -11;

#[cfg(test)]
pub(super) mod tests;
