//! The scripts of a quorum's nodes.

use std::sync::OnceLock;

use crate::scripts::compose;
use crate::wire::{Arg, Command, cmd};

/// All scripts. Each node loads them when it is connected.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) downgrade: Script,
    pub(super) release: Script,
    pub(super) evict: Script,
    pub(super) inspect: Script,
    pub(super) record: Script,
}

pub(super) struct Script {
    source: String,
    /// The same on every node; known from the first node that loaded the script.
    digest: OnceLock<String>,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            claim: Script::new(include_str!("../../lua/quorum/claim.lua")),
            renew: Script::new(include_str!("../../lua/quorum/renew.lua")),
            downgrade: Script::new(include_str!("../../lua/downgrade.lua")),
            release: Script::new(include_str!("../../lua/release.lua")),
            evict: Script::new(include_str!("../../lua/evict.lua")),
            inspect: Script::new(include_str!("../../lua/inspect.lua")),
            record: Script::new(include_str!("../../lua/record.lua")),
        }
    }

    pub(super) const fn all(&self) -> [&Script; 7] {
        let Self { claim, renew, downgrade, release, evict, inspect, record } = self;
        [claim, renew, downgrade, release, evict, inspect, record]
    }
}

impl Script {
    fn new(script: &str) -> Self {
        let source = compose(script, "PUBLISH", include_str!("../../lua/quorum/line.lua"));
        Self { source, digest: OnceLock::new() }
    }

    /// The command that loads the script on a node. Its reply is for [`loaded`](Self::loaded).
    pub(super) fn load(&self) -> Command {
        cmd("SCRIPT").arg("LOAD").arg(&self.source)
    }

    pub(super) fn loaded(&self, digest: String) {
        self.digest.get_or_init(|| digest);
    }

    pub(super) fn call(&self, keys: &[&str], arguments: &[Arg<'_>]) -> Command {
        let digest = self.digest.get().map_or("", String::as_str);
        cmd("EVALSHA").arg(digest).number(keys.len() as u64).args(keys).mixed(arguments)
    }
}
