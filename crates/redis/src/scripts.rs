//! The scripts, composed from `lua/` and run by their digest.

use tenure_core::{Error, ErrorKind, Result};

use crate::fault::fault;
use crate::link::Link;
use crate::servers::Servers;
use crate::wire::{Arg, Command, Value, cmd};

/// All scripts of a store, as its servers know them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) take: Script,
    pub(crate) claim: Script,
    pub(crate) refresh: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    /// Renews or releases with one key only.
    pub(crate) alone: Script,
    pub(crate) evict: Script,
    pub(crate) inspect: Script,
    /// Replaces the value of a cell.
    pub(crate) swap: Script,
    /// Adds to a counter.
    pub(crate) add: Script,
    /// Asks a rate limit.
    pub(crate) limit: Script,
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
}

impl Scripts {
    /// Loads the scripts on some server, so that they can be run by digest. With `sharded`, news
    /// goes through sharded channels.
    pub(crate) async fn load(servers: &Servers, sharded: bool) -> Result<Self> {
        let server = &servers.any().await?;
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let compose = |script: &str| compose(script, publish, include_str!("../lua/line.lua"));
        let [take, claim, refresh, release, renew, alone, evict, inspect, swap, add, limit] = [
            compose(include_str!("../lua/take.lua")),
            compose(include_str!("../lua/claim.lua")),
            compose(include_str!("../lua/refresh.lua")),
            compose(include_str!("../lua/release.lua")),
            compose(include_str!("../lua/renew.lua")),
            include_str!("../lua/alone.lua").to_owned(),
            compose(include_str!("../lua/evict.lua")),
            compose(include_str!("../lua/inspect.lua")),
            include_str!("../lua/cells/swap.lua").to_owned(),
            include_str!("../lua/cells/add.lua").to_owned(),
            include_str!("../lua/cells/take.lua").to_owned(),
        ]
        .map(|source| Script::load(server, source));
        // All are sent before the first is answered.
        let (take, claim, refresh, release, renew, alone, evict, inspect, swap, add, limit) = tokio::try_join!(
            take, claim, refresh, release, renew, alone, evict, inspect, swap, add, limit
        )?;
        Ok(Self { take, claim, refresh, release, renew, alone, evict, inspect, swap, add, limit })
    }
}

/// A script with the parts in it that it names.
pub(crate) fn compose(script: &str, publish: &str, line: &str) -> String {
    let (mint, engine) = (include_str!("../lua/mint.lua"), include_str!("../lua/engine.lua"));
    assemble(script, publish, [mint, engine, line])
}

fn assemble(script: &str, publish: &str, [mint, engine, line]: [&str; 3]) -> String {
    let script = script.replace("--@mint", mint).replace("--@engine", engine);
    format!("local PUBLISH = '{publish}'\n{}", script.replace("--@line", line))
}

impl Script {
    async fn load(server: &Link, source: String) -> Result<Self> {
        const LOAD: &str = "load a script";
        let load = cmd("SCRIPT").arg("LOAD").arg(&source);
        let digest = server.send(LOAD, &load).await?.text();
        let why = "the server names no digest: is this a Redis server?";
        let digest = digest.ok_or_else(|| Error::new(ErrorKind::Unreachable, LOAD, why))?;
        Ok(Self { source, digest })
    }

    /// Runs it by digest; a server that does not know it, after a restart, a flush or a failover,
    /// is sent the whole.
    pub(crate) async fn run(&self, servers: &Servers, call: Call<'_>) -> Result<Value> {
        let operation = call.operation;
        refused(operation, self.try_run(servers, call).await?)
    }

    /// As [`run`](Self::run); but while the slot moves, and not all keys are at one place, `meanwhile`
    /// is run with the first key and the same arguments, as far as that is for it to say.
    pub(crate) async fn run_or(
        &self,
        meanwhile: &Script,
        servers: &Servers,
        call: Call<'_>,
    ) -> Result<Value> {
        let Call { operation, slot, keys, arguments } = call;
        let value = self.try_run(servers, call).await?;
        if matches!(&value, Value::Refusal(refusal) if refusal.code == "TRYAGAIN") {
            let call = Call { operation, slot, keys: &keys[..1], arguments };
            match meanwhile.run(servers, call).await? {
                Value::Integer(-1) => {}
                value => return Ok(value),
            }
        }
        refused(operation, value)
    }

    async fn try_run(&self, servers: &Servers, call: Call<'_>) -> Result<Value> {
        let Call { operation, slot, .. } = call;
        match servers.try_send(operation, slot, &self.by_digest(&call)).await? {
            value if is_unknown(&value) => {
                servers.try_send(operation, slot, &self.whole(&call)).await
            }
            value => Ok(value),
        }
    }

    /// As [`run`](Self::run), with a `WAIT` behind it on the same connection: then it covers what
    /// the script wrote.
    pub(crate) async fn run_and_wait(
        &self,
        servers: &Servers,
        call: Call<'_>,
        wait: &Command,
    ) -> Result<(Value, Value)> {
        let Call { operation, slot, .. } = call;
        let by_digest = self.by_digest(&call);
        let both = match servers.try_send_and_wait(operation, slot, &by_digest, wait).await? {
            (value, _) if is_unknown(&value) => {
                servers.try_send_and_wait(operation, slot, &self.whole(&call), wait).await?
            }
            both => both,
        };
        Ok((refused(operation, both.0)?, both.1))
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

fn is_unknown(value: &Value) -> bool {
    matches!(value, Value::Refusal(refusal) if refusal.code == "NOSCRIPT")
}

fn refused(operation: &'static str, value: Value) -> Result<Value> {
    match value {
        Value::Refusal(refusal) => Err(fault(operation, &refusal)),
        value => Ok(value),
    }
}

#[cfg(test)]
#[path = "scripts_tests/mod.rs"]
mod tests;
