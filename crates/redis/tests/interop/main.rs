//! Lock clients of other projects on the same keys, the real ones: each is driven by line (see
//! `interop/README.md`) and goes through the same cases.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod cases;
mod mixed;
mod redisson;
mod scene;
mod theirs;

use tenure_testkit::{ExternalClient, SharedLock};

/// One module per client, one test per case. Each case is run with fencing tokens and without.
macro_rules! clients {
    ($($module:ident: $name:literal on $tool:literal, $title:literal $kind:literal at $prefix:literal,
        $setting:literal;)*) => {
        $(mod $module {
            const CLIENT: crate::scene::Foreign = crate::scene::Foreign {
                client: super::ExternalClient { name: $name, needs: &["redis-server", $tool] },
                prefix: $prefix,
                row: super::SharedLock {
                    client: $title,
                    kind: $kind,
                    ours: "mutex; other modes exclude it",
                    setting: $setting,
                },
            };
            super::clients! { @tests
                cases::their_hold_keeps_ours_out,
                cases::our_hold_keeps_theirs_out,
                cases::their_release_wakes_our_waiter,
                cases::our_release_lets_theirs_in,
                cases::their_late_release_leaves_our_lock_alone,
                cases::our_late_calls_leave_their_lock_alone,
                cases::the_lock_is_handed_over_both_ways,
                mixed::ours_and_theirs_count_together_and_lose_nothing,
            }
        })*
    };
    (@tests $($file:ident::$case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if CLIENT.client.is_missing(stringify!($case)) {
                    return;
                }
                for fencing in [true, false] {
                    super::$file::$case(&crate::scene::Scene::set(&CLIENT, fencing).await).await;
                }
            }
        )*
    };
}
use clients;

clients! {
    redis_py: "redis-py" on "python3",
        "redis-py 8.1.0" "`Lock`" at "tenure:", "none: they call it `tenure:NAME`";
    node_redlock_4: "node-redlock-4" on "node",
        "node-redlock 4.2.0" "`lock`, one server" at "tenure:", "none: they call it `tenure:NAME`";
    node_redlock_5: "node-redlock-5" on "node",
        "node-redlock 5.0.0-beta.2" "`acquire`, one server" at "tenure:", "none: they call it `tenure:NAME`";
    redsync: "redsync" on "go",
        "redsync 4.18.1" "`Mutex`, one pool" at "tenure:", "none: they call it `tenure:NAME`";
    redislock: "bsm-redislock" on "go",
        "bsm/redislock 0.10.0" "`Obtain`" at "tenure:", "none: they call it `tenure:NAME`";
    rslock: "rslock" on "cargo",
        "rslock 0.10.0" "`lock`, one server" at "tenure:", "none: they call it `tenure:NAME`";
    redis_semaphore: "redis-semaphore" on "node",
        "redis-semaphore 5.8.0" "`Mutex`" at "mutex:", "`prefix=mutex:`";
    pottery: "pottery" on "python3",
        "pottery 3.0.1" "`Redlock`, one master" at "redlock:", "`prefix=redlock:`";
    python_redis_lock: "python-redis-lock" on "python3",
        "python-redis-lock 4.0.1" "`Lock`" at "lock:",
        "`prefix=lock:`; theirs waits with `expire=1` and extends then: it sleeps for as long, or until a \
         release of its own kind signals";
}
