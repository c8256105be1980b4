//! Waiters that are forgotten, dead, or all woken at once.

use std::io;
use std::time::Duration;

use tenure_testkit::Proxy;

use super::{Hazard, SETUP, needs_news, play};
use crate::algorithms::{Family, Info, Waiting};
use crate::history::Wakeups;
use crate::servers::Setup;
use crate::stage::{LONG, SOON, Stage};

pub(super) static HAZARDS: &[Hazard] = &[
    Hazard {
        id: "lost-wakeup",
        title: "the wake-up of a waiter is lost",
        story: "B waits. Nothing reaches it any more on its connections, which stay open. A releases: B must get \
            the lock.",
        setup: SETUP,
        spares: needs_news,
        play: play!(lost_wakeup),
    },
    Hazard {
        id: "reconnect-gap",
        title: "the release falls into a waiter's reconnect",
        story: "B waits, and loses its connections. A releases before B is connected again: B must get the lock.",
        setup: SETUP,
        spares: needs_news,
        play: play!(reconnect_gap),
    },
    Hazard {
        id: "dead-waiter",
        title: "the first waiter of the queue is dead",
        story: "A holds the lock, B and then C wait. B is killed. A releases: C must get the lock.",
        setup: SETUP,
        spares: has_waiters,
        play: play!(dead_waiter),
    },
    Hazard {
        id: "herd",
        title: "a release wakes all waiters",
        story: "Twenty clients wait. A releases, and the requests that this causes are counted: more than one for \
            each waiter is a herd.",
        setup: Setup { alone: true, ..SETUP },
        spares: counts_requests,
        play: play!(herd),
    },
];

fn has_waiters(info: &Info) -> Option<&'static str> {
    match info.waiting {
        Waiting::Polls => Some("its waiters do not queue"),
        _ => None,
    }
}

fn counts_requests(info: &Info) -> Option<&'static str> {
    match (info.waiting, info.family) {
        (Waiting::Polls | Waiting::Line | Waiting::Hints, _) => {
            Some("its waiters ask again and again")
        }
        (_, Family::Local) => Some("there is no server whose requests could be counted"),
        (_, Family::Cluster | Family::Sentinel) => Some("played on one server"),
        _ => None,
    }
}

/// A holds the lock, and B waits for it.
async fn wait_for(stage: &mut Stage, ttl: Duration) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold("A", LONG).await?;
    stage.read("A").await?;
    stage.start_acquire("B", ttl, LONG)?;
    until_queued(stage, "B").await?;
    stage.write("A").await
}

/// Waits until a client that acquires has been answered, and then nothing more for half a second: on a busy machine
/// its attempt and the beginning of its watch take longer than that. A client that asks again and again is never
/// left alone, and gets half a second.
async fn until_queued(stage: &mut Stage, name: &'static str) -> io::Result<()> {
    let polls = matches!(stage.info.waiting, Waiting::Line | Waiting::Hints | Waiting::Polls);
    let has_proxies = !stage.client(name)?.proxies.is_empty();
    let mut before = None;
    for _ in 0..20 {
        stage.wait(Duration::from_millis(500)).await?;
        let replied: usize = stage.client(name)?.proxies.iter().map(Proxy::replied).sum();
        if polls || !has_proxies || replied > 0 && before == Some(replied) {
            break;
        }
        before = Some(replied);
    }
    Ok(())
}

async fn lost_wakeup(stage: &mut Stage) -> io::Result<()> {
    wait_for(stage, LONG).await?;
    stage.fault("nothing reaches B on its connections");
    stage.client("B")?.proxies.iter().for_each(|way| way.strand());
    stage.release("A").await?;
    stage.expect_work_after_wait("B", SOON * 3).await
}

async fn reconnect_gap(stage: &mut Stage) -> io::Result<()> {
    wait_for(stage, LONG).await?;
    stage.fault("B loses its connections");
    let ports = stage.servers.ports.clone();
    // No server listens there.
    stage.client("B")?.proxies.iter().for_each(|way| way.lead_to(1));
    stage.release("A").await?;
    stage.wait(Duration::from_millis(200)).await?;
    stage.fault("B can connect again");
    for (way, port) in stage.client("B")?.proxies.iter().zip(ports) {
        way.lead_new_to(port);
    }
    stage.expect_work_after_wait("B", SOON * 3).await
}

async fn dead_waiter(stage: &mut Stage) -> io::Result<()> {
    wait_for(stage, stage.ttl).await?;
    stage.enter("C").await?;
    stage.start_acquire("C", stage.ttl, LONG)?;
    until_queued(stage, "C").await?;
    stage.kill("B")?;
    stage.release("A").await?;
    // A dead waiter may be granted the lock, and keeps it for a TTL at most.
    stage.expect_work_after_wait("C", SOON * 3).await
}

/// Claims in the queue.
const CROWD: u64 = 20;

async fn herd(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold("A", LONG).await?;
    let (lock, before) = (stage.lock.clone(), stage.requests()?);
    stage.tell("B", &format!("crowd {CROWD} {lock} {}", LONG.as_millis()))?;
    stage.next("B", &["gathered"], SOON * 3).await?;
    // Each waiter has asked, and then nothing happens for a while.
    stage.until_requests(before + CROWD).await?;
    stage.wait(Duration::from_millis(1_000)).await?;
    let before = stage.requests()?;
    stage.release("A").await?;
    let outcome = stage.outcome("B", SOON * 2).await?;
    stage.expect(outcome, "B", SOON * 2)?;
    stage.wait(Duration::from_millis(300)).await?;
    // The question itself is a request.
    let requests = stage.requests()?.saturating_sub(before + 1);
    stage.history.wakeups = Some(Wakeups { waiters: CROWD, requests });
    Ok(())
}
