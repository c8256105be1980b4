//! Clients that die, stop, or believe a wrong clock.

use std::io;
use std::time::Duration;

use tenure_testkit::{FakeClock, Way};

use super::{Hazard, SETUP, needs_ways, play, spares_none};
use crate::algorithms::Info;
use crate::servers::Setup;
use crate::stage::{BRIEFLY, LONG, Outcome, SOON, Stage};

pub(super) static HAZARDS: &[Hazard] = &[
    Hazard {
        id: "crash-in-acquire",
        title: "crash in the middle of an acquire",
        story: "A dies between two commands of its acquire, or before it gets the reply. B must get the lock when \
            its TTL has passed.",
        setup: SETUP,
        spares: spares_none,
        play: play!(crash_in_acquire),
    },
    Hazard {
        id: "client-clock",
        title: "a client's clock is an hour ahead",
        story: "A holds the lock. B, whose wall clock is an hour ahead, must not get it.",
        setup: Setup { client_clock: true, ..SETUP },
        spares: spares_none,
        play: play!(client_clock),
    },
    Hazard {
        id: "pause",
        title: "pause past the TTL",
        story: "A reads the resource and is stopped until its lock has expired. B gets the lock and works. A goes \
            on where it was, and writes.",
        setup: SETUP,
        spares: spares_none,
        play: play!(pause),
    },
    Hazard {
        id: "long-work",
        title: "work outlives the TTL",
        story: "A works for longer than its TTL and then writes, without a fault anywhere. B waits for the lock.",
        setup: SETUP,
        spares: spares_none,
        play: play!(long_work),
    },
    Hazard {
        id: "hung-work",
        title: "hung work under a watchdog",
        story: "The work of A hangs, and its lock is renewed again and again. With a limit for the hold, B must \
            get the lock.",
        setup: Setup { max_hold: Some(1_500), ..SETUP },
        spares: renews,
        play: play!(hung_work),
    },
    Hazard {
        id: "late-release",
        title: "release after the lock has expired",
        story: "A has done its work, and is stopped until its lock has expired. B holds it. A goes on and \
            releases: C must not get the lock of B.",
        setup: SETUP,
        spares: spares_none,
        play: play!(late_release),
    },
    Hazard {
        id: "split-release",
        title: "expiry between the check and the delete of a release",
        story: "A sees that the lock is its own, and is held up until it has expired and B has it. Then A deletes it.",
        setup: SETUP,
        spares: has_split_release,
        play: play!(split_release),
    },
    Hazard {
        id: "nested-names",
        title: "one lock's name begins with another's",
        story: "A holds `a/b`: B must get `a`. Then the other way round.",
        setup: SETUP,
        spares: spares_none,
        play: play!(nested_names),
    },
];

fn renews(info: &Info) -> Option<&'static str> {
    if info.renews() { None } else { Some("nothing renews it") }
}

fn has_split_release(info: &Info) -> Option<&'static str> {
    match info.points.contains(&"checked") {
        true => None,
        false => Some("its release is one step"),
    }
}

/// How long a lock of A may outlast its TTL.
fn after_expiry(stage: &Stage) -> Duration {
    stage.ttl * 4 + SOON
}

async fn crash_in_acquire(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    let ttl = stage.ttl;
    if stage.info.points.contains(&"between") {
        stage.tell("A", "arm between")?;
        stage.start_acquire("A", ttl, SOON)?;
        if stage.next("A", &["at"], SOON).await?.is_none() {
            return Err(io::Error::other("A does not come to the point"));
        }
    } else if needs_ways(stage.info).is_none() {
        stage.set_ways("A", Way::Deaf)?;
        stage.fault("replies to A are lost");
        stage.start_acquire("A", ttl, SOON)?;
        stage.until_reply_is_lost("A").await?;
    } else {
        stage.hold("A", ttl).await?;
    }
    stage.kill("A")?;
    stage.expect_work("B", LONG, after_expiry(stage)).await
}

async fn client_clock(stage: &mut Stage) -> io::Result<()> {
    let clock = FakeClock::new()?;
    clock.set_ahead(Duration::from_secs(3_600))?;
    stage.enter("A").await?;
    stage.fault("the clock of B is an hour ahead");
    stage.enter_on_clock("B", Some(&clock)).await?;
    stage.hold_and_read("A", LONG).await?;
    if stage.acquire("B", LONG, BRIEFLY).await? == Outcome::Held {
        stage.read("B").await?;
    }
    stage.write("A").await?;
    stage.write("B").await
}

async fn pause(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", stage.ttl).await?;
    stage.pause("A")?;
    if stage.expect_hold("B", LONG, after_expiry(stage)).await? {
        stage.read("B").await?;
        stage.resume("A")?;
        stage.write("A").await?;
        stage.write("B").await?;
    }
    Ok(())
}

async fn long_work(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    let ttl = stage.ttl;
    stage.hold_and_read("A", ttl).await?;
    stage.start_acquire("B", LONG, LONG)?;
    let early = stage.next("B", &["held", "failed"], ttl * 5 / 2).await?;
    if early.is_some() {
        stage.read("B").await?;
    }
    stage.write("A").await?;
    stage.release("A").await?;
    if early.is_none() {
        let outcome = stage.outcome("B", SOON * 2).await?;
        stage.expect(outcome, "B", SOON * 2)?;
        stage.read("B").await?;
    }
    stage.write("B").await
}

async fn hung_work(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", stage.ttl).await?;
    stage.fault("the work of A hangs");
    if stage.expect_hold("B", LONG, after_expiry(stage)).await? {
        stage.read("B").await?;
        stage.write("A").await?;
        stage.write("B").await?;
    }
    Ok(())
}

async fn late_release(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B", "C"]).await?;
    stage.hold_and_read("A", stage.ttl).await?;
    stage.write("A").await?;
    stage.tell("A", "done")?;
    stage.next("A", &["releasing"], SOON).await?;
    stage.pause("A")?;
    if stage.expect_hold("B", LONG, after_expiry(stage)).await? {
        stage.read("B").await?;
        stage.resume("A")?;
        stage.release("A").await?;
        intrude(stage).await?;
    }
    Ok(())
}

/// B holds the lock: C must not get it.
async fn intrude(stage: &mut Stage) -> io::Result<()> {
    if stage.acquire("C", LONG, BRIEFLY).await? == Outcome::Held {
        stage.read("C").await?;
        stage.write("B").await?;
        stage.write("C").await?;
    }
    stage.write("B").await
}

async fn split_release(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B", "C"]).await?;
    stage.hold("A", stage.ttl).await?;
    stage.tell("A", "arm checked")?;
    stage.tell("A", "release")?;
    if stage.next("A", &["at", "released"], SOON).await?.is_none_or(|said| said[1] != "at") {
        return Err(io::Error::other("A does not come to the point"));
    }
    stage.fault("A is held up between its check and its delete");
    if stage.expect_hold("B", LONG, after_expiry(stage)).await? {
        stage.read("B").await?;
        stage.tell("A", "go")?;
        stage.fault("A goes on");
        stage.next("A", &["released"], SOON).await?;
        intrude(stage).await?;
    }
    Ok(())
}

async fn nested_names(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    let outer = stage.lock.clone();
    let inner = format!("{outer}/b");
    for (first, second) in [(&inner, &outer), (&outer, &inner)] {
        for (name, lock) in [("A", first), ("B", second)] {
            stage.start_acquire_of(name, lock, LONG, SOON)?;
            let outcome = stage.outcome(name, SOON * 2).await?;
            let name = format!("{name}, which asks for {lock},");
            if !stage.expect(outcome, &name, SOON)? {
                return Ok(());
            }
        }
        for name in ["A", "B"] {
            stage.read(name).await?;
            stage.write(name).await?;
            stage.release(name).await?;
        }
    }
    Ok(())
}
