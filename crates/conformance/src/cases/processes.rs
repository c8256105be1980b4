//! Several processes on one store, and what happens when one of them is stopped or killed.

use std::time::Duration;

use tenure_core::store::now;
use tenure_core::{LockName, Mode};
use tenure_testkit::{GENEROUS, temp_dir};

use crate::Fixture;
use crate::fixture::{LONG, claim, client, long, name, raw, release_guard};
use crate::holder_process::HolderProcess;
use crate::raw::Raw;

/// The URL for the holder process. A store without one must not declare `cross_process`.
pub(crate) fn url(fixture: &dyn Fixture, raw: &Raw) -> Option<String> {
    let url = fixture.url();
    assert_eq!(raw.capabilities().cross_process, url.is_some(), "cross_process as declared");
    url
}

/// The TTL for a process that is killed: a long one if the store detects the death of a process, so
/// that expiry cannot be what frees the lock.
pub(crate) fn ttl_for_killed_process(fixture: &dyn Fixture, raw: &Raw) -> Duration {
    if raw.capabilities().detects_death { LONG } else { fixture.ttl() }
}

/// When the holder process is killed, the next waiter gets the lock: at once if the store detects
/// deaths, otherwise when the TTL has passed.
pub async fn the_next_waiter_is_granted_after_the_holder_process_is_killed(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("kill"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut victim = HolderProcess::start(&url).await;
    victim.start_acquire(&name, ttl_for_killed_process(fixture, &raw)).await;
    let before = victim.wait_until_held().await;
    assert_eq!(raw.inspect(&name).await.holders[0].pid, Some(victim.process.pid()));
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire_within(GENEROUS).await });
    raw.wait_for_waiters(&name, 1).await;
    victim.process.kill9().unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert!(before.is_none() || before < guard.token());
    release_guard(guard).await;
}

/// A holder process that is stopped (SIGSTOP) loses its lock after its TTL, and reports the loss when
/// it continues.
pub async fn a_stopped_holder_process_loses_its_lock_and_is_notified(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("stop"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut stopped_holder = HolderProcess::start(&url).await;
    stopped_holder.start_acquire(&name, fixture.ttl()).await;
    stopped_holder.wait_until_held().await;
    let stopped = now();
    stopped_holder.process.stop().unwrap();
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let guard = mutex.acquire_within(GENEROUS).await.unwrap();
    // The holder's last renewal may be two thirds of a TTL older than the stop.
    assert!(now().since(stopped) >= fixture.ttl() / 4, "the lock was granted before it expired");
    stopped_holder.process.cont().unwrap();
    let report = stopped_holder.next_line().await;
    assert!(report == "lost expired" || report == "lost not-held", "{report}");
    stopped_holder.send("status");
    stopped_holder.expect_line("invalid").await;
    stopped_holder.send("release");
    stopped_holder.expect_line("not held").await;
    assert!(guard.is_valid(), "a late release released the lock of its new holder");
    assert_eq!(raw.owners(&name).await.0, [guard.owner().to_string()]);
    release_guard(guard).await;
}

/// A waiter process that is killed in the middle of the queue is skipped.
pub async fn a_killed_waiter_process_is_skipped(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("kill-waiter"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let [first, last] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&first).await;
    let mut victim = HolderProcess::start(&url).await;
    victim.start_acquire(&name, ttl_for_killed_process(fixture, &raw)).await;
    raw.wait_for_waiters(&name, 1).await;
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire_within(GENEROUS).await });
    raw.wait_for_waiters(&name, 2).await;
    raw.queue(&last, crate::raw::LONG_WAIT).await;
    victim.process.kill9().unwrap();
    raw.release_held(&first).await;
    let guard = waiter.await.unwrap().unwrap();
    raw.assert_owners(&name, &[&with_owner(&first, guard.owner())], &[&last]).await;
    release_guard(guard).await;
}

fn with_owner(
    claim: &tenure_core::store::Claim,
    owner: tenure_core::OwnerId,
) -> tenure_core::store::Claim {
    claim.clone().with_owner(owner)
}

/// Processes append their tokens to a file that only the lock protects: no update is lost, and each
/// token is higher than the one before.
pub async fn at_most_one_process_holds_a_mutex(fixture: &dyn Fixture) {
    const PROCESSES: usize = 4;
    const ROUNDS: usize = 50;
    let (name, raw) = (name("processes"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let directory = temp_dir();
    let file = directory.path().join("tokens");
    std::fs::write(&file, "").unwrap();
    let mut holders = Vec::new();
    for _ in 0..PROCESSES {
        holders.push(HolderProcess::start(&url).await);
    }
    for holder in &mut holders {
        let ttl = LONG.as_millis();
        holder.send(&format!("count {name} {} {ROUNDS} {ttl}", file.display()));
    }
    for holder in &mut holders {
        holder.expect_line("counted").await;
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let tokens: Vec<Option<u64>> = text.lines().map(|line| line.parse().ok()).collect();
    assert_eq!(tokens.len(), PROCESSES * ROUNDS, "an update was lost");
    let ordered = tokens.is_sorted_by(|a, b| a < b);
    assert_eq!(ordered, raw.capabilities().fencing.gives_tokens(), "{tokens:?}");
}

/// Tokens increase from process to process, also after a process was killed while it held the lock.
pub async fn tokens_increase_across_processes(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-tokens"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let ttl = ttl_for_killed_process(fixture, &raw);
    let mut tokens = Vec::new();
    for round in 0..4 {
        let mut holder = HolderProcess::start(&url).await;
        holder.start_acquire(&name, ttl).await;
        tokens.push(holder.wait_until_held().await);
        if round % 2 == 0 {
            holder.process.kill9().unwrap();
        } else {
            holder.send("release");
            holder.next_line().await;
        }
    }
    let ordered = tokens.is_sorted_by(|a, b| a < b);
    assert_eq!(ordered, raw.capabilities().fencing.gives_tokens(), "{tokens:?}");
}

/// Waiting processes are granted the lock in the order in which they arrived.
pub async fn waiting_processes_are_granted_in_arrival_order(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-queue"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let first = claim(&name, Mode::Exclusive);
    raw.hold(&first).await;
    let mut queue = Vec::new();
    for position in 0..4 {
        let mut holder = HolderProcess::start(&url).await;
        holder.start_acquire(&name, LONG).await;
        raw.wait_for_waiters(&name, position + 1).await;
        queue.push(holder);
    }
    raw.release_held(&first).await;
    if !raw.capabilities().fifo {
        return;
    }
    for position in 0..queue.len() {
        queue[position].wait_until_held().await;
        for later in &mut queue[position + 1..] {
            later.send("status");
            later.expect_line("waiting").await;
        }
        queue[position].send("release");
        queue[position].next_line().await;
    }
    assert_left_free(&raw, &name).await;
}

/// A process that closes its client and exits has released the lock before it exits.
pub async fn a_process_that_exits_cleanly_leaves_the_lock_free(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-end"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut holder = HolderProcess::start(&url).await;
    holder.start_acquire(&name, LONG).await;
    holder.wait_until_held().await;
    holder.process.close_input();
    let status = holder.process.wait(GENEROUS).await.expect("the process exits");
    assert!(status.success());
    raw.assert_free(&name).await;
}

async fn assert_left_free(raw: &Raw, name: &LockName) {
    let free = || async { raw.inspect(name).await.is_free() };
    assert!(tenure_testkit::eventually(GENEROUS, free).await, "{name:?} never became free");
}
