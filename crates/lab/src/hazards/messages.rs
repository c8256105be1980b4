//! Messages that are late, lost, or given up.

use std::io;
use std::time::Duration;

use tenure_testkit::{Proxy, Way};

use super::{Hazard, SETUP, needs_ways, play, spares_none};
use crate::algorithms::Info;
use crate::stage::{BRIEFLY, LONG, Outcome, SOON, Stage};

pub(super) static HAZARDS: &[Hazard] = &[
    Hazard {
        id: "delayed-write",
        title: "a write delayed in flight",
        story: "A sends its write while it holds the lock. The network delivers it when the lock has expired and B \
            has read.",
        setup: SETUP,
        spares: spares_none,
        play: play!(delayed_write),
    },
    Hazard {
        id: "partition",
        title: "the holder is cut off past its TTL",
        story: "A runs on, but loses the servers until its session or TTL has ended. B gets the lock. A writes.",
        setup: SETUP,
        spares: needs_ways,
        play: play!(partition),
    },
    Hazard {
        id: "lost-reply",
        title: "the reply to an acquire is lost",
        story: "The servers grant the lock to A, and the reply is lost. When A can be reached again, the lock must \
            pass on long before its TTL of 30 s.",
        setup: SETUP,
        spares: needs_ways,
        play: play!(lost_reply),
    },
    Hazard {
        id: "cancelled-acquire",
        title: "an acquire is given up in the middle",
        story: "A gives up an acquire that the servers have granted already. B must get the lock long before the \
            TTL of 30 s.",
        setup: SETUP,
        spares: needs_ways,
        play: play!(cancelled_acquire),
    },
    Hazard {
        id: "retried-release",
        title: "an earlier release arrives late",
        story: "A's release is delayed in flight. A gets the lock anew, and the old release arrives. B must not get \
            the lock.",
        setup: SETUP,
        spares: has_late_release,
        play: play!(retried_release),
    },
];

fn has_late_release(info: &Info) -> Option<&'static str> {
    needs_ways(info)
}

async fn delayed_write(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", stage.ttl).await?;
    stage.client("A")?.resource.set(Way::Shut);
    stage.fault("the network delays what A writes");
    stage.tell("A", "write")?;
    if stage.next("A", &["sent", "lost"], SOON).await?.is_none_or(|said| said[1] != "sent") {
        return Err(io::Error::other("A did not write in time"));
    }
    stage.pause("A")?;
    if stage.expect_hold("B", LONG, stage.ttl * 4 + SOON).await? {
        stage.read("B").await?;
        let before = stage.arrived();
        stage.fault("the write of A arrives");
        stage.client("A")?.resource.set(Way::Open);
        stage.until_arrived(before + 1).await?;
        stage.resume("A")?;
        stage.write("B").await?;
    }
    Ok(())
}

async fn partition(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", stage.ttl).await?;
    stage.fault("A is cut off from the servers");
    stage.set_ways("A", Way::Black)?;
    if stage.expect_hold("B", LONG, stage.ttl * 4 + SOON).await? {
        stage.read("B").await?;
        stage.write("A").await?;
        stage.write("B").await?;
    }
    Ok(())
}

/// Makes the servers grant the lock to A, which does not hear of it.
async fn grant_unheard(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    // Connections are open, and scripts loaded.
    let (warm, lock) = (format!("{}-warm", stage.lock), stage.lock.clone());
    stage.lock = warm;
    stage.hold("A", LONG).await?;
    stage.release("A").await?;
    stage.lock = lock;
    let is_held_up = stage.info.points.contains(&"last");
    if is_held_up {
        stage.tell("A", "arm last")?;
        stage.start_acquire("A", LONG, Duration::from_secs(4))?;
        stage.next("A", &["at"], SOON).await?;
    }
    stage.fault("replies to A are lost");
    stage.set_ways("A", Way::Deaf)?;
    match is_held_up {
        true => stage.tell("A", "go")?,
        false => stage.start_acquire("A", LONG, Duration::from_secs(4))?,
    }
    stage.until_reply_is_lost("A").await
}

async fn lost_reply(stage: &mut Stage) -> io::Result<()> {
    grant_unheard(stage).await?;
    // Long enough for a client to give up its connection, or to ask again in vain.
    stage.wait(Duration::from_millis(300)).await?;
    stage.fault("the connections of A are reset, and new ones work");
    stage.heal("A")?;
    if stage.outcome("A", SOON * 2).await? == Outcome::Held {
        stage.read("A").await?;
        stage.write("A").await?;
        stage.release("A").await?;
    }
    stage.expect_work("B", LONG, SOON).await
}

async fn cancelled_acquire(stage: &mut Stage) -> io::Result<()> {
    grant_unheard(stage).await?;
    stage.fault("A gives up");
    stage.tell("A", "cancel")?;
    stage.next("A", &["cancelled", "held"], SOON).await?;
    stage.heal("A")?;
    stage.expect_work("B", LONG, SOON).await
}

async fn retried_release(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold("A", stage.ttl).await?;
    stage.fault("the network delays the release of A");
    stage.client("A")?.proxies.iter().for_each(Proxy::keep);
    stage.tell("A", "release")?;
    stage.next("A", &["releasing"], SOON).await?;
    stage.wait(Duration::from_millis(100)).await?;
    stage.client("A")?.proxies.iter().for_each(Proxy::cut);
    stage.next("A", &["released"], SOON).await?;
    match stage.acquire("A", LONG, stage.ttl * 4 + SOON).await? {
        Outcome::Held => stage.must_read("A").await?,
        other => return Err(io::Error::other(format!("A does not get the lock anew: {other:?}"))),
    }
    stage.fault("the old release of A arrives");
    let proxies = &stage.client("A")?.proxies;
    // A server that is asked first may be enough for a release.
    if proxies.iter().filter(|way| way.deliver()).count() == 0 {
        return Err(io::Error::other("nothing was delayed"));
    }
    if stage.acquire("B", LONG, BRIEFLY).await? == Outcome::Held {
        stage.read("B").await?;
        stage.write("A").await?;
    }
    stage.write("B").await
}
