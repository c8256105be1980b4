//! Locks on Redis: one server, Sentinel, Cluster, or a quorum of servers.
//!
//! Code here may speak to Redis: it turns each call of the [`Store`](tenure_core::store::Store) contract
//! into one script or command (an inspection into one a page), and each reply into an answer. It may
//! not retry, wait for a lock but in `wait`, or keep anything alive but the places of those who do; and
//! it never reads this machine's wall clock, but in `diagnose`, to compare: all time is the server's.
//!
//! # What is in Redis
//!
//! A lock `orders` with the prefix `tenure:` lives in these keys, all in the hash slot of the
//! first:
//!
//! | key | type | what |
//! |---|---|---|
//! | `tenure:orders` | string, PX | the holder: its owner id first. Any `SET NX PX` client that uses this key excludes us and is excluded |
//! | `tenure:{tenure:orders}:line` | zset | waiters' owner ids, each with the ticket it drew |
//! | `tenure:{tenure:orders}:w` | hash | waiters, each with an end of its own |
//! | `tenure:{tenure:orders}:p`, `:e` | hash, zset | shared and permit holders, and when each ends |
//! | `tenure:{tenure:orders}:audit` | list | evictions, newest first, at most 1,000 |
//! | `tenure:{token}` | string | the last token; on a Cluster one per slot in use |
//!
//! All but the tokens and the audit end by themselves. A free lock that nobody waits for costs one
//! script over the first key and the token. Where the server has `DELIFEQ` (Valkey 9) or `DELEX`
//! (Redis 8.4) and `SET … IFEQ`, it is released and renewed without a script. A server that refuses
//! one of them is not asked again over the same connection.
//!
//! # Topologies
//!
//! Behind Sentinels, the connection follows the master they name, and checks by `ROLE` that it is
//! one. After a failover the old master may go on granting for seconds, until the Sentinels get at
//! it: its grants are lost, and their guards hear so at the next renewal.
//!
//! Each master of a Cluster has a connection of its own: a dead node holds up only its own slots.
//! While a slot is moved, holders renew and release, and waiters stay in line; new claims are refused
//! (`TRYAGAIN`) until its keys have arrived. News goes through sharded channels, one for each slot
//! that a claim waits in; a Cluster before 7.0 has none, and its news goes through all nodes
//! (`PUBLISH`). After an upgrade to 7.0, clients that were started before
//! it are found by others only at their next poll: restart them. With TLS, `tls-cluster yes` makes
//! the nodes name their TLS ports, and each certificate must be good for the address that
//! `CLUSTER SHARDS` shows. `WAIT` goes to the master that made the grant.
//!
//! All Sentinels are asked at once, over one connection each that lasts. More than half of them must
//! answer, and the answer of the highest configuration epoch counts. While fewer answer, no new
//! connection to a master is made: a lone Sentinel may be cut off and name an old one.
//!
//! A server is dialled at most about four times a second, whatever the rate of the calls; the first
//! dial after a connection was lost is immediate. Calls wait for the dial that is due.
//!
//! Servers, or proxies before them, that refuse `HELLO 3` are spoken to in RESP2, with a second
//! connection for messages.
//!
//! # Rights
//!
//! This user can do everything but diagnose the servers (`tenure doctor`), which asks for more and
//! says so:
//!
//! ```text
//! ACL SETUSER locker on >password ~tenure:* &tenure:* +evalsha +eval +script|load +subscribe
//!   +scan +time +exists +get +set +setrange +incr +del +unlink +pexpire +pttl +publish
//!   +pubsub|numsub +lpush +ltrim +hdel +hexists +hget +hlen +hmget +hscan +hset +hsetnx
//!   +zadd +zcard +zpopmin +zrange +zrangebyscore +zrem +zscore
//! ```
//!
//! Behind Sentinels also `+role`; on a Cluster also `+cluster|shards +asking +ssubscribe
//! +sunsubscribe +spublish +pubsub|shardnumsub` (before 7.0 `cluster|slots`, `asking` and
//! `unsubscribe` instead); on a quorum also `+info +client|id +client|kill`; for a database
//! other than 0 `+select`; for `replicas=` `+wait`. Servers that have a compare-and-delete command
//! are used with less work if the user may call it: `+delifeq` on Valkey 9, `+delex` on Redis 8.4.
//! Older servers do not know these names and refuse them. The constants [`ACL`], [`ACL_SENTINEL`],
//! [`ACL_CLUSTER`], [`ACL_QUORUM`], [`ACL_DELIFEQ`] and [`ACL_DELEX`] have the same.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as the server keeps its data and its clock. A failover, a
//! restart without persistence, an eviction or a clock set forward can each let a second holder
//! in: that is what the fencing token is for. Tokens are the server's clock in milliseconds times
//! 1024, or one more than the last: they keep rising across data loss, unless it comes together
//! with a clock that is behind.

mod cluster;
mod config;
mod credentials;
mod diagnose;
mod dialect;
mod errand;
mod fault;
mod held;
mod inbox;
mod inspect;
mod keys;
mod link;
mod list;
mod login;
mod pace;
mod redlock;
mod rights;
mod scripts;
mod sentinels;
mod servers;
mod store;
mod wire;

pub use config::{RedisConfig, Topology};
pub use credentials::{Credentials, CredentialsProvider};
pub use redlock::{RedlockConfig, RedlockStore};
pub use rights::{ACL, ACL_CLUSTER, ACL_DELEX, ACL_DELIFEQ, ACL_QUORUM, ACL_SENTINEL};
pub use store::RedisStore;
pub use tenure_tls::{Password, Tls};
