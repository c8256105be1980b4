//! Damaged frames, taken apart as those of a server are: from the length of a frame to the reply that a caller
//! reads.

use super::super::handshake::Connected;
use super::super::messages::tests::{bytes, captured};
use super::super::messages::{Create, Exists, GetAcl, GetChildren, GetData, Sync};
use super::super::multi::Multi;
use super::*;

/// The frames of a server, each with the number of the request that it answers.
const FRAMES: [(i32, &str); 11] = [
    (2, captured::CREATED),
    (3, captured::NO_NODE),
    (4, captured::DATA),
    (5, captured::CHILDREN),
    (6, captured::ACL),
    (XID_EVENT, captured::EVENT),
    (7, captured::MULTI),
    (8, captured::MULTI_FAILED),
    (10, captured::SYNCED),
    (12, captured::MULTI_CONTAINER),
    (XID_PING, captured::PONG),
];

/// Numbers that look random, the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }
}

/// A frame with its length.
fn framed(hex: &str) -> Vec<u8> {
    let content = bytes(hex);
    let length = i32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[..], &content].concat()
}

/// A connection that waits for the replies to these requests, without a stream.
fn waiting_for(requests: &[i32]) -> (Shared, Vec<oneshot::Receiver<Outcome>>) {
    let now = Instant::now();
    let (mut pending, mut receivers) = (VecDeque::new(), Vec::new());
    for xid in requests.iter().copied().filter(|xid| *xid > 0) {
        let (reply, receiver) = oneshot::channel();
        let watch = RequestedWatch { path: "/a".into(), kind: GetData::watch };
        let watch = (xid % 2 == 0).then_some(watch);
        pending.push_back(Pending { xid, sent: now, watch, reply: Some(reply) });
        receivers.push(receiver);
    }
    let state = State {
        outgoing: Vec::new(),
        writing: false,
        pending,
        ping: requests.contains(&XID_PING).then_some(now),
        next_xid: 100,
        last_sent: now,
        last_heard: now,
        armed: now,
        contact: now,
        closed: None,
        ended: false,
    };
    let (watches, zxid, task) = (Arc::default(), Arc::default(), AtomicWaker::new());
    (Shared { state: Mutex::new(state), watches, zxid, task }, receivers)
}

/// Takes a stream that arrives in pieces, and reads each reply as every caller would. Returns how many replies
/// there were, and whether all of the stream made sense.
fn take(requests: &[i32], stream: &[u8], piece: usize) -> (usize, bool) {
    let (shared, receivers) = waiting_for(requests);
    let mut input = Vec::new();
    let sound = stream.chunks(piece).all(|piece| {
        input.extend_from_slice(piece);
        shared.dispatch(&mut input).is_ok()
    });
    let mut replies = 0;
    for mut receiver in receivers {
        let Ok(Ok(Answer { body, .. })) = receiver.try_recv() else { continue };
        replies += 1;
        let reader = || Reader::new(&body);
        let _ = Create::read(&mut reader());
        let _ = Exists::read(&mut reader());
        let _ = GetData::read(&mut reader());
        let _ = GetChildren::read(&mut reader());
        let _ = GetAcl::read(&mut reader());
        let _ = Sync::read(&mut reader());
        let _ = Multi::read(&mut reader());
    }
    (replies, sound && input.is_empty())
}

/// Changes a few bytes, or takes some out, or repeats some.
fn damage(stream: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(stream.len());
        match random.below(5) {
            0 => stream.truncate(at),
            1 => drop(stream.drain(at..(at + random.below(8)).min(stream.len()))),
            2 => {
                let again = stream[at..(at + random.below(40)).min(stream.len())].to_vec();
                stream.splice(at..at, again);
            }
            3 => {
                let edge = [0, 0x7f, 0x80, 0xff][random.below(4)];
                if let Some(byte) = stream.get_mut(at) {
                    *byte = edge;
                }
            }
            _ => {
                if let Some(byte) = stream.get_mut(at) {
                    *byte = random.below(256).to_le_bytes()[0];
                }
            }
        }
    }
}

#[tokio::test]
async fn a_stream_of_a_servers_frames_is_taken_apart_however_it_arrives() {
    let requests = FRAMES.map(|(xid, _)| xid);
    let stream: Vec<u8> = FRAMES.iter().flat_map(|(_, frame)| framed(frame)).collect();
    for piece in [1, 3, 40, stream.len()] {
        assert_eq!(take(&requests, &stream, piece), (9, true), "in pieces of {piece} bytes");
    }
}

/// A fuzzer that needs no nightly compiler. `TENURE_FUZZ_ROUNDS` makes it go on for longer.
#[tokio::test]
async fn no_damage_to_a_servers_frames_breaks_the_connection_s_reader() {
    let rounds = std::env::var("TENURE_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..rounds.unwrap_or(50_000) {
        let chosen: Vec<_> = FRAMES.iter().filter(|_| random.below(3) == 0).collect();
        let requests: Vec<i32> = chosen.iter().map(|(xid, _)| *xid).collect();
        let mut stream: Vec<u8> = chosen.iter().flat_map(|(_, frame)| framed(frame)).collect();
        damage(&mut stream, &mut random);
        let (replies, sound) = take(&requests, &stream, 1 + random.below(80));
        answered += replies;
        refused += usize::from(!sound);
        // The first frame of a connection, and the one that refuses a login.
        let mut first = bytes([captured::CONNECTED, captured::LOGIN_REFUSED][random.below(2)]);
        damage(&mut first, &mut random);
        let _ = Connected::read(&mut Reader::new(&first));
        let _ = ReplyHeader::read(&mut Reader::new(&first));
    }
    assert!(
        answered > 0 && refused > 0,
        "{answered} replies were read, and {refused} streams refused"
    );
}
