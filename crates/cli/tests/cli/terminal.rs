//! `tenure run` on a terminal: the command is in the foreground, and ^C and ^Z work as without
//! `tenure`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tenure_testkit::{GENEROUS, with_default_signals};

use crate::common::{Store, children_of, is_stopped};

#[test]
fn the_command_is_in_the_foreground_and_the_script_after_it() {
    let store = Store::new();
    // In /proc/PID/stat, the fifth word is the process group, the eighth the foreground group.
    let check = "set -- $(cat /proc/$$/stat); test $5 = $8 && echo in-foreground";
    let mut session = Session::start(
        &store,
        "\"$TENURE\" run a -- sh -c \"$SCRIPT\"; read word; echo got-$word",
        check,
    );
    session.expect("in-foreground");
    session.type_in("hello\n");
    session.expect("got-hello");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn an_interrupt_ends_the_command_and_the_calling_script() {
    let store = Store::new();
    let shell_line = "\"$TENURE\" run a -- sh -c 'echo read\"\"y; exec sleep 100'; echo went-on";
    let mut session = Session::start(&store, shell_line, "");
    session.expect("ready");
    session.type_in("\x03");
    assert_eq!(session.end(), None, "a signal ended the shell");
}

/// Bash ends a loop only if the signal itself ended the command in it.
#[test]
fn an_interrupt_ends_a_loop_around_tenure() {
    let store = Store::new();
    let body = "\"$TENURE\" run a -- sh -c \"echo read''y; exec sleep 100\"";
    let shell_line = format!("exec bash -c 'for i in 1 2; do {body}; done; echo went-on'")
        .replace("read''y", "read\"\"y");
    let mut session = Session::start(&store, &shell_line, "");
    session.expect("ready");
    session.type_in("\x03");
    assert_eq!(session.end(), None, "a signal ended the shell");
}

/// Bash would continue with `echo` after a command that exits with 130.
#[tokio::test]
async fn an_interrupt_during_the_wait_ends_the_calling_script() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    let shell_line = "exec bash -c '\"$TENURE\" run a -- true; echo went-on'";
    let mut session = Session::start(&store, shell_line, "");
    store.wait_for_waiters("a", 1).await;
    session.type_in("\x03");
    assert_eq!(session.end(), None, "a signal ended the shell");
}

#[test]
fn a_background_command_of_a_script_leaves_the_terminal_to_the_script() {
    let store = Store::new();
    let shell_line = "\"$TENURE\" run a -- sh -c 'echo start\"\"ed; exec sleep 2' & \
                      read word; echo got-$word; wait $!; echo code-$?";
    let mut session = Session::start(&store, shell_line, "");
    session.expect("started");
    session.type_in("hello\n");
    session.expect("got-hello");
    session.expect("code-0");
    assert_eq!(session.end(), Some(0));
}

/// The job of an interactive shell is a script with a background command.
#[test]
fn a_background_command_of_a_script_leaves_the_terminal_alone_when_it_is_continued() {
    let store = Store::new();
    let script = "\"$TENURE\" run a -- sh -c 'echo start\"\"ed; exec sleep 3' & \
                  read word; echo got-$word; wait $!; echo code-$?";
    let shell_line = "set -m; sh -c \"$SCRIPT\"; echo stopped-$?; read go; fg; echo ended-$?";
    let mut session = Session::start(&store, shell_line, script);
    session.expect("started");
    session.type_in("\x1a");
    session.expect("stopped-148");
    let tenure = &store.status("a")["holders"][0]["pid"];
    let tenure = tenure.as_u64().unwrap().try_into().unwrap();
    // The shell reports when its script has stopped; tenure stops when its command has.
    session.until("tenure is stopped", || is_stopped(tenure));
    let command = children_of(tenure).into_iter().find(|pid| is_stopped(*pid)).unwrap();
    session.type_in("go\n");
    session.until("the command continues", || !is_stopped(command));
    session.type_in("hello\n");
    session.expect("got-hello");
    session.expect("code-0");
    session.expect("ended-0");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_background_command_of_a_script_gets_the_terminal_when_it_reads_from_it() {
    let store = Store::new();
    let ask = "read answer </dev/tty; echo got-$answer";
    let shell_line = "\"$TENURE\" run a -- sh -c \"$SCRIPT\" & wait $!; echo code-$?";
    let mut session = Session::start(&store, shell_line, ask);
    session.type_in("yes\n");
    session.expect("got-yes");
    session.expect("code-0");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn an_interrupt_sent_to_tenure_alone_does_not_reach_the_script() {
    let store = Store::new();
    let shell_line =
        "\"$TENURE\" run a -- sh -c '(sleep 0.1; kill -INT $PPID) & exec sleep 100'; echo code-$?";
    let mut session = Session::start(&store, shell_line, "");
    session.expect("code-130");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_command_whose_input_is_a_file_can_read_from_the_terminal() {
    let store = Store::new();
    let ask = "read answer </dev/tty; echo got-$answer";
    let shell_line = "\"$TENURE\" run a -- sh -c \"$SCRIPT\" </dev/null; echo code-$?";
    let mut session = Session::start(&store, shell_line, ask);
    session.type_in("yes\n");
    session.expect("got-yes");
    session.expect("code-0");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn suspending_and_continuing_a_job_works_as_without_tenure() {
    let store = Store::new();
    let shell_line = "set -m; \"$TENURE\" run a -- cat; echo stopped-$?; fg; echo ended-$?";
    let mut session = Session::start(&store, shell_line, "");
    session.type_in("one\n");
    // Once from the terminal's echo, once from cat.
    session.expect("one\r\none");
    session.type_in("\x1a");
    session.expect("stopped-148");
    // `fg` prints the job before it continues it.
    session.expect("run a -- cat");
    session.type_in("two\n");
    session.expect("two\r\ntwo");
    session.type_in("\x04");
    session.expect("ended-0");
    assert_eq!(session.end(), Some(0));
}

/// With `--at-least`, `tenure` is two processes.
#[test]
fn a_terminal_works_as_without_tenure_if_the_lock_stays_taken() {
    let store = Store::new();
    let body = "\"$TENURE\" run -q --at-least 2s a --";
    let check = "set -- $(cat /proc/$$/stat); test $5 = $8 && echo in-foreground";
    let cat = body.replace(" a --", " b -- cat");
    let shell_line = format!(
        "{body} sh -c \"$SCRIPT\"; read word; echo got-$word; \
         set -m; {cat}; echo stopped-$?; fg; echo ended-$?"
    );
    let mut session = Session::start(&store, &shell_line, check);
    session.expect("in-foreground");
    session.type_in("hello\n");
    session.expect("got-hello");
    session.type_in("one\n");
    session.expect("one\r\none");
    session.type_in("\x1a");
    session.expect("stopped-148");
    session.expect("b -- cat");
    session.type_in("two\n");
    session.expect("two\r\ntwo");
    session.type_in("\x04");
    session.expect("ended-0");
    assert_eq!(session.end(), Some(0));
    let body = body.replace(" a --", " c --");
    let body = format!("{body} sh -c \"echo read''y; exec sleep 100\"");
    let shell_line = format!("exec bash -c 'for i in 1 2; do {body}; done; echo went-on'")
        .replace("read''y", "read\"\"y");
    let mut session = Session::start(&store, &shell_line, "");
    session.expect("ready");
    session.type_in("\x03");
    assert_eq!(session.end(), None, "a signal ended the shell");
}

#[test]
fn a_suspension_longer_than_the_ttl_is_a_loss() {
    let store = Store::new();
    let shell_line = "set -m; \"$TENURE\" run --ttl 500ms a -- cat; sleep 1; fg; echo ended-$?";
    let mut session = Session::start(&store, shell_line, "");
    session.type_in("one\n");
    session.expect("one\r\none");
    session.type_in("\x1a");
    session.expect("its guardian kills the command");
    session.expect("ended-76");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_reads_from_it() {
    let store = Store::new();
    let shell_line = "set -m; \"$TENURE\" run a -- cat | sed s/^/piped-/; echo ended";
    let mut session = Session::start(&store, shell_line, "");
    session.type_in("one\n");
    session.type_in("\x04");
    session.expect("piped-one");
    session.expect("ended");
    assert_eq!(session.end(), Some(0));
}

#[tokio::test]
async fn a_wait_and_a_busy_lock_are_reported_on_a_terminal() {
    let store = Store::new();
    let (holder, ..) = store.hold(&["--label", "nightly"], "a").await;
    let shell_line =
        "\"$TENURE\" run -n a -- true; echo code-$?; \"$TENURE\" run a -- echo started; read word";
    let mut session = Session::start(&store, shell_line, "");
    session.expect("another claim holds it");
    session.expect("code-75");
    session.expect("tenure: waiting for the lock \"a\", held by");
    session.expect(&format!(":{} (nightly) for", holder.pid()));
    session.expect("next in the queue");
    crate::common::signal(&holder, rustix::process::Signal::TERM);
    session.expect("started");
    session.type_in("\n");
    assert_eq!(session.end(), Some(0));
}

#[tokio::test]
async fn with_quiet_a_wait_and_a_busy_lock_are_not_reported() {
    let store = Store::new();
    let (holder, ..) = store.hold(&[], "a").await;
    let shell_line = "\"$TENURE\" -q run -n a -- true; echo code-$?; \
                      \"$TENURE\" -q run a -- echo started; read word";
    let mut session = Session::start(&store, shell_line, "");
    session.expect("code-75");
    store.wait_for_waiters("a", 1).await;
    // Longer than the first report would take.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    crate::common::signal(&holder, rustix::process::Signal::TERM);
    session.expect("started");
    assert!(!session.seen.contains("tenure:"), "{}", session.seen);
    session.type_in("\n");
    assert_eq!(session.end(), Some(0));
}

/// A shell on a terminal of its own.
pub(crate) struct Session {
    shell: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    pub(crate) seen: String,
}

impl Session {
    pub(crate) fn start(store: &Store, shell_line: &str, script: &str) -> Self {
        let keyboard =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(name).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", shell_line]).env("SCRIPT", script);
        store.set_environment(&mut command);
        command.env("TENURE", env!("CARGO_BIN_EXE_tenure"));
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                Ok(ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let shell = with_default_signals(&mut command).spawn().unwrap();
        drop((command, terminal));
        let keyboard = File::from(keyboard);
        let mut output = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Fails when no process has the terminal open any more.
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        let seen = String::new();
        Self { shell, keyboard, screen, seen }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text is on the screen.
    pub(crate) fn expect(&mut self, text: &str) {
        let limit = Instant::now() + GENEROUS;
        while !self.seen.contains(text) {
            let left = limit.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} never appears: {:?}", self.seen),
            }
        }
    }

    /// Waits until a condition is true.
    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let limit = Instant::now() + GENEROUS;
        while !condition() {
            assert!(Instant::now() < limit, "never true: {what}: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn end(mut self) -> Option<i32> {
        self.shell.wait().unwrap().code()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The shell has exited, or the test has failed.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
