//! Lock clients of other projects on the same keys, the real ones: each is driven by line (see
//! `interop/README.md`) and goes through the same cases.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod cases;
mod mixed;
mod redisson;
mod scene;
mod theirs;

use tenure_testkit::ExternalClient;

/// A module a client, a test a case. Each case is run with fencing tokens and without.
macro_rules! clients {
    ($($module:ident: $name:literal on $tool:literal;)*) => {
        $(mod $module {
            const CLIENT: super::ExternalClient =
                super::ExternalClient { name: $name, needs: &["redis-server", $tool] };
            super::clients! { @tests
                cases::their_hold_keeps_ours_out,
                cases::our_hold_keeps_theirs_out,
                cases::their_release_wakes_our_waiter,
                cases::our_release_lets_theirs_in,
                cases::their_late_release_leaves_our_lock_alone,
                cases::our_late_calls_leave_their_lock_alone,
                mixed::ours_and_theirs_count_together_and_lose_nothing,
            }
        })*
    };
    (@tests $($file:ident::$case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if CLIENT.is_missing(stringify!($case)) {
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
    redis_py: "redis-py" on "python3";
    node_redlock_4: "node-redlock-4" on "node";
    node_redlock_5: "node-redlock-5" on "node";
    redsync: "redsync" on "go";
    rslock: "rslock" on "cargo";
}
