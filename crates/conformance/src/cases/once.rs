//! Work that is done once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{Client, Error, ErrorKind, LockName, Once, OnceOutcome, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::cases::processes::{ttl_for_killed_process, url};
use crate::fixture::{LONG, client, long, name, raw};
use crate::holder_process::HolderProcess;

fn once(client: &Client, name: &LockName) -> Once<String> {
    client.once(name.as_str()).unwrap().with(long()).ttl(LONG)
}

/// Of many concurrent callers one does the work, and all get its result.
pub async fn work_is_done_by_one_and_replayed_to_all(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    let (name, done) = (name("once"), Arc::new(AtomicU32::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let (client, done) = (client(fixture).await, Arc::clone(&done));
        let name = name.clone();
        callers.spawn(async move {
            let work = async |_: &_| {
                done.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok::<_, Error>(format!("by {caller}"))
            };
            let outcome = once(&client, &name).run(work).await.unwrap();
            client.close().await;
            outcome
        });
    }
    let outcomes = callers.join_all().await;
    assert_eq!(done.load(Ordering::SeqCst), 1);
    let ran = outcomes.iter().filter(|outcome| matches!(outcome, OnceOutcome::Ran(_))).count();
    assert_eq!(ran, 1, "{outcomes:?}");
    let values: Vec<_> = outcomes.into_iter().filter_map(OnceOutcome::into_value).collect();
    assert!(values.iter().all(|value| *value == values[0]) && values.len() == 6, "{values:?}");
}

/// A caller that does not wait gets the answer that the work is in progress; one that waits gets the
/// result. Work that fails leaves nothing, and the next caller does it.
pub async fn work_in_progress_is_waited_for_or_not(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() || fixture.injects_faults() {
        return;
    }
    let name = name("once-busy");
    let (ours, theirs) = (client(fixture).await, client(fixture).await);
    let (ours, theirs) = (once(&ours, &name), once(&theirs, &name));
    let failed = ours.run(async |_| Err(Error::new(ErrorKind::Full, "work", "no"))).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(ours.get().await.unwrap(), None);
    let begun = tokio::sync::Notify::new();
    let go_on = tokio::sync::Notify::new();
    let work = ours.run(async |_| {
        begun.notify_one();
        go_on.notified().await;
        Ok::<_, Error>("done".to_owned())
    });
    let others = async {
        begun.notified().await;
        let unwanted = async |_: &_| Ok::<_, Error>("twice".to_owned());
        assert_eq!(theirs.try_run(unwanted).await.unwrap(), OnceOutcome::InProgress);
        go_on.notify_one();
        theirs.run(unwanted).await.unwrap()
    };
    let (ran, replayed) = tokio::join!(work, others);
    assert_eq!(ran.unwrap(), OnceOutcome::Ran("done".into()));
    assert_eq!(replayed, OnceOutcome::Replayed("done".into()));
}

/// A run whose lock was taken away is taken over, and the first runner's late result is refused.
pub async fn an_abandoned_run_is_taken_over_and_its_late_result_is_refused(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() || fixture.injects_faults() {
        return;
    }
    let name = name("once-abandoned");
    let (ours, theirs) = (client(fixture).await, client(fixture).await);
    let (first, second) = (once(&ours, &name), once(&theirs, &name));
    let raw = raw(fixture).await;
    let lock: LockName = format!("once:{name}").parse().unwrap();
    let (begun, owner) = tokio::sync::oneshot::channel();
    let finished = tokio::sync::Notify::new();
    let late = first.run(async |guard| {
        begun.send(guard.owner()).unwrap();
        finished.notified().await;
        Ok::<_, Error>("first".to_owned())
    });
    let takes_over = async {
        raw.evict_owner(&lock, owner.await.unwrap()).await;
        let ran = second.run(async |_| Ok::<_, Error>("second".to_owned())).await;
        finished.notify_one();
        ran
    };
    let (late, ran) = tokio::join!(late, takes_over);
    assert_eq!(ran.unwrap(), OnceOutcome::Ran("second".into()));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    for once in [&first, &second] {
        assert_eq!(once.get().await.unwrap().as_deref(), Some("second"));
    }
}

/// A run that was given up, as by a process that dies, is done by the next caller; after its TTL the
/// result is forgotten.
pub async fn a_run_that_was_dropped_is_done_by_the_next(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() || fixture.injects_faults() {
        return;
    }
    let name = name("once-dropped");
    let client = client(fixture).await;
    let once = client.once::<String>(name.as_str()).unwrap();
    let once = once.with(Options::new().ttl(LONG)).ttl(Duration::from_secs(1));
    let begun = tokio::sync::Notify::new();
    {
        let abandoned = once.run(async |_| {
            begun.notify_one();
            std::future::pending::<Result<String, Error>>().await
        });
        tokio::select! {
            _ = abandoned => panic!("the abandoned run never ends"),
            () = begun.notified() => {}
        }
    }
    let ran = once.run(async |_| Ok::<_, Error>("anew".to_owned())).await.unwrap();
    assert_eq!(ran, OnceOutcome::Ran("anew".into()));
    let forgotten = || async { once.get().await.unwrap().is_none() };
    assert!(eventually(GENEROUS, forgotten).await, "the result was never forgotten");
}

/// Starts a process that does the work for the key, and is in the middle of it.
async fn running_process(url: &str, name: &LockName, ttl: Duration) -> HolderProcess {
    let mut runner = HolderProcess::start(url).await;
    runner.send(&format!("once {name} first {}", ttl.as_millis()));
    runner.expect_line("running").await;
    runner
}

/// When the process that does the work is killed, the next caller does it anew.
pub async fn a_killed_runner_process_is_replaced(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    let (name, raw) = (name("once-killed"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut victim = running_process(&url, &name, ttl_for_killed_process(fixture, &raw)).await;
    let client = client(fixture).await;
    let once = once(&client, &name);
    let unwanted = async |_: &_| Ok::<_, Error>("too early".to_owned());
    assert_eq!(once.try_run(unwanted).await.unwrap(), OnceOutcome::InProgress);
    victim.process.kill9().unwrap();
    let ran = once.run(async |_| Ok::<_, Error>("second".to_owned())).await.unwrap();
    assert_eq!(ran, OnceOutcome::Ran("second".into()));
    let mut third = HolderProcess::start(&url).await;
    third.send(&format!("once {name} third {}", LONG.as_millis()));
    third.expect_line("replayed second").await;
}

/// When the process that does the work is stopped, the next caller does it anew after the lease has ended,
/// and the late result is refused.
pub async fn a_stopped_runner_process_is_replaced_and_its_result_refused(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    let (name, raw) = (name("once-stopped"), raw(fixture).await);
    let Some(url) = url(fixture, &raw) else { return };
    let mut stopped = running_process(&url, &name, fixture.ttl()).await;
    stopped.process.stop().unwrap();
    let client = client(fixture).await;
    let once = once(&client, &name);
    let ran = once.run(async |_| Ok::<_, Error>("second".to_owned())).await.unwrap();
    assert_eq!(ran, OnceOutcome::Ran("second".into()));
    stopped.send("finish");
    stopped.process.cont().unwrap();
    stopped.expect_line("lost").await;
    assert_eq!(once.get().await.unwrap().as_deref(), Some("second"));
}
