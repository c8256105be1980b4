//! Processes among each other, and what is left when one dies.

use std::time::Duration;

use tenure_core::store::now;
use tenure_core::{LockName, Mode};
use tenure_testkit::{GENEROUS, temp_dir};

use crate::Fixture;
use crate::fixture::{LONG, claim, client, let_go, long, name, raw};
use crate::holder_process::Holder;
use crate::raw::Raw;

/// The URL for the holder process; a store that has none must not promise to serve processes.
fn url(fixture: &dyn Fixture, raw: &Raw) -> Option<String> {
    let url = fixture.url();
    assert_eq!(raw.capabilities().cross_process, url.is_some(), "as promised");
    url
}

/// A TTL for a process that will die: one that says nothing if the store notices deaths.
fn mortal_ttl(fixture: &dyn Fixture, raw: &Raw) -> Duration {
    if raw.capabilities().detects_death { LONG } else { fixture.ttl() }
}

/// When a holder is killed the waiter gets in: at once where the store notices deaths, else when
/// the TTL has passed.
pub async fn a_killed_holder_lets_the_next_in(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("kill"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut victim = Holder::start(&url).await;
    victim.ask_for(&name, mortal_ttl(fixture, &raw)).await;
    let before = victim.held().await;
    assert_eq!(raw.inspect(&name).await.holders[0].pid, Some(victim.process.pid()));
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire_within(GENEROUS).await });
    raw.until_waiting(&name, 1).await;
    victim.process.kill9().unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert!(before.is_none() || before < guard.token());
    let_go(guard).await;
}

/// A holder that stands still loses its lock after its TTL, and hears of it when it goes on.
pub async fn a_stopped_holder_loses_its_lock_and_hears_of_it(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("stop"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut sleeper = Holder::start(&url).await;
    sleeper.ask_for(&name, fixture.ttl()).await;
    sleeper.held().await;
    let stopped = now();
    sleeper.process.stop().unwrap();
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let guard = mutex.acquire_within(GENEROUS).await.unwrap();
    // Its last renewal may be two thirds of a term older than the stop.
    assert!(now().since(stopped) >= fixture.ttl() / 4, "taken from a living process");
    sleeper.process.cont().unwrap();
    let told = sleeper.says().await;
    assert!(told == "lost expired" || told == "lost not-held", "{told}");
    sleeper.order("status");
    sleeper.expect("invalid").await;
    sleeper.order("release");
    sleeper.expect("not held").await;
    assert!(guard.is_valid(), "a late release took the lock from its new holder");
    assert_eq!(raw.owners(&name).await.0, [guard.owner().to_string()]);
    let_go(guard).await;
}

/// A waiter that is killed in the middle of the line is passed over.
pub async fn a_killed_waiter_is_skipped(fixture: &dyn Fixture) {
    let (name, raw, client) = (name("kill-waiter"), raw(fixture).await, client(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let [first, last] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&first).await;
    let mut victim = Holder::start(&url).await;
    victim.ask_for(&name, mortal_ttl(fixture, &raw)).await;
    raw.until_waiting(&name, 1).await;
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire_within(GENEROUS).await });
    raw.until_waiting(&name, 2).await;
    raw.queue(&last, crate::raw::PATIENT).await;
    victim.process.kill9().unwrap();
    raw.give_up(&first).await;
    let guard = waiter.await.unwrap().unwrap();
    raw.assert_owners(&name, &[&with_owner(&first, guard.owner())], &[&last]).await;
    let_go(guard).await;
}

fn with_owner(
    claim: &tenure_core::store::Claim,
    owner: tenure_core::OwnerId,
) -> tenure_core::store::Claim {
    claim.clone().with_owner(owner)
}

/// Processes add their tokens to a file that only the lock protects: none is lost, and each is
/// higher than the one before.
pub async fn processes_exclude_each_other(fixture: &dyn Fixture) {
    const PROCESSES: usize = 4;
    const ROUNDS: usize = 50;
    let (name, raw) = (name("processes"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let folder = temp_dir();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "").unwrap();
    let mut holders = Vec::new();
    for _ in 0..PROCESSES {
        holders.push(Holder::start(&url).await);
    }
    for holder in &mut holders {
        let ttl = LONG.as_millis();
        holder.order(&format!("count {name} {} {ROUNDS} {ttl}", file.display()));
    }
    for holder in &mut holders {
        holder.expect("counted").await;
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let tokens: Vec<Option<u64>> = text.lines().map(|line| line.parse().ok()).collect();
    assert_eq!(tokens.len(), PROCESSES * ROUNDS, "an update was lost");
    let ordered = tokens.is_sorted_by(|a, b| a < b);
    assert_eq!(ordered, raw.capabilities().fencing.gives_tokens(), "{tokens:?}");
}

/// Tokens increase from process to process, also past one that was killed while it held.
pub async fn tokens_increase_from_process_to_process(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-tokens"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let ttl = mortal_ttl(fixture, &raw);
    let mut tokens = Vec::new();
    for round in 0..4 {
        let mut holder = Holder::start(&url).await;
        holder.ask_for(&name, ttl).await;
        tokens.push(holder.held().await);
        if round % 2 == 0 {
            holder.process.kill9().unwrap();
        } else {
            holder.order("release");
            holder.says().await;
        }
    }
    let ordered = tokens.is_sorted_by(|a, b| a < b);
    assert_eq!(ordered, raw.capabilities().fencing.gives_tokens(), "{tokens:?}");
}

/// Waiting processes are served in the order they came.
pub async fn processes_are_served_in_the_order_they_came(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-line"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let first = claim(&name, Mode::Exclusive);
    raw.hold(&first).await;
    let mut line = Vec::new();
    for place in 0..4 {
        let mut holder = Holder::start(&url).await;
        holder.ask_for(&name, LONG).await;
        raw.until_waiting(&name, place + 1).await;
        line.push(holder);
    }
    raw.give_up(&first).await;
    if !raw.capabilities().fifo {
        return;
    }
    for place in 0..line.len() {
        line[place].held().await;
        for later in &mut line[place + 1..] {
            later.order("status");
            later.expect("waiting").await;
        }
        line[place].order("release");
        line[place].says().await;
    }
    assert_left_free(&raw, &name).await;
}

/// A process whose input ends gives back what it holds before it ends itself.
pub async fn a_process_that_ends_in_order_leaves_nothing(fixture: &dyn Fixture) {
    let (name, raw) = (name("process-end"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut holder = Holder::start(&url).await;
    holder.ask_for(&name, LONG).await;
    holder.held().await;
    holder.process.close_input();
    let status = holder.process.wait(GENEROUS).await.expect("it ends");
    assert!(status.success());
    raw.assert_free(&name).await;
}

async fn assert_left_free(raw: &Raw, name: &LockName) {
    let free = || async { raw.inspect(name).await.is_free() };
    assert!(tenure_testkit::eventually(GENEROUS, free).await, "something is left of {name:?}");
}
