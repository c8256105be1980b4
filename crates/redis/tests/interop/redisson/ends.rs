//! How holds end that are not released: watchdogs, and processes that are killed, for each kind of lock.

use std::env;
use std::process::{Command, Stdio};
use std::time::Instant;

use tenure_core::{Guard, Options};
use tenure_testkit::{GENEROUS, Process};
use tokio::time::timeout;

use super::{CURRENT, Duration, Java, LONG, NAME, Scene, client_of, long};

/// The term of ours and the watchdog of theirs.
const TERM: Duration = Duration::from_secs(3);

/// Tells a process of this program which lock to hold, and where.
const HOLD: &str = "TENURE_INTEROP_HOLD";

/// Watchdogs beyond several terms, and a kill of each side, with one Java program.
async fn all(kind: &str) {
    if CURRENT.is_missing(kind) {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs_renewing(&CURRENT, kind, TERM).await;
    their_watchdog_keeps_the_lock(&scene, &mut theirs).await;
    our_keeper_keeps_the_lock(&scene, &mut theirs, kind).await;
    our_killed_process_is_followed_by_theirs(&scene, &mut theirs, kind).await;
    their_killed_process_is_followed_by_ours(&scene, &mut theirs, kind).await;
}

async fn their_watchdog_keeps_the_lock(scene: &Scene, theirs: &mut Java) {
    assert!(theirs.try_hold(None).await);
    let end = Instant::now() + 3 * TERM;
    while Instant::now() < end {
        assert!(scene.is_busy(false).await, "their watchdog lost the lock");
        tokio::time::sleep(TERM / 10).await;
    }
    theirs.release().await;
}

/// A writer, or beside a reader of theirs a reader: then their reader comes and goes, and no writer comes in.
async fn our_keeper_keeps_the_lock(scene: &Scene, theirs: &mut Java, kind: &str) {
    let lock = scene.ours.rw_lock(NAME).unwrap().with(Options::new().ttl(TERM));
    let guard: Guard = lock.write().await.unwrap().into();
    let end = Instant::now() + 3 * TERM;
    while Instant::now() < end && guard.is_valid() {
        assert!(!theirs.try_hold(None).await || !guard.is_valid(), "two hold");
        tokio::time::sleep(TERM / 10).await;
    }
    assert!(guard.is_valid(), "our keeper lost the lock");
    guard.release().await.unwrap();
    if kind != "read" {
        return;
    }
    let guard: Guard = lock.read().await.unwrap().into();
    let end = Instant::now() + 3 * TERM;
    while Instant::now() < end {
        assert!(theirs.try_hold(None).await, "readers hold together");
        tokio::time::sleep(TERM / 10).await;
        theirs.release().await;
        assert!(guard.is_valid(), "a reader of theirs ended the hold of ours");
        assert!(scene.is_busy(false).await, "a writer came in");
    }
    guard.release().await.unwrap();
}

async fn our_killed_process_is_followed_by_theirs(scene: &Scene, theirs: &mut Java, kind: &str) {
    let mut ours = OurProcess::start(scene, "lock").await;
    theirs.want(Some(LONG));
    tokio::time::sleep(2 * TERM).await;
    assert!(theirs.is_silent().await, "{kind}: our process holds and renews");
    let killed = Instant::now();
    ours.0.kill9().unwrap();
    theirs.held().await;
    println!("{kind}: theirs {:?} after the kill of ours, term {TERM:?}", killed.elapsed());
    assert!(scene.is_busy(false).await);
    theirs.release().await;
}

async fn their_killed_process_is_followed_by_ours(scene: &Scene, theirs: &mut Java, kind: &str) {
    assert!(theirs.try_hold(None).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(2 * TERM).await;
    assert!(!waiter.is_finished(), "{kind}: their watchdog renews");
    let killed = Instant::now();
    theirs.kill9();
    let guard = timeout(GENEROUS, waiter).await.expect("ours takes over").unwrap();
    println!("{kind}: ours {:?} after the kill of theirs, watchdog {TERM:?}", killed.elapsed());
    guard.release().await.unwrap();
}

/// A process of this program that holds what is shared, until it is killed.
struct OurProcess(Process);

impl OurProcess {
    async fn start(scene: &Scene, what: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "redisson::ends::a_process_that_holds", "--nocapture"]);
        command.env(HOLD, format!("{} {what}", scene.server.port())).stderr(Stdio::inherit());
        let mut process = Process::spawn(command).unwrap();
        loop {
            let line = process.line(2 * GENEROUS).await.expect("our process holds");
            if line.ends_with("held") {
                return Self(process);
            }
        }
    }
}

/// Does nothing unless [`OurProcess`] has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_holds() {
    let Ok(words) = env::var(HOLD) else { return };
    let (port, what) = words.split_once(' ').unwrap();
    let client = client_of(port.parse().unwrap()).await;
    let options = Options::new().ttl(TERM);
    let _guard = match what {
        "permit" => client.semaphore(NAME, 1).unwrap().with(options).acquire().await.unwrap(),
        _ => client.mutex(NAME).unwrap().with(options).acquire().await.unwrap(),
    };
    println!("held");
    // The test kills this process; if the test is killed, this is the end.
    tokio::time::sleep(Duration::from_secs(120)).await;
}

macro_rules! kinds {
    ($($test:ident: $kind:literal),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                all($kind).await;
            }
        )*
    };
}

kinds! {
    a_plain_lock_outlives_terms_and_ends_with_its_process: "lock",
    a_fair_lock_outlives_terms_and_ends_with_its_process: "fair",
    a_writer_outlives_terms_and_ends_with_its_process: "write",
    a_reader_outlives_terms_and_ends_with_its_process: "read",
    a_fenced_lock_outlives_terms_and_ends_with_its_process: "fenced",
    a_spin_lock_outlives_terms_and_ends_with_its_process: "spin"
}

/// Permits of theirs have leases, which nothing renews; ours are renewed until our process dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_with_leases_end_with_them_and_ours_with_its_process() {
    if CURRENT.is_missing("permits of killed processes") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "permits").await;
    assert_eq!(theirs.answer("size 1").await, "true");
    let mut ours = OurProcess::start(&scene, "permit").await;
    theirs.want(Some(3 * TERM));
    tokio::time::sleep(2 * TERM).await;
    assert!(theirs.is_silent().await, "our process holds and renews");
    ours.0.kill9().unwrap();
    theirs.held().await;
    let held = Instant::now();
    theirs.kill9();
    let semaphore = scene.ours.semaphore(NAME, 1).unwrap().with(long());
    let guard = timeout(3 * GENEROUS, semaphore.acquire()).await.expect("its lease ends").unwrap();
    let time = held.elapsed();
    assert!(time > 2 * TERM, "{time:?} before the end of the lease of the killed program");
    guard.release().await.unwrap();
}

/// Nothing but a claim of ours, or of an `RPermitExpirableSemaphore`, brings back the permit of a process of ours that
/// is dead: a plain `RSemaphore` looks at the number alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permit_of_our_killed_process_comes_back_with_the_next_claim_of_ours() {
    if CURRENT.is_missing("a permit of a killed process") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "semaphore").await;
    assert_eq!(theirs.answer("size 1").await, "true");
    let mut ours = OurProcess::start(&scene, "permit").await;
    ours.0.kill9().unwrap();
    theirs.want(None);
    tokio::time::sleep(2 * TERM).await;
    assert!(theirs.is_silent().await, "an RSemaphore looks at no term");
    let semaphore = scene.ours.semaphore(NAME, 1).unwrap().with(long());
    semaphore.acquire().await.unwrap().release().await.unwrap();
    theirs.held().await;
    theirs.release().await;
    assert_eq!(theirs.answer("count").await, "1 0");
}
