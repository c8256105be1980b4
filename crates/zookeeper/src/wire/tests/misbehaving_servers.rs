//! Sessions with servers that are silent, refuse, hang up, or send nonsense.

use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tenure_core::ErrorKind;
use tenure_core::store::Password;
use tenure_testkit::{GENEROUS, eventually};

use super::fake::{Fake, PASSWORD, SESSION, granted};
use super::{LIFE, open, over, reconnected, refusal, reported, target};
use crate::wire::messages::XID_PING;
use crate::wire::{Delete, Event, Exists, Fault, Session, SetData, Target};

const AUTH_FAILED: i32 = -115;
const NO_NODE: i32 = -101;
const AUTH: i32 = 100;
const SET_WATCHES: i32 = 101;

/// A request whose reply has no body.
fn request(path: &str) -> Delete {
    Delete { path: path.into(), version: None }
}

fn with_timeout(port: u16, timeout: Duration) -> Target {
    Target { timeout, ..target(&[port]) }
}

async fn session(fake: &Fake) -> Session {
    open(target(&[fake.port()]), LIFE).await.unwrap()
}

/// Keeps what threads of a fake server have seen.
type Seen<T> = Arc<Mutex<Vec<T>>>;

#[tokio::test]
async fn a_session_that_the_servers_shorten_is_over_and_not_taken_from_its_holders_at_once() {
    let (sender, asked) = mpsc::channel();
    let fake = Fake::start(move |number, mut peer| {
        // First as long as was asked for, then longer, then shorter.
        peer.welcome([30_000, 40_000, 35_000][number.min(2)]);
        let asked = peer.asked_besides_pings();
        sender.send((number, asked.map(|asked| asked.opcode))).unwrap();
    });
    let session = session(&fake).await;
    assert_eq!(session.life(), Duration::from_secs(30));
    // The server hangs up on each request.
    assert!(matches!(session.send(request("/a")).await, Err(Fault::Broken(_))));
    reconnected(&session, 1).await;
    assert_eq!(session.life(), Duration::from_secs(40));
    assert!(matches!(session.send(request("/a")).await, Err(Fault::Broken(_))));
    over(&session).await;
    assert_eq!(session.life(), Duration::from_secs(40));
    assert_eq!(session.send(request("/a")).await, Err(Fault::Over));
    let asked: Vec<_> = (0..3).map(|_| asked.recv_timeout(GENEROUS).unwrap()).collect();
    assert_eq!(asked[2], (2, None), "its nodes stay until the servers end it");
}

#[tokio::test]
async fn an_expired_session_is_over_with_its_watches() {
    let fake = Fake::start(|number, mut peer| {
        peer.welcome(if number == 0 { 30_000 } else { 0 });
        if let Some(asked) = peer.asked_besides_pings() {
            peer.reply(asked.xid, 5, -101, &[]);
        }
    });
    let session = session(&fake).await;
    let (missing, watch) = session.send_watched(Exists::new("/a")).await.unwrap();
    assert_eq!(missing, None);
    over(&session).await;
    assert_eq!(reported(watch).await, Event::SessionOver);
    assert_eq!(fake.accepted(), 2, "an expired session is not tried elsewhere");
}

#[tokio::test]
async fn a_session_that_reaches_no_server_for_longer_than_it_lives_is_over() {
    const LIFE_MS: u64 = 600;
    let fake = Fake::start(|number, mut peer| {
        if number == 0 {
            peer.welcome(i32::try_from(LIFE_MS).unwrap());
        }
    });
    let began = Instant::now();
    let session = session(&fake).await;
    over(&session).await;
    assert!(began.elapsed() >= Duration::from_millis(LIFE_MS), "{:?}", began.elapsed());
    assert!(fake.accepted() > 3, "it has been tried several times");
}

#[tokio::test]
async fn each_connection_logs_in_first_then_restores_watches_and_tells_what_it_has_seen() {
    let (hellos, requests): (Seen<_>, Seen<_>) = Default::default();
    let (saw_hello, saw_request) = (Arc::clone(&hellos), Arc::clone(&requests));
    let fake = Fake::start(move |number, mut peer| {
        saw_hello.lock().unwrap().extend(peer.welcome(30_000));
        while let Some(asked) = peer.asked_besides_pings() {
            saw_request.lock().unwrap().push((number, asked.opcode, asked.body));
            let (zxid, code) = if asked.opcode == 3 { (77, -101) } else { (0, 0) };
            peer.reply(asked.xid, zxid, code, &[]);
            if asked.opcode == 2 {
                return;
            }
        }
    });
    let mut target = target(&[fake.port()]);
    let folder = tenure_testkit::temp_dir();
    let file = folder.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    target.login = Some(("app".into(), Password::File(file.clone())));
    let session = open(target, LIFE).await.unwrap();
    std::fs::write(&file, "replaced\n").unwrap();
    let (_, _watch) = session.send_watched(Exists::new("/a")).await.unwrap();
    session.send(request("/b")).await.unwrap();
    reconnected(&session, 1).await;
    let restored = || async { requests.lock().unwrap().len() >= 5 };
    assert!(eventually(GENEROUS, restored).await);

    let hellos = hellos.lock().unwrap();
    assert_eq!((hellos[0].zxid, hellos[0].session, hellos[0].timeout_ms), (0, 0, 60_000));
    assert_eq!((hellos[1].zxid, hellos[1].session), (77, SESSION));
    assert_eq!(hellos[1].password, PASSWORD);
    let requests = requests.lock().unwrap();
    let opcodes: Vec<_> = requests.iter().map(|(number, opcode, _)| (*number, *opcode)).collect();
    assert_eq!(opcodes, [(0, AUTH), (0, 3), (0, 2), (1, AUTH), (1, SET_WATCHES)]);
    assert!(requests[0].2.ends_with(b"app:secret"), "{:?}", requests[0].2);
    assert!(requests[3].2.ends_with(b"app:replaced"), "the file is read anew: {:?}", requests[3].2);
    let watches = &requests[4].2;
    assert_eq!(watches[..8], 77_i64.to_be_bytes());
    assert!(watches.ends_with(b"\0\0\0\x01\0\0\0\x02/a\0\0\0\0"), "one to be created: {watches:?}");
}

#[tokio::test]
async fn a_login_that_is_refused_is_denied_at_once_and_ends_a_session_later() {
    let login = |port| {
        let login = Some(("app".to_owned(), "secret".into()));
        Target { login, timeout: Duration::from_secs(600), ..target(&[port]) }
    };
    let fake = Fake::start(|_, mut peer| {
        peer.welcome(30_000);
        peer.log_in(AUTH_FAILED);
    });
    let error = tokio::time::timeout(GENEROUS, refusal(login(fake.port()))).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");

    let fake = Fake::start(|number, mut peer| {
        peer.welcome(30_000);
        peer.log_in(if number == 0 { 0 } else { AUTH_FAILED });
    });
    let session = open(login(fake.port()), LIFE).await.unwrap();
    over(&session).await;
}

#[tokio::test]
async fn calls_without_a_reply_fail_with_their_connection_and_are_not_sent_again() {
    let requests = Seen::default();
    let saw = Arc::clone(&requests);
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let fake = Fake::start(move |number, mut peer| {
        peer.welcome(30_000);
        while let Some(asked) = peer.asked_besides_pings() {
            saw.lock().unwrap().push((number, asked.body));
            if number > 0 {
                peer.reply(asked.xid, 0, 0, &[]);
            } else if saw.lock().unwrap().len() == 2 {
                receiver.lock().unwrap().recv().unwrap();
                return;
            }
        }
    });
    let session = session(&fake).await;
    let (first, second) = (session.send(request("/1")), session.send(request("/2")));
    sender.send(()).unwrap();
    for fault in [first.await.unwrap_err(), second.await.unwrap_err()] {
        assert!(matches!(fault, Fault::Broken(_)), "{fault:?}");
        assert!(!fault.had_no_effect());
    }
    reconnected(&session, 1).await;
    session.send(request("/3")).await.unwrap();
    let requests = requests.lock().unwrap();
    let paths: Vec<_> = requests.iter().map(|(number, body)| (*number, body[5])).collect();
    assert_eq!(paths, [(0, b'1'), (0, b'2'), (1, b'3')]);
}

#[tokio::test]
async fn without_a_connection_nothing_is_sent_or_kept() {
    let requests = Seen::default();
    let saw = Arc::clone(&requests);
    let (sender, receiver) = mpsc::channel::<()>();
    let receiver = Mutex::new(receiver);
    let fake = Fake::start(move |number, mut peer| match number {
        0 => drop(peer.welcome(30_000)),
        1 => drop(receiver.lock().unwrap().recv()),
        _ => {
            peer.welcome(30_000);
            while let Some(asked) = peer.asked_besides_pings() {
                saw.lock().unwrap().push(asked.body[5]);
                peer.reply(asked.xid, 0, 0, &[]);
            }
        }
    });
    let session = session(&fake).await;
    let gone = || async { !session.is_connected() };
    assert!(eventually(GENEROUS, gone).await);
    let fault = session.send(request("/1")).await.unwrap_err();
    assert_eq!(fault, Fault::NotConnected);
    assert!(fault.had_no_effect() && !fault.is_refusal());
    sender.send(()).unwrap();
    assert_eq!(session.ready().await, Ok(()));
    session.send(request("/2")).await.unwrap();
    assert_eq!(*requests.lock().unwrap(), [b'2']);
}

/// Stops the thread that wakes it until it may go on.
struct Stopper {
    woken: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stopper {
    fn wake(self: Arc<Self>) {
        let _ = self.woken.send(());
        let _ = self.go_on.lock().unwrap().recv_timeout(GENEROUS);
    }
}

#[tokio::test]
async fn a_connection_that_has_just_ended_is_not_taken_for_ready() {
    let fake = Fake::start(|number, mut peer| {
        peer.welcome(30_000);
        while let Some(asked) = peer.asked_besides_pings() {
            if number == 0 {
                return;
            }
            peer.reply(asked.xid, 0, 0, &[]);
        }
    });
    let session = session(&fake).await;
    let ((woken, ended), (sender, go_on)) = (mpsc::channel(), mpsc::channel());
    let waker = Waker::from(Arc::new(Stopper { woken, go_on: Mutex::new(go_on) }));
    // The reply comes while the session has not heard yet that its connection ended.
    let mut call = session.send(request("/a"));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut call).poll(&mut context).is_pending());
    ended.recv_timeout(GENEROUS).unwrap();
    assert!(!session.is_connected());
    let mut ready = pin!(session.ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    sender.send(()).unwrap();
    assert!(matches!(call.await, Err(Fault::Broken(_))));
    assert_eq!(ready.await, Ok(()));
    assert_eq!(session.send(request("/a")).await, Ok(()));
}

#[tokio::test]
async fn waiting_for_a_connection_ends_after_the_call_timeout() {
    let fake = Fake::start(|number, mut peer| {
        if number == 0 {
            peer.welcome(60_000);
        }
    });
    let session = open(with_timeout(fake.port(), Duration::from_millis(700)), LIFE).await.unwrap();
    let gone = || async { !session.is_connected() };
    assert!(eventually(GENEROUS, gone).await);
    assert_eq!(session.ready().await, Err(Fault::NotConnected));
    // The session can be closed all the same.
    tokio::time::timeout(GENEROUS, session.close()).await.unwrap();
    over(&session).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_fails_and_keeps_its_place() {
    let (sender, receiver) = mpsc::channel::<()>();
    let receiver = Mutex::new(receiver);
    let fake = Fake::start(move |_, mut peer| {
        peer.welcome(60_000);
        let Some(first) = peer.asked_besides_pings() else { return };
        receiver.lock().unwrap().recv().unwrap();
        peer.reply(first.xid, 0, -101, &[]);
        peer.serve();
    });
    let limit = Duration::from_millis(700);
    let session = open(with_timeout(fake.port(), limit), LIFE).await.unwrap();
    let late = session.send(request("/late"));
    let given_up = session.send(request("/given up"));
    drop(given_up);
    assert_eq!(late.await, Err(Fault::Silent(limit)));
    let next = session.send(request("/next"));
    sender.send(()).unwrap();
    assert_eq!(next.await, Ok(()), "not the reply to the first");
    assert_eq!(session.connection(), 1);
}

/// The first request does not fit into the socket's buffer: those after it must not overtake its
/// end.
#[tokio::test]
async fn requests_to_a_server_that_reads_slowly_stay_whole_and_in_order() {
    const SMALL: usize = 12;
    let (sender, receiver) = mpsc::channel::<()>();
    let receiver = Mutex::new(receiver);
    let fake = Fake::start(move |_, mut peer| {
        peer.welcome(60_000);
        receiver.lock().unwrap().recv().unwrap();
        let mut numbers = 1..;
        while let Some(asked) = peer.asked_besides_pings() {
            assert_eq!(Some(asked.xid), numbers.next());
            let version = [0; 68];
            let body = if asked.opcode == 5 { &version[..] } else { &[] };
            peer.reply(asked.xid, 0, 0, body);
        }
    });
    let session = session(&fake).await;
    let data = vec![b'x'; 16 << 20];
    let large = session.send(SetData { path: "/a".into(), data, version: None });
    sender.send(()).unwrap();
    let mut small = Vec::new();
    for _ in 0..SMALL {
        small.push(session.send(request("/b")));
        // Spreads them over the time that the server takes to read the large one.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    large.await.unwrap();
    for call in small {
        call.await.unwrap();
    }
    assert_eq!(session.connection(), 1);
}

#[tokio::test]
async fn a_server_that_owes_a_reply_for_too_long_is_left() {
    let fake = Fake::start(|number, mut peer| {
        peer.welcome(60_000);
        if number > 0 {
            return peer.serve();
        }
        // Answers every ping, and nothing else.
        while let Some(asked) = peer.asked() {
            if asked.xid == XID_PING {
                peer.reply(XID_PING, 0, 0, &[]);
            }
        }
    });
    let limit = Duration::from_millis(500);
    let session = open(with_timeout(fake.port(), limit), LIFE).await.unwrap();
    assert_eq!(session.send(request("/a")).await, Err(Fault::Silent(limit)));
    reconnected(&session, 1).await;
}

#[tokio::test]
async fn an_idle_session_sends_pings_and_leaves_a_server_that_does_not_answer_them() {
    let pings = Seen::default();
    let saw = Arc::clone(&pings);
    let fake = Fake::start(move |number, mut peer| {
        peer.welcome(6_000);
        if number == 0 {
            return peer.say_nothing();
        }
        while let Some(asked) = peer.asked() {
            saw.lock().unwrap().push(asked.xid);
            peer.reply(asked.xid, 0, 0, &[]);
        }
    });
    let session = session(&fake).await;
    reconnected(&session, 1).await;
    let pinged = || async { pings.lock().unwrap().len() >= 3 };
    assert!(eventually(GENEROUS, pinged).await);
    assert!(pings.lock().unwrap().iter().all(|xid| *xid == XID_PING));
    assert!(!session.is_over());
}

#[tokio::test]
async fn nonsense_ends_the_connection_and_not_the_session() {
    let fake = Fake::start(|number, mut peer| {
        peer.welcome(30_000);
        let Some(asked) = peer.asked_besides_pings() else { return };
        match number {
            0 => peer.write_raw(&i32::MAX.to_be_bytes()),
            1 => peer.write_raw(&(-1_i32).to_be_bytes()),
            2 => peer.reply(asked.xid + 1, 0, 0, &[]),
            3 => peer.reply(XID_PING, 0, 0, &[]),
            4 => peer.write_raw(b"\0\0\0\x03abc"),
            _ => peer.reply(asked.xid, 0, 0, &[]),
        }
        peer.serve();
    });
    let session = session(&fake).await;
    for number in 1..=5 {
        reconnected(&session, number - 1).await;
        let fault = session.send(request("/a")).await.unwrap_err();
        assert!(matches!(&fault, Fault::Broken(why) if why.contains("no sense")), "{fault:?}");
    }
    reconnected(&session, 5).await;
    session.send(request("/a")).await.unwrap();
    // A reply of the right form, and the wrong content.
    let fault = session.send(Exists::new("/a")).await.unwrap_err();
    assert!(matches!(&fault, Fault::Broken(why) if why.contains("no sense")), "{fault:?}");
}

#[tokio::test]
async fn a_session_is_opened_although_one_server_accepts_connections_and_stays_silent() {
    let silent = Fake::start(|_, mut peer| peer.say_nothing());
    let hangs_up = Fake::start(|_, _| {});
    let serves = Fake::start(|_, mut peer| {
        peer.welcome(30_000);
        peer.serve();
    });
    // The order is random: it goes on until the silent server was the first.
    while silent.accepted() == 0 {
        let ports = [silent.port(), hangs_up.port(), serves.port()];
        open(target(&ports), LIFE).await.unwrap();
    }
}

#[tokio::test]
async fn the_error_names_each_server_and_what_it_did() {
    let timeout = Duration::from_secs(1);
    let refuses = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let hangs_up = Fake::start(|_, _| {});
    let silent = Fake::start(|_, mut peer| peer.say_nothing());
    let cases = [
        (vec![refuses], ErrorKind::Unreachable, "refused"),
        (vec![refuses, hangs_up.port()], ErrorKind::QuorumLost, "closes the connection"),
        (vec![refuses, silent.port()], ErrorKind::QuorumLost, "does not answer"),
    ];
    for (ports, kind, words) in cases {
        let error = refusal(Target { timeout, ..target(&ports) }).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        for port in ports {
            assert!(error.to_string().contains(&format!("127.0.0.1:{port} (")), "{error}");
        }
    }
    let nowhere = refusal(target(&[])).await;
    assert_eq!(nowhere.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_server_that_ends_each_connection_is_not_flooded_with_reconnects() {
    let fake = Fake::start(|_, mut peer| drop(peer.welcome(30_000)));
    let session = session(&fake).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let accepted = fake.accepted();
    assert!((2..20).contains(&accepted), "{accepted} connections in two seconds");
    assert!(!session.is_over());
}

#[tokio::test]
async fn a_server_that_refuses_to_restore_watches_is_left() {
    const THROTTLED: i32 = -127;
    let (sender, asked) = mpsc::channel();
    let fake = Fake::start(move |number, mut peer| {
        peer.welcome(30_000);
        let Some(asked) = peer.asked_besides_pings() else { return };
        if number == 0 {
            peer.reply(asked.xid, 5, NO_NODE, &[]);
            return;
        }
        sender.send(asked.opcode).unwrap();
        peer.reply(asked.xid, 5, if number == 1 { THROTTLED } else { 0 }, &[]);
        peer.serve();
    });
    let session = session(&fake).await;
    let (_, _watch) = session.send_watched(Exists::new("/a")).await.unwrap();
    assert_eq!(asked.recv_timeout(GENEROUS), Ok(SET_WATCHES));
    assert_eq!(asked.recv_timeout(Duration::from_secs(3)), Ok(SET_WATCHES), "they are lost");
    assert!(!session.is_over());
}

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
