//! The scripts of the dialect, composed from `lua/redisson/`.

use tenure_core::Result;

use crate::link::Link;
use crate::scripts::{AUDIT, Script};
use crate::servers::Servers;

pub(super) struct Scripts {
    pub(super) take: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) downgrade: Script,
    pub(super) evict: Script,
    pub(super) inspect: Script,
    pub(super) permits: PermitScripts,
}

pub(super) struct PermitScripts {
    pub(super) take: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) evict: Script,
    pub(super) inspect: Script,
}

impl Scripts {
    /// Loads the scripts on one server, which returns their digests. With `sharded`, they publish through
    /// sharded channels.
    pub(super) async fn load(servers: &Servers, sharded: bool) -> Result<Self> {
        let server = &servers.any().await?;
        let load = |script: &str| Script::load(server, compose(script, sharded));
        let (take, renew, release, downgrade, evict, inspect, permits) = tokio::try_join!(
            load(include_str!("../../lua/redisson/take.lua")),
            load(include_str!("../../lua/redisson/renew.lua")),
            load(include_str!("../../lua/redisson/release.lua")),
            load(include_str!("../../lua/redisson/downgrade.lua")),
            load(include_str!("../../lua/redisson/evict.lua")),
            load(include_str!("../../lua/redisson/inspect.lua")),
            PermitScripts::load(server, sharded),
        )?;
        Ok(Self { take, renew, release, downgrade, evict, inspect, permits })
    }
}

impl PermitScripts {
    async fn load(server: &Link, sharded: bool) -> Result<Self> {
        let load = |script: &str| Script::load(server, compose(script, sharded));
        let (take, renew, release, evict, inspect) = tokio::try_join!(
            load(include_str!("../../lua/redisson/permits/take.lua")),
            load(include_str!("../../lua/redisson/permits/renew.lua")),
            load(include_str!("../../lua/redisson/permits/release.lua")),
            load(include_str!("../../lua/redisson/permits/evict.lua")),
            load(include_str!("../../lua/redisson/permits/inspect.lua")),
        )?;
        Ok(Self { take, renew, release, evict, inspect })
    }
}

/// A script with the shared parts that it names (`--@layout`, `--@fair`, `--@free`, `--@pool`, `--@audit`).
pub(super) fn compose(script: &str, sharded: bool) -> String {
    let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
    let script = script
        .replace("--@layout", include_str!("../../lua/redisson/layout.lua"))
        .replace("--@fair", include_str!("../../lua/redisson/fair.lua"))
        .replace("--@free", include_str!("../../lua/redisson/free.lua"))
        .replace("--@pool", include_str!("../../lua/redisson/permits/pool.lua"))
        .replace("--@audit", AUDIT);
    format!("local PUBLISH = '{publish}'\n{script}")
}
