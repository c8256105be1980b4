//! The scripts, composed from `lua/` and run by their digest.

use tenure_core::{Error, ErrorKind, Result};

use crate::fault::accepted;
use crate::link::Link;
use crate::servers::Servers;
use crate::wire::{Arg, Command, Value, cmd};

/// Declares [`Scripts`], with the file of each script in `lua/`.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $file:literal,)*) => {
        /// All scripts of a store.
        #[derive(Debug)]
        pub(crate) struct Scripts {
            $($(#[$doc])* pub(crate) $name: Script,)*
        }

        impl Scripts {
            /// Loads the scripts on one server, which returns their digests. With `sharded`, they publish
            /// through sharded channels.
            pub(crate) async fn load(servers: &Servers, sharded: bool) -> Result<Self> {
                let server = &servers.any().await?;
                let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
                let load = |script: &str| {
                    Script::load(server, compose(script, publish, include_str!("../lua/line.lua")))
                };
                // All are sent before the first is answered.
                let ($($name,)*) = tokio::try_join!(
                    $(load(include_str!(concat!("../lua/", $file, ".lua")))),*
                )?;
                Ok(Self { $($name),* })
            }
        }
    };
}

scripts! {
    take: "take",
    /// Releases several locks that no claim waits for.
    free: "free",
    claim: "claim",
    refresh: "refresh",
    release: "release",
    renew: "renew",
    downgrade: "downgrade",
    /// Renews or releases with one key only.
    single_key: "single_key",
    evict: "evict",
    inspect: "inspect",
    /// Adds a record to those of a lock.
    record: "record",
    /// Replaces the value of a cell.
    swap: "cells/swap",
    /// Adds to a counter.
    add: "cells/add",
    /// Asks a rate limit.
    limit: "cells/take",
}

#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    digest: String,
}

/// A script's keys and arguments.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) operation: &'static str,
    pub(crate) slot: u16,
    pub(crate) keys: &'a [&'a str],
    pub(crate) arguments: &'a [Arg<'a>],
    /// Sent right behind the script: see [`Servers::call`].
    pub(crate) wait: Option<&'a Command>,
}

/// A script with the shared parts that it names (`--@mint`, `--@engine`, `--@line`, `--@audit`).
pub(crate) fn compose(script: &str, publish: &str, line: &str) -> String {
    let (mint, engine) = (include_str!("../lua/mint.lua"), include_str!("../lua/engine.lua"));
    assemble(script, publish, [mint, engine, line, AUDIT])
}

/// The part of every script that writes an audit record.
pub(crate) const AUDIT: &str = include_str!("../lua/audit.lua");

fn assemble(script: &str, publish: &str, [mint, engine, line, audit]: [&str; 4]) -> String {
    let script = script.replace("--@mint", mint).replace("--@engine", engine);
    let script = script.replace("--@line", line).replace("--@audit", audit);
    format!("local PUBLISH = '{publish}'\n{script}")
}

impl Script {
    pub(crate) async fn load(server: &Link, source: String) -> Result<Self> {
        const LOAD: &str = "load a script";
        let load = cmd("SCRIPT").arg("LOAD").arg(&source);
        let digest = server.send(LOAD, &load).await?.text();
        let why = "the server names no digest: is this a Redis server?";
        let digest = digest.ok_or_else(|| Error::new(ErrorKind::Unreachable, LOAD, why))?;
        Ok(Self { source, digest })
    }

    /// Runs the script, and returns its reply and that to the call's `WAIT`, if it has one.
    pub(crate) async fn run(
        &self,
        servers: &Servers,
        call: Call<'_>,
    ) -> Result<(Value, Option<Value>)> {
        let (reply, acknowledged) = self.try_run(servers, call).await?;
        Ok((accepted(call.operation, reply)?, acknowledged))
    }

    /// As [`run`](Self::run). While the slot moves and not all keys are at one node, `single_key` runs
    /// instead, with the first key and the same arguments; it replies -1 where one key is not enough.
    pub(crate) async fn run_or(
        &self,
        single_key: &Script,
        servers: &Servers,
        call: Call<'_>,
    ) -> Result<(Value, Option<Value>)> {
        let (reply, acknowledged) = self.try_run(servers, call).await?;
        if matches!(&reply, Value::Refusal(refusal) if refusal.code == "TRYAGAIN") {
            let call = Call { keys: &call.keys[..1], ..call };
            match single_key.run(servers, call).await? {
                (Value::Integer(-1), _) => {}
                replies => return Ok(replies),
            }
        }
        Ok((accepted(call.operation, reply)?, acknowledged))
    }

    /// As [`run`](Self::run). `None`: the slot moves, and not all keys are at one node.
    pub(crate) async fn run_on_one_node(
        &self,
        servers: &Servers,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let (reply, _) = self.try_run(servers, call).await?;
        if matches!(&reply, Value::Refusal(refusal) if refusal.code == "TRYAGAIN") {
            return Ok(None);
        }
        accepted(call.operation, reply).map(Some)
    }

    /// Runs the script by its digest. A server that does not know the digest, after a restart, a flush
    /// or a failover, is sent the whole source.
    async fn try_run(&self, servers: &Servers, call: Call<'_>) -> Result<(Value, Option<Value>)> {
        let Call { operation, slot, wait, .. } = call;
        match servers.call(operation, slot, &self.by_digest(&call), wait).await? {
            (reply, _) if is_no_script(&reply) => {
                servers.call(operation, slot, &self.whole(&call), wait).await
            }
            replies => Ok(replies),
        }
    }

    fn by_digest(&self, call: &Call<'_>) -> Command {
        let keys = call.keys.len() as u64;
        let command = cmd("EVALSHA").arg(&self.digest).number(keys);
        command.args(call.keys).mixed(call.arguments)
    }

    fn whole(&self, call: &Call<'_>) -> Command {
        let keys = call.keys.len() as u64;
        let command = cmd("EVAL").arg(&self.source).number(keys);
        command.args(call.keys).mixed(call.arguments)
    }
}

/// Whether the server does not have the script.
fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::Refusal(refusal) if refusal.code == "NOSCRIPT")
}

#[cfg(test)]
#[path = "scripts_tests/mod.rs"]
pub(crate) mod tests;
