//! The scripts, composed from `lua/` and run by their digest.

use rustis::client::Client;
use rustis::resp::{Value, cmd};
use rustis::{ErrorKind as Kind, RedisErrorKind as Code};
use tenure_core::Result;

use crate::fault::fault;
use crate::servers::Servers;

/// All scripts of a store, as its servers know them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) claim: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) evict: Script,
    pub(crate) inspect: Script,
}

#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    digest: String,
}

impl Scripts {
    /// Loads the scripts on some server, so that they can be run by digest. With `sharded`, news goes through
    /// sharded channels.
    pub(crate) async fn load(servers: &Servers, sharded: bool) -> Result<Self> {
        let server = &servers.any().await?;
        let engine = include_str!("../lua/engine.lua");
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let compose = |script: &str| {
            let source = script.replace("--@engine", engine);
            format!("local PUBLISH = '{publish}'\n{source}")
        };
        Ok(Self {
            claim: Script::load(server, compose(include_str!("../lua/claim.lua"))).await?,
            release: Script::load(server, compose(include_str!("../lua/release.lua"))).await?,
            renew: Script::load(server, compose(include_str!("../lua/renew.lua"))).await?,
            evict: Script::load(server, compose(include_str!("../lua/evict.lua"))).await?,
            inspect: Script::load(server, compose(include_str!("../lua/inspect.lua"))).await?,
        })
    }
}

impl Script {
    async fn load(server: &Client, source: String) -> Result<Self> {
        let load = cmd("SCRIPT").arg("LOAD").arg(&source);
        let loaded = server.send::<String>(load, None).await;
        let digest = loaded.map_err(|error| fault("load a script", error))?;
        Ok(Self { source, digest })
    }

    /// Runs it by digest; a server that does not know it, after a restart, a flush or a failover,
    /// is sent the whole.
    pub(crate) async fn run(
        &self,
        servers: &Servers,
        slot: u16,
        operation: &'static str,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<Value> {
        let by_digest = || cmd("EVALSHA").arg(&self.digest).key_with_count(keys).arg(arguments);
        match servers.try_send(operation, slot, by_digest).await? {
            Err(error) if is_unknown(&error) => {
                let whole = || cmd("EVAL").arg(&self.source).key_with_count(keys).arg(arguments);
                servers.send(operation, slot, whole).await
            }
            Err(error) => Err(fault(operation, error)),
            Ok(value) => Ok(value),
        }
    }
}

fn is_unknown(error: &rustis::Error) -> bool {
    matches!(error.kind(), Kind::Redis(reply) if reply.kind == Code::NoScript)
}
