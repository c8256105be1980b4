//! The real lock clients of other projects, on the same paths. Each is driven by lines of text (see
//! `interop/README.md`) and goes through the same cases.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod cases;
mod external;
mod invisible;
mod kinds;
mod mixed;
mod scene;

use scene::{Scene, Setting};
use tenure_testkit::{ExternalClient, ZooKeeperServer};
use tenure_zookeeper::Compat;

const DEFAULT: Compat = Compat::NONE;
const CURATOR_RW: Compat = Compat::NONE.with_curator_rw();
const KAZOO: Compat = Compat::NONE.with_kazoo();
const ALL: Compat = CURATOR_RW.with_kazoo();

const CURATOR_DEBIAN: ExternalClient = ExternalClient { name: "curator-debian", needs: &["java"] };
const CURATOR_MAVEN: ExternalClient = ExternalClient { name: "curator-maven", needs: &["java"] };
const KAZOO_CLIENT: ExternalClient = ExternalClient { name: "kazoo", needs: &["python3"] };

/// One module for each client and kind of lock, with tenure's `Compat` and the number of servers; one
/// test for each case.
macro_rules! clients {
    ($($module:ident: $client:ident, $kind:literal, $beside:ident, $servers:literal
        => $($cases:ident),+;)*) => {
        $(mod $module {
            static SETTING: super::Setting = super::Setting {
                client: super::$client,
                kind: $kind,
                beside: super::$beside,
                servers: $servers,
            };
            $(super::$cases!();)+
        })*
    };
}

/// Tests of the setting around them.
macro_rules! tests {
    ($($file:ident::$case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let name = concat!(module_path!(), "::", stringify!($case));
                let test = format!("{}: {name}", SETTING.client.name);
                if crate::ZooKeeperServer::is_missing(&test) || SETTING.client.is_missing(name) {
                    return;
                }
                crate::$file::$case(&crate::Scene::set(&SETTING).await).await;
            }
        )*
    };
}

macro_rules! mutex {
    () => {
        crate::tests! {
            cases::their_hold_keeps_ours_out,
            cases::our_hold_keeps_theirs_out,
            cases::their_release_wakes_our_waiter,
            cases::our_release_lets_theirs_in,
            cases::their_death_lets_ours_in,
            cases::ours_and_theirs_are_served_in_one_order,
            cases::the_lock_is_handed_over_both_ways,
            mixed::ours_and_theirs_count_together_and_lose_nothing,
        }
    };
}

/// Not for kazoo without its option: it creates a parent once, and never again.
macro_rules! parent {
    () => {
        crate::tests! { cases::a_deleted_parent_of_ours_stops_no_client, }
    };
}

macro_rules! read_write {
    () => {
        crate::tests! {
            kinds::readers_of_ours_and_of_theirs_read_together,
            kinds::their_reader_keeps_our_writer_out_until_it_leaves,
            kinds::our_reader_keeps_their_writer_out_until_it_leaves,
            kinds::our_writer_keeps_their_readers_out_until_it_leaves,
            kinds::writers_of_ours_and_of_theirs_take_turns,
            cases::the_lock_is_handed_over_both_ways,
            mixed::ours_and_theirs_count_together_and_lose_nothing,
        }
    };
}

macro_rules! unseen {
    () => {
        crate::tests! { invisible::without_the_option_only_ours_gives_way, }
    };
}

macro_rules! semaphore {
    () => {
        crate::tests! { invisible::their_semaphore_and_ours_do_not_exclude_each_other, }
    };
}

use {mutex, parent, read_write, semaphore, tests, unseen};

clients! {
    curator_mutex_debian: CURATOR_DEBIAN, "exclusive", DEFAULT, 1 => mutex, parent;
    curator_mutex_maven: CURATOR_MAVEN, "exclusive", DEFAULT, 1 => mutex, parent;
    curator_read_write_debian: CURATOR_DEBIAN, "write", CURATOR_RW, 1 => read_write;
    curator_read_write_maven: CURATOR_MAVEN, "write", CURATOR_RW, 1 => read_write;
    curator_read_write_without_the_option: CURATOR_DEBIAN, "write", DEFAULT, 1 => unseen;
    curator_semaphore: CURATOR_DEBIAN, "permit-of-1", DEFAULT, 1 => semaphore;
    kazoo_lock: KAZOO_CLIENT, "exclusive", KAZOO, 1 => mutex, parent;
    kazoo_lock_that_knows_curator: KAZOO_CLIENT, "exclusive-beside-curator", DEFAULT, 1 => mutex;
    kazoo_read_write: KAZOO_CLIENT, "write", KAZOO, 1 => read_write;
    kazoo_lock_without_the_option: KAZOO_CLIENT, "exclusive", DEFAULT, 1 => unseen;
    curator_mutex_on_an_ensemble: CURATOR_DEBIAN, "exclusive", DEFAULT, 3 => mutex;
    kazoo_lock_on_an_ensemble: KAZOO_CLIENT, "exclusive", KAZOO, 3 => mutex;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_and_kazoo_both_exclude_ours_and_ours_excludes_both() {
    static SETTING: Setting =
        Setting { client: CURATOR_DEBIAN, kind: "exclusive", beside: ALL, servers: 1 };
    let name = "curator_and_kazoo_both_exclude_ours_and_ours_excludes_both";
    let clients = [CURATOR_DEBIAN, KAZOO_CLIENT];
    if ZooKeeperServer::is_missing(name) || clients.iter().any(|client| client.is_missing(name)) {
        return;
    }
    let scene = Scene::set(&SETTING).await;
    invisible::tenure_excludes_two_clients_that_ignore_each_other(&scene, &KAZOO_CLIENT).await;
}
