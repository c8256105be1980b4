//! `tenure hold`: its output, its end, and its behaviour when the system lacks resources.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tenure_testkit::{GENEROUS, Process, eventually, with_default_signals};

use crate::common::{Store, code, line, signal};

#[tokio::test]
async fn hold_releases_on_a_signal_and_when_its_input_closes() {
    let store = Store::new();
    for number in [Signal::INT, Signal::TERM] {
        let (mut holder, ..) = store.hold(&[], "a").await;
        signal(&holder, number);
        assert_eq!(code(&mut holder).await, Some(0));
        assert!(store.is_free("a"));
    }
    let (mut holder, ..) = store.hold(&["--stdin"], "a").await;
    holder.send("still here").unwrap();
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 1);
    holder.close_input();
    assert_eq!(code(&mut holder).await, Some(0));
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn hold_releases_the_lock_and_ends_by_sigpipe_if_its_output_is_closed() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = store.tenure(&["hold", "a"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{printed}");
    assert!(printed.contains("released the lock \"a\""), "{printed}");
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn hold_exits_with_76_when_the_lock_is_lost() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&["--max-hold", "200ms"], "a").await;
    assert_eq!(code(&mut holder).await, Some(76));
    let free = || async { store.is_free("a") };
    assert!(eventually(tenure_testkit::GENEROUS, free).await);
}

#[tokio::test]
async fn hold_prints_the_lock_as_json() {
    let store = Store::new();
    let mut holder = store.start(&["--json", "hold", "a"]);
    let object: serde_json::Value = serde_json::from_str(&line(&mut holder).await).unwrap();
    assert_eq!(object["lock"], "a");
    assert!(object["token"].is_u64());
    assert_eq!(object["owner"].as_str().unwrap().len(), 32);
    assert!(object["store"].as_str().unwrap().starts_with("local:/"));
}

#[tokio::test]
async fn with_few_descriptors_hold_fails_at_once_or_keeps_the_lock() {
    let store = Store::new();
    let (mut refused, mut held) = (0, 0);
    for files in 5..40 {
        let mut hold =
            with_descriptor_limit(&store, files, &["hold", "--ttl", "2s", "--stdin", "a"]);
        hold.stderr(Stdio::null());
        let mut holder = Process::spawn(hold).unwrap();
        let Some(_announcement) = holder.line(GENEROUS).await else {
            refused += 1;
            continue;
        };
        held += 1;
        // After more than two TTLs the lock is still held, so it is renewed.
        store.run(&["run", "-w", "5s", "a", "--", "true"]).failed(75);
        if held == 3 {
            break;
        }
    }
    assert!(refused > 0 && held == 3, "{refused} refused, {held} held");
}

/// A `tenure` command with this limit on open files.
fn with_descriptor_limit(store: &Store, files: usize, arguments: &[&str]) -> Command {
    let tenure = store.tenure(arguments);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {files}; exec \"$0\" \"$@\""));
    shell.arg(tenure.get_program()).args(tenure.get_args());
    store.set_environment(&mut shell);
    with_default_signals(&mut shell);
    shell.process_group(0);
    shell
}

#[tokio::test]
async fn metrics_are_served_while_the_lock_is_held() {
    use std::io::{Read, Write};
    let store = Store::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (mut holder, ..) = store.hold(&["--metrics", &address.to_string()], "a").await;
    let mut connection = std::net::TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(tenure_testkit::GENEROUS)).unwrap();
    write!(connection, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("tenure_held{lock=\"a\"} 1"), "{reply}");
    for reason in ["not_held", "max_hold", "expired"] {
        let losses = format!("tenure_losses_total{{lock=\"a\",reason=\"{reason}\"}} 0");
        assert!(reply.contains(&losses), "{losses}: {reply}");
    }
    assert!(reply.contains("tenure_acquire_wait_seconds_bucket{lock=\"a\",le="), "{reply}");
    // The address is taken: the command runs all the same.
    let taken = ["run", "--metrics", &address.to_string(), "b", "--", "echo", "it ran"];
    let output = store.tenure(&taken).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"it ran\n", "{printed}");
    assert!(printed.contains("cannot serve metrics on"), "{printed}");
    assert!(!printed.contains("other machines"), "{printed}");
    let open = ["run", "--metrics", "0.0.0.0:0", "b", "--", "true"];
    let output = store.tenure(&open).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("other machines can reach"), "{printed}");
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
}
