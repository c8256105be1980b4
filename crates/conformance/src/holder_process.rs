//! The holder process, as cases command it.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::{LockName, Token};
use tenure_testkit::{GENEROUS, Process};

/// A process that takes locks by command; see [`holder`](crate::holder) for what it understands.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) process: Process,
}

impl Holder {
    /// Starts one, connected to the store under test.
    pub(crate) async fn start(url: &str) -> Self {
        let mut process = Process::start(&program(), &[url]).unwrap();
        assert_eq!(process.line(GENEROUS).await.as_deref(), Some("ready"));
        Self { process }
    }

    /// Sends a command.
    pub(crate) fn order(&mut self, command: &str) {
        self.process.send(command).unwrap();
    }

    /// Asks it to wait for a lock.
    pub(crate) async fn ask_for(&mut self, name: &LockName, ttl: Duration) {
        self.order(&format!("acquire {name} {}", ttl.as_millis()));
        self.expect("waiting").await;
    }

    /// Waits until it says that it holds what it asked for.
    pub(crate) async fn held(&mut self) -> Option<Token> {
        let line = self.says().await;
        let token = line.strip_prefix("held ").unwrap_or_else(|| panic!("it says {line:?}"));
        (token != "-").then(|| Token::new(token.parse().unwrap()))
    }

    /// Asserts what it says next.
    pub(crate) async fn expect(&mut self, line: &str) {
        assert_eq!(self.says().await, line);
    }

    /// What it says next.
    pub(crate) async fn says(&mut self) -> String {
        self.process.line(GENEROUS).await.expect("the holder process says something in time")
    }
}

/// Cargo puts a package's programs one folder above its tests, and its examples into a folder there.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    let programs = ["holder", "examples/holder"].map(|name| folder.join(name));
    let found = programs.iter().find(|program| program.exists()).cloned();
    found.unwrap_or_else(|| {
        panic!("none of {programs:?} is there: see tenure_conformance::holder, then `cargo build --examples`")
    })
}
