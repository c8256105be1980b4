//! Why a row may be above its bound, or behind a peer.

/// Reasons by the beginning of what a row measures.
const KNOWN: &[(&str, &str)] = &[
    (
        "etcd: acquire + release, free",
        "the transaction also reads the queue, and the entry has a record of its holder",
    ),
    (
        "etcd: hand-off to another client",
        "the event is read on the store's thread, which wakes the waiter's: one wake-up more",
    ),
    (
        "etcd: hand-off, the waiter arrived 500 ms before",
        "the waiter is woken on another thread than the one that reads the event",
    ),
    (
        "zookeeper: acquire + release, free",
        "the transaction also writes to the fence, and a look at the lock follows it",
    ),
    (
        "redlock: acquire + release, free, one task, 5 nodes",
        "the store's thread serves the connections, so that a blocked runtime loses no lock, and wakes \
         the caller",
    ),
    (
        "redis: commands per hand-off",
        "among 2 the queue is often empty, and such a hand-off takes fewer commands",
    ),
    (
        "redis: time in scripts per hand-off",
        "Redisson's plain lock keeps no queue, gives no token, and wakes all that wait",
    ),
    (
        "redis: 16 tasks, unfenced",
        "so few tasks that both cores wait for each other: how their batches overlap decides",
    ),
    ("redis: 16 tasks, fenced", TOKEN),
    ("redis: 64 tasks, fenced", TOKEN),
    ("redis: 256 tasks, fenced", TOKEN),
    ("redis: 1024 tasks, fenced", TOKEN),
    ("redis: 1,024 tasks, fenced, server CPU", TOKEN),
    ("valkey 9: 1,024 tasks, fenced", TOKEN),
];

/// Why locks with tokens cost a Redis server more.
const TOKEN: &str = "a token needs a script (1.8 us of the server's time if empty) and the server's clock \
                     (TIME, 0.65 us), which keeps tokens rising after a failover";

/// The reason for a row. Empty if none is known.
pub(crate) fn known(what: &str) -> &'static str {
    let known = KNOWN.iter().find(|(begins, _)| what.starts_with(begins));
    known.map_or("", |(_, reason)| reason)
}
