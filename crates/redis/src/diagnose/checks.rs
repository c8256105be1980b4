//! Checks of one server, as pure functions over its facts.

use tenure_core::Finding;

use super::facts::Facts;
use super::versions;
use crate::config::Topology;

/// Clocks that differ by more are reported.
const SKEW_MS: i64 = 500;

/// All checks of one server.
pub(super) fn of(facts: &Facts, topology: &Topology) -> Vec<Finding> {
    let cluster = matches!(topology, Topology::Cluster { .. });
    let checks = [
        not_permitted(facts),
        versions::age(facts, cluster),
        versions::script_engine(facts),
        versions::numbers(facts),
        eviction(facts),
        persistence(facts),
        saving(facts),
        replication(facts, topology),
        clock(facts),
    ];
    checks.into_iter().flatten().collect()
}

/// All checks of one server of a quorum, where the loss of one server's data is survived.
pub(super) fn of_node(facts: &Facts) -> Vec<Finding> {
    let checks = [
        not_permitted(facts),
        versions::age(facts, false),
        versions::script_engine(facts),
        versions::numbers(facts),
        eviction(facts),
        super::quorum::persistence(facts),
        saving(facts),
        super::quorum::replication(facts),
        clock(facts),
    ];
    checks.into_iter().flatten().collect()
}

/// The checks that are left out because the user may not run `INFO` or `CONFIG GET`.
fn not_permitted(facts: &Facts) -> Option<Finding> {
    let what = match (facts.info.is_empty(), facts.settings.is_empty()) {
        (false, false) => return None,
        (true, true) => "INFO and CONFIG GET: version, memory, persistence and replication",
        (true, false) => "INFO: version and replication",
        (false, true) => "CONFIG GET: snapshots and how often the log is synced",
    };
    Some(Finding::advice(
        format!("this user may not run {what} were not checked"),
        "run it as a user with +info +config|get, or ask the server's operator",
    ))
}

/// Locks are keys with an expiry: every policy but `noeviction` may delete them.
fn eviction(facts: &Facts) -> Option<Finding> {
    let policy = facts.setting("maxmemory-policy").or(facts.info("maxmemory_policy"))?;
    let most = facts.setting("maxmemory").or(facts.info("maxmemory"))?;
    if policy == "noeviction" {
        return Some(Finding::fine(
            "when memory is full, no key is evicted (maxmemory-policy noeviction)",
        ));
    }
    let remedy = "CONFIG SET maxmemory-policy noeviction, in redis.conf too; a cache that needs \
                  eviction belongs on a server of its own";
    Some(match most {
        "0" => Finding::advice(
            format!("locks may be evicted if maxmemory is set later (maxmemory-policy {policy})"),
            remedy,
        ),
        _ => Finding::danger(
            format!(
                "when memory is full, held locks are evicted and can be granted again \
                 (maxmemory-policy {policy}, maxmemory {most})"
            ),
            remedy,
        ),
    })
}

/// Whether changes are logged on disk, if it is known.
pub(super) fn keeps_a_log(facts: &Facts) -> Option<bool> {
    match facts.setting("appendonly") {
        Some(setting) => Some(setting == "yes"),
        None => Some(facts.info("aof_enabled")? == "1"),
    }
}

/// Which locks a restart loses.
pub(super) fn persistence(facts: &Facts) -> Option<Finding> {
    let log = keeps_a_log(facts)?;
    let remedy = "CONFIG SET appendonly yes, in redis.conf too (with appendfsync always, a power \
                  cut loses nothing)";
    if !log {
        return Some(match facts.setting("save") {
            Some("") => Finding::danger(
                "nothing is kept on disk (save \"\", appendonly no): a restart loses every lock, \
                 and held ones can be granted again",
                remedy,
            ),
            Some(_) => Finding::advice(
                "only snapshots are kept on disk (appendonly no): a crash loses the locks since \
                 the last one",
                remedy,
            ),
            None => Finding::advice(
                "there is no log of changes (appendonly no): a crash loses the locks since the \
                 last snapshot, if there are snapshots",
                remedy,
            ),
        });
    }
    Some(match facts.setting("appendfsync") {
        Some("always") => Finding::fine("every lock is on disk before it is granted"),
        Some("everysec") | None => Finding::advice(
            "the log of changes is synced once a second (appendfsync everysec): a power cut, not a \
             crash, loses the locks of the last second",
            "CONFIG SET appendfsync always, if a power cut must not lose a lock and the disk is \
             fast enough; or check the fencing token",
        ),
        Some(other) => Finding::advice(
            format!(
                "the log of changes is not synced (appendfsync {other}): a power cut loses \
                     the locks of about the last half minute"
            ),
            "CONFIG SET appendfsync everysec, or always",
        ),
    })
}

/// Whether the server's last attempts to save its data failed.
fn saving(facts: &Facts) -> Option<Finding> {
    let failed = |field: &&str| facts.info(field) == Some("err");
    let fields = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"];
    let failed: Vec<&str> = fields.into_iter().filter(failed).collect();
    (!failed.is_empty()).then(|| {
        Finding::advice(
            format!("the server could not save its data ({}: err)", failed.join(", ")),
            "check its disk and its log",
        )
    })
}

/// Which locks a failover loses.
fn replication(facts: &Facts, topology: &Topology) -> Option<Finding> {
    if facts.info("role")? != "master" {
        return replica(facts, topology);
    }
    let replicas = facts.number("connected_slaves")?;
    if replicas == 0 {
        return matches!(topology, Topology::Sentinel { .. }).then(|| {
            Finding::advice(
                "no replica follows the master: when it fails, no server takes over",
                "start a replica",
            )
        });
    }
    // Without CONFIG, this field tells: it is there only while the setting is on.
    let least = facts.setting("min-replicas-to-write").and_then(|text| text.parse().ok());
    let least = least.unwrap_or_else(|| u64::from(facts.info("min_slaves_good_slaves").is_some()));
    let async_copy = "replication is asynchronous: a failover can lose a lock, which can then be \
                      granted again";
    Some(match least {
        0 => Finding::advice(
            format!(
                "{async_copy}; and a master without a link to any replica continues to grant locks \
                     (min-replicas-to-write 0)"
            ),
            "CONFIG SET min-replicas-to-write 1; use replicas= in the URL to narrow the window; \
             and check the fencing token where the lock protects something",
        ),
        _ => Finding::fine(format!(
            "a master without a link to its replicas stops granting locks (min-replicas-to-write \
             {least}); a failover can still lose a lock: check the fencing token"
        )),
    })
}

fn replica(facts: &Facts, topology: &Topology) -> Option<Finding> {
    if matches!(topology, Topology::Single { .. }) {
        return Some(Finding::danger(
            "this server is a replica: it grants no locks",
            "name its master, or let Sentinel find it (redis+sentinel://)",
        ));
    }
    (facts.info("master_link_status") == Some("down")).then(|| {
        Finding::advice(
            "this replica has no link to its master: a promotion would lose the locks granted since \
             the link failed",
            "check the network between the two",
        )
    })
}

/// Compares the server's clock with this machine's. The latter ends no lease; but if the two differ, one is
/// wrong.
fn clock(facts: &Facts) -> Option<Finding> {
    let clock = facts.clock?;
    if clock.ahead.saturating_abs().saturating_sub(clock.margin) <= SKEW_MS {
        return Some(Finding::fine("its clock and this machine's agree"));
    }
    // Rounded, so that servers with the same error are reported together.
    let (tenths, side) = (clock.ahead.unsigned_abs() / 100, direction(clock.ahead));
    Some(Finding::advice(
        format!(
            "its clock is {}.{} s {side} this machine's: if the server's is wrong and is \
             corrected in one step, leases end early or late by as much",
            tenths / 10,
            tenths % 10
        ),
        "keep both in time with NTP, which slews",
    ))
}

const fn direction(ahead: i64) -> &'static str {
    if ahead < 0 { "behind" } else { "ahead of" }
}

/// Whether the servers' clocks differ: after a failover, leases and tokens follow another clock.
pub(super) fn clocks_apart(servers: &[Facts]) -> Option<Finding> {
    let (first, last, apart) = furthest_apart(servers)?;
    Some(Finding::advice(
        format!(
            "the clocks of {first} and {last} are {apart} ms apart: after a failover \
             leases end early or late by as much, and tokens may decrease if locks were lost"
        ),
        "keep all servers in time with NTP",
    ))
}

/// The two servers whose clocks differ most, and by how many milliseconds, if it is much.
pub(super) fn furthest_apart(servers: &[Facts]) -> Option<(&str, &str, i64)> {
    let clocks: Vec<_> = servers.iter().filter_map(|s| Some((s.clock?, &*s.name))).collect();
    let (first, first_name) = clocks.iter().min_by_key(|(clock, _)| clock.ahead)?;
    let (last, last_name) = clocks.iter().max_by_key(|(clock, _)| clock.ahead)?;
    let apart = last.ahead.saturating_sub(first.ahead);
    let sure = apart.saturating_sub(first.margin).saturating_sub(last.margin);
    (sure > SKEW_MS).then_some((first_name, last_name, apart))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
