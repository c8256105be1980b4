//! Servers that end a connection in the middle of what they say.

use super::fake::{Fake, granted};
use super::{LIFE, open, target};
use crate::wire::Exists;

#[tokio::test]
async fn a_connection_that_ends_after_any_byte_of_a_reply_is_no_answer() {
    // The reply to `Exists`: a header, and the state of a node.
    const LENGTH: usize = 4 + 16 + 68;
    for (first, bytes) in [(true, granted(30_000).len()), (false, LENGTH)] {
        for end in 0..=bytes {
            let fake = Fake::start(move |number, mut peer| {
                let Some(_) = peer.hello() else { return };
                let frame = granted(30_000);
                if first && number == 0 {
                    peer.write_slowly(&frame[..end]);
                    if end < bytes {
                        return;
                    }
                } else {
                    peer.write_slowly(&frame);
                }
                let Some(asked) = peer.asked_besides_pings() else { return };
                let content = [&asked.xid.to_be_bytes()[..], &[0; LENGTH - 8]].concat();
                let length = u32::try_from(content.len()).unwrap().to_be_bytes();
                let reply = [&length[..], &content].concat();
                peer.write_slowly(if first { &reply } else { &reply[..end] });
                if first || end == bytes {
                    peer.serve();
                }
            });
            let session = open(target(&[fake.port()]), LIFE).await.unwrap();
            let answer = session.send(Exists::new("/a")).await;
            let is_answer = matches!(answer, Ok(Some(_)));
            assert_eq!(is_answer, first || end == bytes, "{first} {end}: {answer:?}");
            assert!(!session.is_over());
        }
    }
}
