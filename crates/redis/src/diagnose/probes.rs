//! Finds the rights that the user lacks, by using each of them once.
//!
//! Redis names only the first right that a script lacks, and `ACL DRYRUN` is for administrators.
//! So every command is sent once, to a key that no lock uses. That key is a string with an expiry. Redis
//! checks rights before types, so a command that would make a list or a hash is refused for the type, and
//! leaves nothing behind.

use tenure_core::{Finding, LockName, OwnerId, Result};

use crate::config::RedisConfig;
use crate::keys::Keyring;
use crate::link::{Link, SubscribeError};
use crate::redisson::keys_and_channels;
use crate::wire::{Command, Value, cmd};

/// A right that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Command,
    Keys,
    Channels,
}

/// Keys and channels that the user needs, and what grants them.
struct Scope {
    /// Every command is tried on the first one.
    keys: Vec<String>,
    channels: Vec<String>,
    /// Their patterns in an access list.
    patterns: [String; 2],
    /// Besides what every store sends.
    more: fn(&str) -> Vec<(&'static str, Command)>,
}

/// A right that is lacking for a scope.
struct Lacking<'a> {
    command: &'static str,
    lack: Lack,
    scope: &'a Scope,
}

/// One finding for each right that the user lacks, or a single one if it lacks none. `redisson` is the prefix of
/// locks in the layout of Redisson, if the store has those.
pub(super) async fn missing(
    config: &RedisConfig,
    link: &Link,
    cluster: bool,
    redisson: Option<&str>,
) -> Result<Vec<Finding>> {
    let id = OwnerId::random().to_string();
    let name = LockName::new(&format!("tenure-doctor-{id}"))?;
    let keyring = Keyring::new(&config.prefix, cluster);
    let keys = keyring.keys(&name);
    let pattern = format!("{}*", config.prefix);
    let usual = Scope {
        keys: vec![keys.holder().to_owned()],
        channels: vec![keyring.inbox(keys.slot, &id)],
        patterns: [pattern.clone(), pattern],
        more: |_| Vec::new(),
    };
    let redisson = redisson.map(|prefix| {
        let (keys, channels) = keys_and_channels(prefix, &name);
        let patterns = ["*", "redisson_*"].map(str::to_owned);
        Scope { keys, channels, patterns, more: commands_for_redisson }
    });
    let scopes: Vec<Scope> = [usual].into_iter().chain(redisson).collect();
    let mut lacks = Vec::new();
    let mut without_key = Vec::new();
    if config.replicas > 0 {
        without_key.push(("wait", cmd("WAIT").arg("0").arg("1")));
    }
    if cluster {
        without_key.push(("asking", cmd("ASKING")));
    }
    for (command, line) in without_key {
        let lack = probe(link, line).await?;
        lacks.extend(lack.map(|lack| Lacking { command, lack, scope: &scopes[0] }));
    }
    for scope in &scopes {
        look(link, cluster, scope, &mut lacks).await?;
    }
    Ok(findings(&lacks, config))
}

async fn look<'a>(
    link: &Link,
    cluster: bool,
    scope: &'a Scope,
    lacks: &mut Vec<Lacking<'a>>,
) -> Result<()> {
    // A waiter needs the right to subscribe. This connection is used for nothing else.
    let subscribe = if cluster { "ssubscribe" } else { "subscribe" };
    for channel in &scope.channels {
        match link.subscribe(&subscribe.to_uppercase(), channel).await {
            Err(SubscribeError::Refused(refusal)) if refusal.code == "NOPERM" => {
                lacks.push(Lacking { command: subscribe, lack: lack(&refusal.words), scope });
            }
            Err(SubscribeError::Fault(error)) => return Err(error),
            _ => {}
        }
    }
    let [key, others @ ..] = &scope.keys[..] else { return Ok(()) };
    // This key must be a string before the other commands are sent, or they would leave something behind.
    let set = cmd("SET").arg(key).arg("probe").arg("PX").arg("60000");
    if let Some(lack) = probe(link, set).await? {
        lacks.push(Lacking { command: "set", lack, scope });
        return Ok(());
    }
    let more = (scope.more)(key);
    let others = others.iter().map(|other| ("exists", cmd("EXISTS").arg(other)));
    // DEL is the last one.
    let usual = commands(key, &scope.channels[0], cluster);
    for (command, line) in more.into_iter().chain(others).chain(usual) {
        let lack = probe(link, line).await?;
        lacks.extend(lack.map(|lack| Lacking { command, lack, scope }));
    }
    Ok(())
}

/// What the layout of Redisson needs besides.
fn commands_for_redisson(key: &str) -> Vec<(&'static str, Command)> {
    let on_key =
        |name: &'static str, arguments: &[&str]| (name, cmd(name).arg(key).args(arguments));
    vec![
        on_key("type", &[]),
        on_key("hkeys", &[]),
        on_key("hgetall", &[]),
        on_key("hrandfield", &["1"]),
        on_key("getrange", &["0", "0"]),
        on_key("lindex", &["0"]),
        on_key("lpop", &[]),
        on_key("incrby", &["1"]),
        on_key("decrby", &["1"]),
        on_key("zscan", &["0"]),
    ]
}

/// All commands but `SET`, `DEL` last.
fn commands(key: &str, channel: &str, cluster: bool) -> Vec<(&'static str, Command)> {
    let on_key =
        |name: &'static str, arguments: &[&str]| (name, cmd(name).arg(key).args(arguments));
    let script = |name: &'static str, body: &str| cmd(name).arg(body).arg("1").arg(key);
    let publish = if cluster { "spublish" } else { "publish" };
    let count = if cluster { "pubsub|shardnumsub" } else { "pubsub|numsub" };
    let message = match cluster {
        true => cmd("SPUBLISH").arg(channel).arg("probe"),
        false => cmd("PUBLISH").arg(channel).arg("probe"),
    };
    vec![
        ("eval", script("EVAL", "return 1")),
        ("evalsha", script("EVALSHA", "0000000000000000000000000000000000000000")),
        ("scan", cmd("SCAN").arg("0").arg("COUNT").arg("1")),
        ("time", cmd("TIME")),
        (count, cmd("PUBSUB").arg(&count["pubsub|".len()..]).arg(channel)),
        (publish, message),
        on_key("exists", &[]),
        on_key("incr", &[]),
        on_key("get", &[]),
        on_key("setrange", &["0", "probe"]),
        on_key("pexpire", &["60000"]),
        on_key("pttl", &[]),
        on_key("lrange", &["0", "0"]),
        on_key("lpush", &["probe"]),
        on_key("ltrim", &["0", "0"]),
        on_key("hdel", &["probe"]),
        on_key("hexists", &["probe"]),
        on_key("hget", &["probe"]),
        on_key("hlen", &[]),
        on_key("hmget", &["probe"]),
        on_key("hscan", &["0"]),
        on_key("hset", &["probe", "probe"]),
        on_key("hsetnx", &["probe", "probe"]),
        on_key("zadd", &["1", "probe"]),
        on_key("zcard", &[]),
        on_key("zpopmin", &[]),
        on_key("zrange", &["0", "0"]),
        on_key("zrangebyscore", &["0", "0"]),
        on_key("zrem", &["probe"]),
        on_key("zscore", &["probe"]),
        on_key("unlink", &[]),
        on_key("del", &[]),
    ]
}

/// Sends one command. Most of them fail, for the type of the key: only an error about rights counts.
async fn probe(link: &Link, command: Command) -> Result<Option<Lack>> {
    let [reply] = link.call("try the user's rights", [&command]).await?;
    match reply {
        Value::Refusal(refusal) if refusal.code == "NOPERM" => Ok(Some(lack(&refusal.words))),
        _ => Ok(None),
    }
}

/// The kind of right that Redis says is lacking. The wording differs between versions.
fn lack(said: &str) -> Lack {
    match said.to_lowercase() {
        said if said.contains(" command") => Lack::Command,
        said if said.contains(" channel") => Lack::Channels,
        said if said.contains(" key") => Lack::Keys,
        _ => Lack::Command,
    }
}

fn findings(lacks: &[Lacking<'_>], config: &RedisConfig) -> Vec<Finding> {
    let user = config.username.as_deref().unwrap_or("default");
    let mut findings: Vec<Finding> = Vec::new();
    for Lacking { command, lack, scope } in lacks {
        let [keys, channels] = &scope.patterns;
        let (what, right) = match lack {
            Lack::Command => (format!("run {}", command.to_uppercase()), format!("+{command}")),
            Lack::Keys => (format!("use the keys {keys}"), format!("~{keys}")),
            Lack::Channels => (format!("use the channels {channels}"), format!("&{channels}")),
        };
        let what = format!("the user {user} may not {what}");
        let remedy = format!("ACL SETUSER {user} {right}");
        // Without these, `list` and `evict` fail, or an error says less, but locks are safe.
        let finding = match *command {
            "scan" | "ltrim" | "lpush" | "lrange" | "hrandfield" | "getrange" => {
                Finding::advice(what, remedy)
            }
            _ => Finding::danger(what, remedy),
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    if findings.is_empty() {
        findings.push(Finding::fine("the user has all rights that locks need"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Topology;
    use tenure_core::Severity::{Advice, Fine, Unsafe};

    #[test]
    fn every_right_of_the_documented_list_is_probed() {
        let tried: Vec<_> = commands("k", "c", false).into_iter().map(|(name, _)| name).collect();
        // Loading happens on connecting.
        let elsewhere = ["set", "hello", "script|load", "subscribe"];
        for right in crate::acl::ACL.split_whitespace().filter_map(|r| r.strip_prefix('+')) {
            assert!(tried.contains(&right) || elsewhere.contains(&right), "{right} is not tried");
        }
        assert_eq!(tried.last(), Some(&"del"), "the probe key is removed last");
        let besides: Vec<_> = commands_for_redisson("k").into_iter().map(|it| it.0).collect();
        for right in crate::acl::ACL_REDISSON.split_whitespace() {
            assert!(besides.contains(&&right[1..]), "{right} is not tried");
        }
    }

    #[test]
    fn the_missing_right_is_read_from_the_messages_of_several_versions() {
        for (said, expected) in [
            ("User joe has no permissions to run the 'get' command", Lack::Command),
            (
                "this user has no permissions to run the 'get' command or its subcommand",
                Lack::Command,
            ),
            ("No permissions to access a key", Lack::Keys),
            (
                "this user has no permissions to access one of the keys used as arguments",
                Lack::Keys,
            ),
            ("No permissions to access a channel", Lack::Channels),
        ] {
            assert_eq!(lack(said), expected, "{said}");
        }
    }

    #[test]
    fn each_lacking_right_is_reported_once_with_the_command_that_grants_it() {
        let mut config = RedisConfig::new(Topology::Single { server: ("a".into(), 1) });
        assert_eq!(findings(&[], &config)[0].severity, Fine);
        config.username = Some("joe".into());
        let scope = &Scope {
            keys: Vec::new(),
            channels: Vec::new(),
            patterns: ["tenure:*", "tenure:*"].map(str::to_owned),
            more: |_| Vec::new(),
        };
        let lacks = [
            ("zadd", Lack::Command),
            ("scan", Lack::Command),
            ("get", Lack::Keys),
            ("del", Lack::Keys),
        ];
        let lacks = lacks.map(|(command, lack)| Lacking { command, lack, scope });
        let found = findings(&lacks, &config);
        let severities: Vec<_> = found.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Unsafe, Advice, Unsafe]);
        assert_eq!(found[0].remedy, "ACL SETUSER joe +zadd");
        assert_eq!(found[2].remedy, "ACL SETUSER joe ~tenure:*");
    }
}
