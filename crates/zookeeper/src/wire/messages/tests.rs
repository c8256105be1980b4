//! Requests and replies as a real server writes them, and replies that make no sense.

use proptest::prelude::*;

use super::super::handshake::*;
use super::super::multi::*;
use super::*;

/// Frames of a ZooKeeper server of version 3.8.0, without their lengths.
pub(in crate::wire) mod captured {
    pub(in crate::wire) const CONNECTED: &str =
        "00000000000075300100001f8fcf000000000010037aa627d4d6d95419bc33633dd5b36200";
    pub(in crate::wire) const CREATED: &str = "\
        000000020000000000000003000000000000000f2f612f6e2d30303030303030303030\
        00000000000000030000000000000003000001a1ed299b24000001a1ed299b24\
        0000000000000000000000000100001f8fcf000000000000000000000000000000000003";
    pub(in crate::wire) const NO_NODE: &str = "000000030000000000000003ffffff9b";
    pub(in crate::wire) const DATA: &str = "\
        00000004000000000000000300000000000000036f6e65\
        00000000000000020000000000000002000001a1ed299ae8000001a1ed299ae8\
        000000000000000100000000000000000000000000000003000000010000000000000003";
    pub(in crate::wire) const CHILDREN: &str = "\
        000000050000000000000003000000000000000100\
        00000c6e2d3030303030303030303000000000000000020000000000000002000001a1ed299ae8\
        000001a1ed299ae80000000000000001000000000000000000000000000000030000000100000000\
        00000003";
    pub(in crate::wire) const ACL: &str = "\
        00000006000000000000000300000000000000010000001f00000005776f726c6400000006616e79\
        6f6e6500000000000000020000000000000002000001a1ed299ae8000001a1ed299ae8\
        000000000000000100000000000000000000000000000003000000010000000000000003";
    pub(in crate::wire) const EVENT: &str =
        "ffffffffffffffffffffffff000000000000000300000003000000022f61";
    /// Check, create, setData, delete.
    pub(in crate::wire) const MULTI: &str = "\
        000000070000000000000004000000000000000d0000000000000000010000000000000000022f62\
        00000005000000000000000000000000020000000000000004000001a1ed299ae8000001a1ed299b\
        76000000010000000100000000000000000000000000000003000000010000000000000003000000\
        020000000000ffffffff01ffffffff";
    /// The second of three operations found no node.
    pub(in crate::wire) const MULTI_FAILED: &str = "\
        00000008000000000000000500000000ffffffff000000000000000000ffffffff00ffffff9bffff\
        ff9bffffffff00fffffffefffffffeffffffff01ffffffff";
    /// Creates a container.
    pub(in crate::wire) const MULTI_CONTAINER: &str = "\
        0000000c0000000000000007000000000000000f0000000000000000022f64000000000000000700\
        00000000000007000001a1ed299bd4000001a1ed299bd40000000000000000000000000000000000\
        00000000000000000000000000000000000007ffffffff01ffffffff";
    pub(in crate::wire) const PONG: &str = "fffffffe000000000000000500000000";
    pub(in crate::wire) const SYNCED: &str = "0000000a000000000000000500000000000000022f61";
    pub(in crate::wire) const LOGIN_REFUSED: &str = "fffffffc0000000000000000ffffff8d";
}

pub(in crate::wire) fn bytes(hex: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(digits).collect()
}

fn header(xid: i32, zxid: i64, code: Option<Code>) -> ReplyHeader {
    ReplyHeader { xid, zxid, code }
}

/// The header and the reply of a captured frame, which is read to its end.
fn reply<R: Request>(frame: &str) -> (ReplyHeader, R::Reply) {
    let frame = bytes(frame);
    let mut input = Reader::new(&frame);
    let header = ReplyHeader::read(&mut input).unwrap();
    let reply = R::read(&mut input).unwrap();
    assert_eq!(input.rest(), b"");
    (header, reply)
}

#[test]
fn a_servers_first_frame_is_understood() {
    let frame = bytes(captured::CONNECTED);
    let connected = Connected::read(&mut Reader::new(&frame)).unwrap();
    assert_eq!(connected.timeout_ms, 30_000);
    assert_eq!(connected.session, 0x0100_001f_8fcf_0000);
    assert_eq!(connected.password, bytes("037aa627d4d6d95419bc33633dd5b362"));
}

#[test]
fn a_servers_replies_are_understood() {
    let (read, created) = reply::<Create>(captured::CREATED);
    assert_eq!(read, header(2, 3, None));
    assert_eq!(created.path, "/a/n-0000000000");
    let stat = created.stat;
    assert_eq!((stat.czxid, stat.mzxid, stat.pzxid), (3, 3, 3));
    assert_eq!((stat.ctime, stat.mtime), (0x01a1_ed29_9b24, 0x01a1_ed29_9b24));
    assert_eq!(stat.ephemeral_owner, 0x0100_001f_8fcf_0000);

    let (_, (data, stat)) = reply::<GetData>(captured::DATA);
    assert_eq!((&*data, stat.version, stat.cversion), (&b"one"[..], 0, 1));
    assert_eq!((stat.data_length, stat.num_children, stat.pzxid), (3, 1, 3));

    assert_eq!(reply::<GetChildren>(captured::CHILDREN).1.0, ["n-0000000000"]);
    assert_eq!(reply::<GetAcl>(captured::ACL).1.0, Acl::anyone_all());
    assert_eq!(reply::<Sync>(captured::SYNCED).0, header(10, 5, None));

    for (frame, expected) in [
        (captured::NO_NODE, header(3, 3, Some(Code::NoNode))),
        (captured::PONG, header(XID_PING, 5, None)),
        (captured::LOGIN_REFUSED, header(XID_AUTH, 0, Some(Code::AuthFailed))),
    ] {
        let frame = bytes(frame);
        assert_eq!(ReplyHeader::read(&mut Reader::new(&frame)), Ok(expected));
    }
    assert_eq!(Exists::refused(Code::NoNode), Ok(None));
    assert_eq!(Exists::refused(Code::NoAuth), Err(Code::NoAuth));
}

#[test]
fn a_reply_leaves_the_watch_that_the_server_keeps() {
    let replies = [None, Some(Code::NoNode), Some(Code::NoAuth)];
    let data = Some(WatchKind::Data);
    assert_eq!(replies.map(Exists::watch), [data, Some(WatchKind::Exist), None]);
    assert_eq!(replies.map(GetData::watch), [data, None, None]);
    assert_eq!(replies.map(GetChildren::watch), [Some(WatchKind::Children), None, None]);
}

#[test]
fn the_reply_to_a_multi_tells_what_each_operation_did_or_which_one_failed() {
    let done = reply::<Multi>(captured::MULTI).1.unwrap();
    let [OpReply::Checked, OpReply::Created(created), OpReply::Set(set), OpReply::Deleted] = &*done
    else {
        panic!("{done:?}")
    };
    assert_eq!(*created, OpCreated { path: "/b".into(), stat: None });
    assert_eq!((set.version, set.mzxid), (1, 4));
    let done = reply::<Multi>(captured::MULTI_CONTAINER).1.unwrap();
    assert!(
        matches!(&*done, [OpReply::Created(created)] if created.stat.unwrap().czxid == 7),
        "{done:?}"
    );
    let failed = reply::<Multi>(captured::MULTI_FAILED).1.unwrap_err();
    assert_eq!(failed, FailedOp { index: 1, code: Code::NoNode });
}

#[test]
fn an_event_tells_what_happened_to_which_node() {
    let frame = bytes(captured::EVENT);
    let mut input = Reader::new(&frame);
    assert_eq!(ReplyHeader::read(&mut input).unwrap().xid, XID_EVENT);
    assert_eq!(read_event(&mut input), Ok(Some((Event::DataChanged, "/a"))));
}

#[test]
fn a_code_keeps_its_number_and_only_certain_refusals_are_refusals() {
    for number in -200..0 {
        assert_eq!(i32::from(Code::from(number)), number);
    }
    assert_eq!(Code::from(-7777), Code::Other(-7777));
    for doubtful in [-1, -2, -4, -7, -112, -118, -122, -7777].map(|number: i32| Code::from(number))
    {
        assert!(!doubtful.is_refusal(), "{doubtful:?}");
    }
    assert!(Code::NodeExists.is_refusal());
}

#[test]
fn requests_are_written_as_a_server_reads_them() {
    let written = |request: &dyn Fn(&mut Writer<'_>)| {
        let mut out = Vec::new();
        request(&mut Writer::new(&mut out));
        out
    };
    let create = Create {
        path: "/a".into(),
        data: b"x".into(),
        acl: Acl::anyone_all(),
        mode: CreateMode::EphemeralSequential,
    };
    let body = "000000022f61000000017800000001\
                0000001f00000005776f726c6400000006616e796f6e6500000003";
    assert_eq!(written(&|out| create.write(out)), bytes(body));
    let check = Op::Check(Check { path: "/a".into(), version: None });
    let multi = Multi { ops: vec![check, Op::Create(create)] };
    let expected = ["0000000d00ffffffff000000022f61ffffffff", "0000000f00ffffffff", body];
    let expected = expected.join("") + "ffffffff01ffffffff";
    assert_eq!(written(&|out| multi.write(out)), bytes(&expected));
    let watched = Exists::new("/a").watching();
    assert_eq!(written(&|out| watched.write(out)), bytes("000000022f6101"));
    let watches = SetWatches { zxid: 5, exist: vec!["/a".into()], ..SetWatches::default() };
    let expected = "00000000000000050000000000000001000000022f6100000000";
    assert_eq!(written(&|out| watches.write(out)), bytes(expected));
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(input in prop::collection::vec(any::<u8>(), 0..200)) {
        let reader = || Reader::new(&input);
        let _ = Connected::read(&mut reader());
        let _ = ReplyHeader::read(&mut reader());
        let _ = read_event(&mut reader());
        let _ = Create::read(&mut reader());
        let _ = Exists::read(&mut reader());
        let _ = GetData::read(&mut reader());
        let _ = GetChildren::read(&mut reader());
        let _ = GetAcl::read(&mut reader());
        let _ = Sync::read(&mut reader());
        let _ = Multi::read(&mut reader());
    }
}
