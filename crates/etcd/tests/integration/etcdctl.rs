//! `etcdctl lock` on the same names: it and tenure exclude each other, and hand over to each other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{client, config_of, write_if};
use tenure_core::store::{Eviction, Released};
use tenure_core::{AuditRecord, Client, ErrorKind, Mode, Options};
use tenure_etcd::{EtcdStore, etcdctl};
use tenure_testkit::{EtcdServer, GENEROUS, Process, eventually, temp_dir};
use tenure_trials::until_waiting;

/// An `etcdctl lock` that says when it holds, and holds until a file appears (or for a minute).
fn lock(server: &EtcdServer, name: &str, until: &Path) -> Process {
    // It also ends when the test's folder is deleted: killing etcdctl does not end it.
    let hold = "echo held; for i in $(seq 600); do \
                { [ -e \"$1\" ] || [ ! -d \"${1%/*}\" ]; } && break; sleep 0.1; done";
    let until = until.to_str().unwrap();
    let words = ["lock", "--ttl=2", name, "--", "sh", "-c", hold, "sh", until];
    Process::spawn(server.controller(&words)).unwrap()
}

async fn held(locker: &mut Process) {
    let said = locker.line(GENEROUS).await;
    assert_eq!(said.as_deref(), Some("held"));
}

async fn owners(client: &Client, name: &str) -> (usize, usize) {
    let state = client.inspect(name).await.unwrap();
    (state.holders.len(), state.waiters.len())
}

on_servers! {
    async fn etcdctl_waits_for_tenure_and_gets_the_lock_on_its_release() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let client = client(&config_of(&server)).await;
        let guard = client.mutex("a").unwrap().acquire().await.unwrap();
        let mut theirs = lock(&server, "tenure/a", &folder.path().join("go"));
        until_waiting(&client, "a", 1).await;
        assert_eq!(theirs.line(Duration::from_millis(300)).await, None, "two claims hold at once");
        guard.release().await.unwrap();
        held(&mut theirs).await;
        assert_eq!(owners(&client, "a").await, (1, 0));
    }
}

on_servers! {
    /// The writer's key stays, so it keeps its place also before clients that know no readers.
    async fn etcdctl_waits_for_all_readers_of_a_downgraded_lock() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let client = client(&config_of(&server)).await;
        for arrives_before in [true, false] {
            let rw = client.rw_lock("a").unwrap();
            let writer = rw.write().await.unwrap();
            let go = folder.path().join(format!("go-{arrives_before}"));
            let theirs = || lock(&server, "tenure/a", &go);
            let mut early = arrives_before.then(theirs);
            if arrives_before {
                until_waiting(&client, "a", 1).await;
            }
            let first = writer.downgrade().await.unwrap();
            // Behind an exclusive claim a reader waits; without one it is let in.
            let second = match arrives_before {
                true => None,
                false => Some(rw.read_within(GENEROUS).await.unwrap()),
            };
            let mut theirs = early.take().unwrap_or_else(theirs);
            until_waiting(&client, "a", 1).await;
            assert_eq!(theirs.line(Duration::from_millis(300)).await, None, "a reader holds");
            first.release().await.unwrap();
            if let Some(second) = second {
                assert_eq!(theirs.line(Duration::from_millis(300)).await, None, "a reader holds");
                second.release().await.unwrap();
            }
            held(&mut theirs).await;
            std::fs::write(&go, "").unwrap();
            let free = || async { owners(&client, "a").await == (0, 0) };
            assert!(eventually(GENEROUS, free).await);
        }
    }
}

on_servers! {
    async fn tenure_waits_for_etcdctl_and_gets_the_lock_when_it_ends() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let go = folder.path().join("go");
        let client = client(&config_of(&server)).await;
        let mut theirs = lock(&server, "tenure/a", &go);
        held(&mut theirs).await;
        let mutex = client.mutex("a").unwrap();
        assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        let reader = client.rw_lock("a").unwrap();
        assert_eq!(reader.try_read().await.unwrap_err().kind(), ErrorKind::Busy);
        let state = client.inspect("a").await.unwrap();
        let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
        assert_eq!((holder.mode, holder.pid, holder.age), (Mode::Exclusive, None, None));
        assert!(holder.token.is_some() && holder.expires_in.is_some());
        let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&client, "a", 1).await;
        std::fs::write(&go, "").unwrap();
        let guard = tokio::time::timeout(GENEROUS, waiting).await.unwrap().unwrap();
        assert!(guard.token() > holder.token);
        guard.release().await.unwrap();
    }
}

on_servers! {
    async fn a_queue_of_both_clients_is_served_in_order() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let client = client(&config_of(&server)).await;
        let first = client.mutex("a").unwrap().acquire().await.unwrap();
        let go = [folder.path().join("one"), folder.path().join("two")];
        let mut second = lock(&server, "tenure/a", &go[0]);
        until_waiting(&client, "a", 1).await;
        let mutex = client.mutex("a").unwrap();
        let third = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&client, "a", 2).await;
        let mut fourth = lock(&server, "tenure/a", &go[1]);
        until_waiting(&client, "a", 3).await;
        first.release().await.unwrap();
        held(&mut second).await;
        assert!(!third.is_finished());
        std::fs::write(&go[0], "").unwrap();
        let third = tokio::time::timeout(GENEROUS, third).await.unwrap().unwrap();
        assert_eq!(fourth.line(Duration::from_millis(300)).await, None, "two claims hold at once");
        third.release().await.unwrap();
        held(&mut fourth).await;
        std::fs::write(&go[1], "").unwrap();
        let free = || async { owners(&client, "a").await == (0, 0) };
        assert!(eventually(GENEROUS, free).await);
    }
}

on_servers! {
    async fn tenure_gets_the_lock_when_the_lease_of_a_killed_etcdctl_ends() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let client = client(&config_of(&server)).await;
        let mut theirs = lock(&server, "tenure/a", &folder.path().join("go"));
        held(&mut theirs).await;
        theirs.kill9().unwrap();
        let guard = client.mutex("a").unwrap().acquire_within(GENEROUS).await.unwrap();
        guard.release().await.unwrap();
        // The command it ran outlives it; this one ends by the file.
        std::fs::write(folder.path().join("go"), "").unwrap();
    }
}

on_servers! {
    /// Both add to a file that only the lock protects.
    async fn no_update_of_either_client_is_lost() {
        const ROUNDS: usize = 15;
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let file = folder.path().join("count");
        std::fs::write(&file, "0").unwrap();
        let path = file.to_str().unwrap();
        let add = "n=$(cat \"$1\"); sleep 0.01; echo $((n + 1)) > \"$1\"";
        let words = ["lock", "tenure/a", "--", "sh", "-c", add, "sh", path];
        let mut theirs: Vec<Process> = Vec::new();
        let client = client(&config_of(&server)).await;
        let mutex = client.mutex("a").unwrap();
        for round in 0..ROUNDS {
            if round % 3 == 0 {
                theirs.push(Process::spawn(server.controller(&words)).unwrap());
            }
            let guard = mutex.acquire().await.unwrap();
            let seen: usize = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
            tokio::task::yield_now().await;
            std::fs::write(&file, (seen + 1).to_string()).unwrap();
            guard.release().await.unwrap();
        }
        let all = theirs.len() + ROUNDS;
        for mut locker in theirs {
            assert!(locker.wait(GENEROUS).await.expect("etcdctl ends").success());
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), all.to_string());
    }
}

on_servers! {
    /// For etcdctl, whatever is below a name blocks it.
    async fn our_lock_a_slash_b_does_not_block_etcdctl_on_a() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let client = client(&config_of(&server)).await;
        let _guard = client.mutex("a/b").unwrap().acquire().await.unwrap();
        let mut theirs = lock(&server, "tenure/a", &folder.path().join("go"));
        held(&mut theirs).await;
        // A nested name of another program blocks tenure as it blocks etcdctl.
        let mut nested = lock(&server, "tenure/c/d", &folder.path().join("go"));
        held(&mut nested).await;
        let error = client.mutex("c").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let names: Vec<String> =
            client.list("").await.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "a/b", "c"]);
    }
}

on_servers! {
    async fn without_a_prefix_names_are_those_of_etcdctl() {
        let server = EtcdServer::start(&[]).unwrap();
        let folder = temp_dir();
        let mut config = config_of(&server);
        config.prefix = String::new();
        let store = Arc::new(EtcdStore::connect(config).await.unwrap());
        let client = Client::new(store.clone()).unwrap();
        let mut theirs = lock(&server, "orders", &folder.path().join("go"));
        held(&mut theirs).await;
        let mutex = client.mutex("orders").unwrap();
        assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        // An eviction removes etcdctl's key, too.
        let owner = client.inspect("orders").await.unwrap().holders[0].owner.clone();
        let order = Eviction::new("orders".parse().unwrap(), owner, "test");
        assert_eq!(client.store().evict(&order).await.unwrap(), Released::Released);
        mutex.try_acquire().await.unwrap().release().await.unwrap();
        let audit = server.control(&["get", "--print-value-only", "%audit/orders"]).unwrap();
        let read = AuditRecord::from_line(&audit).unwrap();
        assert_eq!((read.owner, read.reason.as_str()), (order.owner, "test"), "{audit}");
    }
}

on_servers! {
    async fn a_write_that_names_the_fence_fails_when_the_lock_is_lost() {
        let server = EtcdServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let mutex = client.mutex("a/\"b\"").unwrap().with(options);
        let guard = mutex.acquire().await.unwrap();
        let stale = guard.fence().unwrap();
        assert!(write_if(&server, &etcdctl(&stale).unwrap(), "balance", "1"));
        let order = Eviction::new(guard.name().clone(), guard.owner(), "test");
        client.store().evict(&order).await.unwrap();
        let next = mutex.acquire().await.unwrap();
        assert!(!write_if(&server, &etcdctl(&stale).unwrap(), "balance", "2"));
        let fence = next.fence().unwrap();
        assert!(fence.create_revision().unwrap().1 > stale.create_revision().unwrap().1);
        assert!(write_if(&server, &etcdctl(&fence).unwrap(), "balance", "3"));
        assert_eq!(server.control(&["get", "--print-value-only", "balance"]).unwrap(), "3");
        next.release().await.unwrap();
        assert!(!write_if(&server, &etcdctl(&fence).unwrap(), "balance", "4"));
    }
}

on_servers! {
    async fn a_client_that_closes_leaves_no_lease_unless_it_is_needed() {
        let server = EtcdServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let with = |seconds| Options::new().ttl(Duration::from_secs(seconds));
        let held = client.mutex("a").unwrap().with(with(100)).acquire().await.unwrap();
        client.mutex("b").unwrap().with(with(200)).acquire().await.unwrap().release().await.unwrap();
        let leases = || server.control(&["lease", "list"]).unwrap();
        assert!(leases().starts_with("found 2 leases"), "{}", leases());
        client.close().await;
        assert!(leases().starts_with("found 1 leases"), "{}", leases());
        assert!(held.is_valid());
        held.release().await.unwrap();
        client.close().await;
        assert!(leases().starts_with("found 0 leases"), "{}", leases());
        client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    }
}
