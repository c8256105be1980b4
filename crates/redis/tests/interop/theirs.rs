//! A client of another project, in a process of its own.

use std::time::Duration;

use tenure_testkit::{ExternalClient, Process};

/// Longer than any test: a hold that ends only by its release.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A bound for an answer: a client may wait behind many rounds of other clients.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running client. Ends with the test.
pub(crate) struct Theirs(Process);

impl Theirs {
    /// Starts a client while the lock is free. It has held the lock once when this returns, so that it
    /// does not answer `busy` for lack of a connection.
    pub(crate) async fn start(client: &ExternalClient, port: u16, key: &str) -> Self {
        let mut theirs = Self(client.start(&[&port.to_string(), key]).unwrap());
        assert!(theirs.try_hold(LONG).await, "the lock is free");
        theirs.release().await;
        theirs
    }

    /// Whether it holds the lock now, for so long.
    pub(crate) async fn try_hold(&mut self, ttl: Duration) -> bool {
        self.send(&format!("try {}", ttl.as_millis()));
        match self.answer().await.as_str() {
            "held" => true,
            "busy" => false,
            other => panic!("unexpected answer {other:?}"),
        }
    }

    /// Returns when it holds the lock.
    pub(crate) async fn hold(&mut self, ttl: Duration) {
        self.want(ttl);
        self.held().await;
    }

    /// Has it wait for the lock.
    pub(crate) fn want(&mut self, ttl: Duration) {
        self.send(&format!("wait {}", ttl.as_millis()));
    }

    /// Returns when it holds what it waited for.
    pub(crate) async fn held(&mut self) {
        assert_eq!(self.answer().await, "held");
    }

    /// Whether it answers nothing for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        self.0.line(Duration::from_millis(200)).await.is_none()
    }

    /// Has it release the lock, which it believes that it holds.
    pub(crate) async fn release(&mut self) {
        assert_ne!(self.ask_release().await, "not held");
    }

    /// Has it release a lock that is no longer its own, which it may not know.
    pub(crate) async fn release_late(&mut self) {
        assert_ne!(self.ask_release().await, "released");
    }

    async fn ask_release(&mut self) -> String {
        self.send("release");
        let answer = self.answer().await;
        assert!(["released", "not held", "sent"].contains(&answer.as_str()), "{answer:?}");
        answer
    }

    fn send(&mut self, line: &str) {
        self.0.send(line).expect("the client runs");
    }

    async fn answer(&mut self) -> String {
        self.0.line(PATIENCE).await.expect("the client answers")
    }
}
