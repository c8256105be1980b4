//! The rights that a user of the store needs, in the syntax of `ACL SETUSER`.

/// On one server, with the prefix `tenure:`.
///
/// The first commands are sent by the store, the others called by the scripts. `HELLO` needs no right.
/// Besides, `+select` for a database other than 0, and `+wait` for `replicas=`.
pub const ACL: &str = "\
    ~tenure:* &tenure:* \
    +evalsha +eval +script|load +subscribe +scan +lrange \
    +time +exists +get +set +setrange +incr +del +unlink +pexpire +pttl +publish +pubsub|numsub \
    +lpush +ltrim \
    +hdel +hexists +hget +hlen +hmget +hscan +hset +hsetnx \
    +zadd +zcard +zpopmin +zrange +zrangebyscore +zrem +zscore";

/// Besides [`ACL`], on the servers that Sentinels watch over.
pub const ACL_SENTINEL: &str = "+role";

/// Besides [`ACL`], on every node of a Cluster.
///
/// Before 7.0, these are `cluster|slots`, `asking` and `unsubscribe` instead.
pub const ACL_CLUSTER: &str = "+cluster|shards +cluster|slots +asking +ssubscribe +sunsubscribe +spublish +pubsub|shardnumsub";

/// Besides [`ACL`], on every server of a quorum.
pub const ACL_QUORUM: &str = "+info +client|id +client|kill";

/// Besides [`ACL`], for `cells=watch`.
pub const ACL_WATCH: &str = "+watch +multi +exec";

/// Besides [`ACL`], for `dialect=redisson`, where the user also needs the keys of the locks (`~*` instead of
/// `~tenure:*`) and the channels `&redisson_*`.
pub const ACL_REDISSON: &str = "+type +hkeys +hgetall +hrandfield +getrange +lindex +lpop \
    +incrby +decrby +zscan";

/// Besides [`ACL`], on servers that know the command (Valkey 9): a free lock is released without a
/// script. Others refuse an `ACL SETUSER` with it.
pub const ACL_DELIFEQ: &str = "+delifeq";

/// The same for Redis 8.4.
pub const ACL_DELEX: &str = "+delex";

/// The commands that the scripts call, for a message: Redis does not say which one it refused.
pub(crate) fn of_scripts() -> String {
    let called: Vec<&str> = ACL.split_whitespace().skip_while(|word| *word != "+time").collect();
    called.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::tests::SOURCES;
    use std::collections::BTreeSet;

    #[test]
    fn the_documentation_has_the_same_rights() {
        let documentation = include_str!("lib.rs").replace("//!", " ");
        let documented: BTreeSet<&str> = documentation
            .split(&[' ', '\n', '`', ';'][..])
            .filter(|word| word.starts_with('+'))
            .collect();
        let newer = [ACL_DELIFEQ, ACL_DELEX].join(" ");
        let rest = [ACL_QUORUM, ACL_WATCH, ACL_REDISSON, &newer, "+select +wait"].join(" ");
        let rights = [ACL, ACL_SENTINEL, ACL_CLUSTER, &rest].join(" ");
        let granted: BTreeSet<&str> =
            rights.split(' ').filter(|word| word.starts_with('+')).collect();
        assert_eq!(documented, granted);
    }

    #[test]
    fn the_rights_are_the_commands_of_the_scripts_and_no_others() {
        let scripts: String = SOURCES.iter().map(|(_, source)| *source).collect();
        let mut called = called_by(&scripts);
        called.insert("+publish".into());
        // On a Cluster it is another of its subcommands.
        assert!(called.remove("+pubsub"));
        called.insert("+pubsub|numsub".into());
        let granted: BTreeSet<String> = of_scripts().split(' ').map(str::to_owned).collect();
        assert_eq!(called, granted);
    }

    /// The commands that these scripts call, as rights.
    fn called_by(scripts: &str) -> BTreeSet<String> {
        let calls = scripts.split("call('").skip(1);
        let command = |rest: &str| rest.split('\'').next().unwrap().to_lowercase();
        calls.map(|rest| format!("+{}", command(rest))).collect()
    }

    #[test]
    fn the_rights_for_redisson_are_what_its_scripts_and_commands_need_besides() {
        let mut called = called_by(concat!(
            include_str!("../lua/redisson/downgrade.lua"),
            include_str!("../lua/redisson/evict.lua"),
            include_str!("../lua/redisson/fair.lua"),
            include_str!("../lua/redisson/free.lua"),
            include_str!("../lua/redisson/inspect.lua"),
            include_str!("../lua/redisson/layout.lua"),
            include_str!("../lua/redisson/release.lua"),
            include_str!("../lua/redisson/renew.lua"),
            include_str!("../lua/redisson/take.lua"),
            include_str!("../lua/redisson/permits/evict.lua"),
            include_str!("../lua/redisson/permits/inspect.lua"),
            include_str!("../lua/redisson/permits/pool.lua"),
            include_str!("../lua/redisson/permits/release.lua"),
            include_str!("../lua/redisson/permits/renew.lua"),
            include_str!("../lua/redisson/permits/take.lua"),
        ));
        // Granted as one of its subcommands.
        assert!(called.remove("+pubsub"));
        // Sent outside the scripts.
        called.extend(["+hrandfield", "+getrange"].map(str::to_owned));
        let usual: BTreeSet<String> = ACL.split_whitespace().map(str::to_owned).collect();
        let needed: Vec<_> = called.difference(&usual).cloned().collect();
        let mut granted: Vec<_> = ACL_REDISSON.split(' ').map(str::to_owned).collect();
        granted.sort();
        assert_eq!(needed, granted);
    }
}
