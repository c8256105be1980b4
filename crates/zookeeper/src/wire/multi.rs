//! Several operations in one transaction.

use super::code::Code;
use super::jute::{Malformed, Reader, Writer};
use super::messages::{
    ANY_VERSION, CREATE, CREATE2, Create, DELETE, Delete, Request, SET_DATA, SetData, Stat,
};

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

/// Part of a [`Multi`]: fails unless the node is there, with this version.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) path: String,
    /// `None` is any version.
    pub(crate) version: Option<i32>,
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

const CHECK: i32 = 13;
const MULTI: i32 = 14;
const ERROR: i32 = -1;
