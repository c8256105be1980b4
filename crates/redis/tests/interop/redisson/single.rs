//! Cases of one kind of lock, with the current release.

use tenure_testkit::GENEROUS;
use tokio::time::timeout;

use super::{CURRENT, Duration, LONG, NAME, Scene, long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_both_rise_in_one_order() {
    if CURRENT.is_missing("tokens of both") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "fenced").await;
    let mut last = 0;
    for _ in 0..5 {
        let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
        let ours = guard.token().unwrap().get();
        assert_eq!(theirs.answer("token").await, ours.to_string(), "Java reads our token");
        guard.release().await.unwrap();
        let their: u64 = theirs.answer("fence").await.parse().unwrap();
        theirs.release().await;
        assert!(last < ours && ours < their, "{last} {ours} {their}");
        last = their;
    }
}

/// Our release wakes the head of their queue, and no claim of ours overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_fair_lock_come_in_their_order_before_later_claims_of_ours() {
    if CURRENT.is_missing("waiters of a fair lock") {
        return;
    }
    let scene = Scene::set().await;
    let (mut first, mut second) =
        (scene.theirs(&CURRENT, "fair").await, scene.theirs(&CURRENT, "fair").await);
    let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    let waiting = |count: &'static str| {
        let server = &scene.server;
        move || async move {
            server.command(&["LLEN", "redisson_lock_queue:{orders}"]).unwrap() == count
        }
    };
    first.want(Some(LONG));
    assert!(tenure_testkit::eventually(GENEROUS, waiting("1")).await);
    second.want(Some(LONG));
    assert!(tenure_testkit::eventually(GENEROUS, waiting("2")).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(long());
    let ours = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    first.held().await;
    assert!(scene.is_busy(false).await);
    first.release().await;
    second.held().await;
    assert!(!ours.is_finished());
    second.release().await;
    timeout(GENEROUS, ours).await.expect("ours comes last").unwrap().release().await.unwrap();
}

/// Their waiter lives, and its program's clock is an hour behind ours: its time-out was over before it began. The
/// lock becomes free without a message, as when a holder's term ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_a_fair_lock_whose_clock_is_behind_keeps_its_turn() {
    if CURRENT.is_missing("a waiter of a fair lock whose clock is behind") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "fair").await;
    let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    theirs.want(Some(LONG));
    let [queue, timeouts] = ["queue", "timeout"].map(|it| format!("redisson_lock_{it}:{{{NAME}}}"));
    let said = |words: &[&str]| scene.server.command(words).unwrap();
    let waits = async || said(&["LLEN", &queue]) == "1";
    assert!(tenure_testkit::eventually(GENEROUS, waits).await);
    let waiter = said(&["LINDEX", &queue, "0"]);
    said(&["ZINCRBY", &timeouts, "-3600000", &waiter]);
    said(&["DEL", NAME]);
    assert!(scene.is_busy(false).await, "a claim of ours overtook a live waiter");
    theirs.held().await;
    assert!(scene.is_busy(false).await);
    drop(guard.release().await);
    theirs.release().await;
    assert!(!scene.is_busy(false).await);
}

/// A waiter asks at its poll cap, and between two polls nothing is sent for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_waiters_send_nothing_between_their_polls() {
    const WAITERS: u64 = 40;
    const TIME: Duration = Duration::from_secs(8);
    if CURRENT.is_missing("idle waiters") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "lock").await;
    assert!(theirs.try_hold(Some(LONG)).await);
    for (cap, most) in [(LONG, 0), (Duration::from_secs(2), 6 * WAITERS)] {
        let asked = || {
            let stats = scene.server.command(&["INFO", "commandstats"]).unwrap();
            let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
            line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let before = asked();
        let waiters = (0..WAITERS).map(|_| {
            let mutex = scene.ours.mutex(NAME).unwrap().with(long().poll_cap(cap));
            tokio::spawn(async move { mutex.acquire().await.map(drop) })
        });
        let waiters: Vec<_> = waiters.collect();
        // Each asks twice before it waits: once before it listens, and once after.
        let entered = async || asked() >= before + 2 * WAITERS;
        assert!(tenure_testkit::eventually(GENEROUS, entered).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = asked();
        tokio::time::sleep(TIME).await;
        let sent = asked() - before;
        println!("{WAITERS} waiters with a poll cap of {cap:?} asked {sent} times in {TIME:?}");
        assert!(sent <= most, "{sent} calls of {WAITERS} waiters in {TIME:?}, cap {cap:?}");
        waiters.iter().for_each(|waiter| waiter.abort());
    }
    theirs.release().await;
}

/// A writer of ours that becomes a reader lets their readers in, and no writer of theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_downgrade_lets_their_readers_in_and_no_writer() {
    if CURRENT.is_missing("our downgrade") {
        return;
    }
    let scene = Scene::set().await;
    let mut reader = scene.theirs(&CURRENT, "read").await;
    let mut writer = scene.theirs(&CURRENT, "write").await;
    let guard = scene.ours.rw_lock(NAME).unwrap().with(long()).write().await.unwrap();
    reader.want(None);
    assert!(reader.is_silent().await);
    let guard = guard.downgrade().await.unwrap();
    reader.held().await;
    assert!(!writer.try_hold(None).await);
    guard.release().await.unwrap();
    writer.want(None);
    assert!(writer.is_silent().await);
    reader.release().await;
    writer.held().await;
    writer.release().await;
    assert!(scene.state().await.is_free());
}
