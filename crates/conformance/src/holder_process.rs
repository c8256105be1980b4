//! Controls a holder process: another process that takes locks on command.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::{LockName, Token};
use tenure_testkit::{GENEROUS, Process};

/// A process that takes locks on command; `holder.rs` documents the commands.
#[derive(Debug)]
pub(crate) struct HolderProcess {
    pub(crate) process: Process,
}

impl HolderProcess {
    /// Starts a process that is connected to the store under test.
    pub(crate) async fn start(url: &str) -> Self {
        let mut process = Process::start(&program(), &[url]).unwrap();
        assert_eq!(process.line(GENEROUS).await.as_deref(), Some("ready"));
        Self { process }
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &str) {
        self.process.send(command).unwrap();
    }

    /// Makes it start to acquire a lock.
    pub(crate) async fn start_acquire(&mut self, name: &LockName, ttl: Duration) {
        self.send(&format!("acquire {name} {}", ttl.as_millis()));
        self.expect_line("waiting").await;
    }

    /// Waits until it reports that it holds the lock. Returns the token.
    pub(crate) async fn wait_until_held(&mut self) -> Option<Token> {
        let line = self.next_line().await;
        let token = line
            .strip_prefix("held ")
            .unwrap_or_else(|| panic!("the holder process reported {line:?}"));
        (token != "-").then(|| Token::new(token.parse().unwrap()))
    }

    /// Asserts that the next line of its output is `line`.
    pub(crate) async fn expect_line(&mut self, line: &str) {
        assert_eq!(self.next_line().await, line);
    }

    /// The next line of its output.
    pub(crate) async fn next_line(&mut self) -> String {
        self.process.line(GENEROUS).await.expect("the holder process prints a line in time")
    }
}

/// The path of the holder program. Cargo puts the programs of a package one directory above its tests,
/// its examples into a directory there, and builds them first.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().unwrap().parent().unwrap();
    let programs = ["holder", "examples/holder"].map(|name| directory.join(name));
    let found = programs.iter().find(|program| program.exists()).cloned();
    found
        .unwrap_or_else(|| panic!("none of {programs:?} was built: see tenure_conformance::holder"))
}
