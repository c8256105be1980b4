//! Locks on Redis: one server, Sentinel, Cluster, or a quorum of servers ([`RedlockStore`]).
//!
//! [`RedissonStore`] is a store with the same connections in the layout of Redisson, the Java client; its
//! module has its keys and reasons. What follows is about [`RedisStore`].
//!
//! This crate turns each call of the [`Store`](tenure_core::store::Store) contract into one script or
//! command, and each reply into an outcome. It does not retry. It waits for a lock only in `wait`, and
//! keeps nothing alive but the places of claims that are in `wait`. It never reads this machine's wall
//! clock, except in `diagnose`, to compare: all time is the server's.
//!
//! # Data in Redis
//!
//! A lock `orders` with the prefix `tenure:` uses these keys, all in the hash slot of the first:
//!
//! | key | type | content |
//! |---|---|---|
//! | `tenure:orders` | string, PX | the holder, its owner id first. Every client that takes this key with `SET NX PX` excludes us and is excluded |
//! | `tenure:{tenure:orders}:line` | zset | the queue: owner ids of waiters, each with its ticket |
//! | `tenure:{tenure:orders}:w` | hash | a record for each waiter, with the end of its place |
//! | `tenure:{tenure:orders}:p`, `:e` | hash, zset | shared and permit holders, and the end of each |
//! | `tenure:{tenure:orders}:audit` | list | evictions and revocations, newest first, at most 1,000, for 30 days after the newest |
//! | `tenure:{tenure:orders}:cell`, `:counter` and so on | string | values beside locks (module `cells`) |
//! | `tenure:{token}` | string | the last token; on a Cluster one for each slot in use, never one for each lock |
//!
//! All keys but the token, and values that are kept for good, expire. `lua/engine.lua` describes the values and the rules.
//! The secondary keys have the whole first key as their hash tag, and therefore its slot.
//!
//! # Scripts
//!
//! - A free lock without waiters is taken by `take.lua`, with three keys and four commands, or, without
//!   fencing, by a plain `SET`. A reader takes it by `claim.lua`, and is alone in the holder's value until
//!   another claim comes: then it becomes a pool of one. Several free locks of one slot are taken by one run
//!   of `take.lua`, and released by one of `free.lua`. Only if the lock is held does the claim go on to
//!   `claim.lua`. The code for queues and pools is composed into the scripts that need it when the store
//!   connects.
//! - A mark behind the owner id in the holder's value says that a claim may be waiting. A release
//!   without the mark does not look at the queue.
//! - Where the server has `DELIFEQ` (Valkey 9) or `DELEX` (Redis 8.4) and `SET … IFEQ`, a lock that was
//!   taken while it was free is released and renewed without a script (`native_commands.rs`): its value
//!   is known to the byte, and an unchanged value means "held by this claim, and no claim waits". If the
//!   command does not succeed, the script decides. Support is learnt from the first refusal on each
//!   connection, not from the version.
//! - The work of every script has a bound, whatever the length of the queue: one call admits about a
//!   hundred waiters, removes some hundreds of expired places or holders, or shows one page. If work is
//!   left, the call notifies the client of the last waiter, which continues with `refresh.lua`; if that
//!   client is dead, the next poll of another client continues. No other call waits for a crowd.
//! - A writer becomes a reader in one script (`downgrade.lua`): its value becomes a pool of one reader
//!   with the same token, and the readers at the head of the queue are admitted as by a release. The
//!   holder's key exists all the time. A repeated call restarts the term. With `replicas`, it counts when
//!   they have it.
//! - The queue is a sorted set of tickets. A ticket is the server's time, or one more than the last
//!   ticket, so that a clock that is set back does not change the order.
//! - Numbers are passed to commands as text (`mint.lua` says why). A counter that a server damaged is
//!   repaired.
//! - While a Cluster moves a slot, it refuses calls with several keys of which some are missing. Holders
//!   then renew and release with the holder's key alone (`single_key.lua`).
//! - An inspection of up to 128 holders and 128 waiters is a snapshot. A larger one is assembled from
//!   pages: it has every claim that held or waited from the first page to the last.
//!
//! # Waiting
//!
//! - Each client has one inbox channel; on a Cluster it has one sharded channel for each slot in which
//!   its claims wait, and unsubscribes when none waits there any more. A claim is queued only after its
//!   client has subscribed, and a client subscribes only when a claim must wait.
//! - A pushed grant is dated by the server's clock, mapped through the last exchange that found the claim
//!   in the queue, minus one per cent of the time since: never by its arrival. An exchange from before a
//!   gap in the messages dates nothing, because another server may answer by now. If a clock was set in
//!   between, the claim is woken and asks.
//! - One task for each lock refreshes the places of all local waiters, up to 256 with one call
//!   (`refresh.lua`). The call also admits waiters and finds what a lost message would have told. The
//!   task runs on the runtime of the first waiter; if that runtime stalls, another waiter's runtime takes
//!   over. Dials are handed over in the same way.
//! - A grant that no client received lasts only as long as the waiter's place would have, until the
//!   client confirms it by asking: a client that died in the queue costs seconds, not a TTL.
//!
//! # Connections
//!
//! - The connection is our own (`wire/`): client libraries put a task between the caller and the socket
//!   and a timer on each call, which costs a lone caller half as much again as the commands. Ours writes
//!   from the caller's task and polls for the reply for a moment, as long as that pays (`busy_poll.rs`).
//!   It batches only when other calls are under way: a batch is sent when it is a third of what is
//!   unanswered, so that client and server do not wait for each other in turn.
//! - It keeps the order of what was sent, also past a call that was given up, so a release never
//!   overtakes the claim that it undoes. Several commands can be sent with nothing in between, which
//!   `WAIT` and `ASKING` need.
//! - Renewals have a connection of their own, created by the first renewal on the keeper's runtime: they
//!   go on while the program's runtime is blocked or has ended.
//! - A connection that has not answered for longer than a call may take is replaced as soon as the
//!   server answers on another one.
//! - Everything that may fail repeatedly goes through a `RetryPacer` (`retry.rs`): dials, look-ups of a
//!   Cluster's topology, greetings of a quorum's servers. The first attempt after a quiet period is
//!   immediate; those that follow closely are spaced out, whether they succeed or not: a server that
//!   accepts and drops connections is not dialled at the rate of the calls. Calls share the attempt that
//!   is due. All connections to one server share the pace: while it is down, it is dialled
//!   four to eight times a second.
//! - A refusal of a login is reported in words of our own (`login.rs`), because servers repeat arguments
//!   in their errors.
//! - The reader of replies (`wire/value.rs`) remembers how far it came, so each byte is looked at once.
//!   Its tests mutate the streams in `seeds/replies`.
//! - Servers, or proxies before them, that refuse `HELLO 3` are used with RESP2 and a second connection
//!   for messages.
//!
//! # Topologies
//!
//! With Sentinel, the connection follows the master that the Sentinels name, and checks by `ROLE` that
//! it is one. All Sentinels are asked at once, over one lasting connection each. More than half of them
//! must answer, and the answer with the highest configuration epoch counts. While fewer answer, no new
//! connection to a master is made: a lone Sentinel may be cut off and name an old master. After a
//! failover the old master may go on granting for seconds, until the Sentinels demote it: its grants are
//! lost, and their guards learn it at the next renewal.
//!
//! Each master of a Cluster has a connection of its own: a dead node delays only its own slots. While a
//! slot moves, holders renew and release, and waiters stay in the queue; new claims are refused
//! (`TRYAGAIN`) until its keys have arrived. Messages go through sharded channels; a Cluster before 7.0
//! has none and publishes through all nodes (`PUBLISH`). After an upgrade to 7.0, clients that were
//! started before it are found by others only at their next poll: restart them. With TLS, `tls-cluster
//! yes` makes the nodes name their TLS ports, and each certificate must be valid for the address that
//! `CLUSTER SHARDS` shows.
//!
//! With `replicas`, a grant or a renewal counts only when that many replicas have acknowledged it. The
//! `WAIT` goes to the node that carried the command out, behind it on the same connection.
//!
//! # Required rights
//!
//! This user can do everything but diagnose the servers (`tenure doctor`), which asks for more and
//! says so:
//!
//! ```text
//! ACL SETUSER locker on >password ~tenure:* &tenure:* +evalsha +eval +script|load +subscribe
//!   +scan +lrange +time +exists +get +set +setrange +incr +del +unlink +pexpire +pttl +publish
//!   +pubsub|numsub +lpush +ltrim +hdel +hexists +hget +hlen +hmget +hscan +hset +hsetnx
//!   +zadd +zcard +zpopmin +zrange +zrangebyscore +zrem +zscore
//! ```
//!
//! Behind Sentinels also `+role`; on a Cluster also `+cluster|shards +cluster|slots +asking
//! +ssubscribe +sunsubscribe +spublish +pubsub|shardnumsub` (before 7.0 `cluster|slots`, `asking` and
//! `unsubscribe` instead); on a quorum also `+info +client|id +client|kill`; for a database
//! other than 0 `+select`; for `replicas=` `+wait`; for `cells=watch` `+watch +multi +exec`;
//! for `dialect=redisson` `+type +hkeys +hgetall +hrandfield +getrange +lindex +lpop +incrby +decrby +zscan`, `~*`
//! and `&redisson_*`.
//! Servers that have a compare-and-delete command
//! are used with less work if the user may call it: `+delifeq` on Valkey 9, `+delex` on Redis 8.4.
//! Older servers do not know these names and refuse them. The constants [`ACL`], [`ACL_SENTINEL`],
//! [`ACL_CLUSTER`], [`ACL_QUORUM`], [`ACL_WATCH`], [`ACL_REDISSON`], [`ACL_DELIFEQ`] and [`ACL_DELEX`] have the same.
//!
//! # Guarantees
//!
//! Mutual exclusion holds as long as the server keeps its data and its clock. A failover, a restart
//! without persistence, an eviction or a clock that is set forward can each admit a second holder: the
//! fencing token is for that. A token is the server's clock in milliseconds times 1024, or one more than
//! the last token: tokens keep rising after a loss of data, unless the clock is behind as well.

mod acl;
mod cells;
mod cluster;
mod config;
mod credentials;
mod diagnose;
mod factory;
mod fault;
mod held;
mod inbox;
mod inspect;
mod keys;
mod link;
mod login;
mod native_commands;
mod redisson;
mod redlock;
mod retry;
mod scripts;
mod sentinels;
mod servers;
mod store;
mod transactions;
mod uncontended;
mod wire;

pub use acl::{
    ACL, ACL_CLUSTER, ACL_DELEX, ACL_DELIFEQ, ACL_QUORUM, ACL_REDISSON, ACL_SENTINEL, ACL_WATCH,
};
pub use config::{CellUpdates, RedisConfig, RedlockConfig, Sharded, Topology};
pub use credentials::{Credentials, CredentialsProvider};
pub use factory::{RedisFactory, RedlockFactory};
pub use redisson::RedissonStore;
pub use redlock::RedlockStore;
pub use store::RedisStore;
pub use tenure_tls::{Password, Tls};
