//! A client of another project, in a process of its own.

use std::time::Duration;

use tenure_testkit::{ExternalClient, Process};

/// The limit for an answer: a client may wait behind many rounds of others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running client. Ends with the test.
pub(crate) struct Driver(Process);

impl Driver {
    /// Starts a client while the lock is free. It has held the lock once when this returns, so that it
    /// does not answer `busy` for lack of a connection.
    pub(crate) async fn start(
        client: &ExternalClient,
        port: u16,
        path: &str,
        kind: &str,
        session: Duration,
    ) -> Self {
        let (port, session) = (port.to_string(), session.as_millis().to_string());
        let mut theirs = Self(client.start(&[&port, path, kind, &session]).unwrap());
        assert!(theirs.try_hold().await, "the lock is free");
        theirs.release().await;
        theirs
    }

    /// Whether it holds the lock now.
    pub(crate) async fn try_hold(&mut self) -> bool {
        self.send("try");
        match self.answer().await.as_str() {
            "held" => true,
            "busy" => false,
            other => panic!("unexpected answer {other:?}"),
        }
    }

    /// Returns when it holds the lock.
    pub(crate) async fn hold(&mut self) {
        self.want();
        self.held().await;
    }

    /// Has it wait for the lock.
    pub(crate) fn want(&mut self) {
        self.send("wait");
    }

    /// Returns when it holds what it waited for.
    pub(crate) async fn held(&mut self) {
        assert_eq!(self.answer().await, "held");
    }

    /// Whether it answers nothing for a while: that its node is in the queue does not prove that it waits.
    pub(crate) async fn is_silent(&mut self) -> bool {
        self.0.line(Duration::from_millis(200)).await.is_none()
    }

    /// Has it release the lock.
    pub(crate) async fn release(&mut self) {
        self.send("release");
        assert_eq!(self.answer().await, "released");
    }

    /// Kills it, so that it cannot close its session.
    pub(crate) fn kill9(&mut self) {
        self.0.kill9().unwrap();
    }

    fn send(&mut self, line: &str) {
        self.0.send(line).expect("the client runs");
    }

    async fn answer(&mut self) -> String {
        self.0.line(PATIENCE).await.expect("the client answers")
    }
}
