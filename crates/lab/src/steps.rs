//! Points inside an algorithm at which an experiment can hold a client process.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write;

use tokio::sync::Notify;

use crate::history::now;

/// The points of one client process, and its voice.
pub(crate) struct Steps {
    client: String,
    armed: RefCell<HashSet<String>>,
    go: Notify,
}

impl Steps {
    pub(crate) fn new(client: String) -> Self {
        Self { client, armed: RefCell::default(), go: Notify::new() }
    }

    /// The client's name.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Makes the client wait at this point, the next time that it is there.
    pub(crate) fn arm(&self, point: &str) {
        self.armed.borrow_mut().insert(point.to_owned());
    }

    /// Lets a client that waits at a point go on.
    pub(crate) fn go(&self) {
        self.go.notify_one();
    }

    /// The client is at this point.
    pub(crate) async fn reach(&self, point: &str) {
        if self.armed.borrow_mut().remove(point) {
            self.say(format_args!("at {point}"));
            self.go.notified().await;
        }
    }

    /// Reports something to the experiment, with the time.
    pub(crate) fn say(&self, words: impl Display) {
        write_line(&format!("{} {words}", now()));
    }
}

/// Writes a line to the process that has started this one.
pub(crate) fn write_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without that process there is nothing left to do.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
