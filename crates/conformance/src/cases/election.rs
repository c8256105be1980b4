//! One leader among candidates, and the value that it proclaims.

use std::time::Duration;

use tenure_core::{Client, Election, ErrorKind, Leader, LockName, Observer, Result, Wait};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::cases::processes::{ttl_for_killed_process, url};
use crate::fixture::{client, long, name, raw};
use crate::holder_process::HolderProcess;

/// An election on a new connection. `None`: the store has none, and says why.
async fn election(fixture: &dyn Fixture, name: &LockName) -> Option<(Client, Election<String>)> {
    let client = client(fixture).await;
    let store = client.store();
    let supported = store.cells().is_ok() && store.capabilities().fencing.gives_tokens();
    match client.election(name.as_str()) {
        Ok(election) => {
            assert!(supported, "an election without values or tokens");
            Some((client, election.with(long())))
        }
        Err(refused) => {
            assert_eq!((refused.kind(), supported), (ErrorKind::Unsupported, false), "{refused}");
            None
        }
    }
}

/// The next report that is not a fault of the store.
async fn next(fixture: &dyn Fixture, observer: &mut Observer<String>) -> Option<Leader<String>> {
    loop {
        match tokio::time::timeout(GENEROUS, observer.next()).await.expect("a report in time") {
            Err(error) if fixture.injects_faults() && error.is_transient() => {}
            leader => return leader.unwrap(),
        }
    }
}

/// The reports up to the first leader with this value.
async fn next_value(fixture: &dyn Fixture, observer: &mut Observer<String>, value: &str) {
    for _ in 0..100 {
        if next(fixture, observer).await.is_some_and(|leader| leader.value == value) {
            return;
        }
    }
    panic!("{value:?} was never seen");
}

/// Candidates are elected one at a time, each with a higher token; resigning elects the next.
pub async fn candidates_lead_one_after_the_other(fixture: &dyn Fixture) {
    let name = name("election");
    let Some((_client, first)) = election(fixture, &name).await else { return };
    let leadership = first.campaign(&"first".into()).await.unwrap();
    let refused = first.campaign_with(&"again".into(), Wait::NoWait).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Busy || refused.is_transient(), "{refused}");
    let raw = raw(fixture).await;
    let mut candidates = Vec::new();
    for candidate in ["second", "third"] {
        let (client, election) = election(fixture, &name).await.unwrap();
        candidates.push(tokio::spawn(async move {
            let leadership = election.campaign(&candidate.to_owned()).await.unwrap();
            let token = leadership.token();
            assert!(leadership.is_valid());
            let seen = election.leader().await;
            drop(leadership);
            client.close().await;
            (token, seen)
        }));
        raw.wait_for_waiters(&name, candidates.len()).await;
    }
    let mut last = leadership.token();
    if let Err(error) = leadership.resign().await {
        assert!(error.is_transient() && fixture.injects_faults(), "{error}");
    }
    let mut leaders = Vec::new();
    for candidate in candidates {
        let (token, seen) = candidate.await.unwrap();
        let seen = seen.unwrap().expect("a leader that asks is one");
        assert_eq!(seen.token, token);
        leaders.push((token, seen.value));
    }
    if raw.capabilities().fifo {
        assert_eq!(leaders[0].1, "second");
    }
    leaders.sort();
    for (token, _) in leaders {
        assert!(last < token, "tokens increase");
        last = token;
    }
}

/// An observer sees each leader with its value, token and owner, and that there is none: also a leader
/// that gave up without a word.
pub async fn observers_see_leaders_their_values_and_that_there_is_none(fixture: &dyn Fixture) {
    let name = name("observe");
    let Some((client, ours)) = election(fixture, &name).await else { return };
    let (_, theirs) = election(fixture, &name).await.unwrap();
    let mut observer = theirs.observe();
    assert_eq!(next(fixture, &mut observer).await, None);
    let leadership = ours.campaign(&"one".into()).await.unwrap();
    let leader = next(fixture, &mut observer).await.expect("a leader");
    let expected = ("one", leadership.token(), leadership.owner());
    assert_eq!((leader.value.as_str(), leader.token, leader.owner), expected);
    leadership.proclaim(&"two".into()).await.unwrap();
    let leader = next(fixture, &mut observer).await.expect("the same leader");
    assert_eq!((leader.value.as_str(), leader.token), ("two", leadership.token()));
    let validity = leadership.validity();
    let resigned = leadership.resign().await;
    assert!(resigned.is_ok() || fixture.injects_faults(), "{resigned:?}");
    client.close().await;
    assert_eq!(next(fixture, &mut observer).await, None);
    assert!(!validity.is_valid());
    let late = validity.run(async {}).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "work under a leadership that was resigned");
    // Dropped: the value stays, but the lock does not.
    let leadership = ours.campaign(&"three".into()).await.unwrap();
    next_value(fixture, &mut observer, "three").await;
    drop(leadership);
    client.close().await;
    assert_eq!(next(fixture, &mut observer).await, None);
    assert_eq!(theirs.leader().await.unwrap(), None);
}

/// A leader that was deposed cannot replace the value of its successor, whether or not it knows of its
/// loss.
pub async fn a_late_write_of_an_old_leader_is_refused(fixture: &dyn Fixture) {
    let name = name("late-leader");
    let Some((_client, ours)) = election(fixture, &name).await else { return };
    if fixture.injects_faults() {
        return;
    }
    let (_other, theirs) = election(fixture, &name).await.unwrap();
    let raw = raw(fixture).await;
    let old = ours.campaign(&"old".into()).await.unwrap();
    raw.evict_owner(&name, old.owner()).await;
    let new = theirs.campaign(&"new".into()).await.unwrap();
    let refused = old.proclaim(&"late".into()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost, "{refused}");
    assert!(!old.is_valid(), "the old leader knows of its successor");
    old.lost().await;
    assert_eq!(old.resign().await.unwrap_err().kind(), ErrorKind::Lost);
    let leader = theirs.leader().await.unwrap().expect("a leader");
    assert_eq!((leader.value.as_str(), leader.token), ("new", new.token()));
    new.proclaim(&"newer".into()).await.unwrap();
    assert_eq!(theirs.leader().await.unwrap().unwrap().value, "newer");
    new.resign().await.unwrap();
}

/// A value over the store's limit is refused before the lock is claimed; proclaimed later, the old value
/// stays.
pub async fn a_value_over_the_limit_elects_no_leader(fixture: &dyn Fixture) {
    let name = name("long-value");
    let Some((client, election)) = election(fixture, &name).await else { return };
    let raw = raw(fixture).await;
    let limit = client.store().cells().unwrap().max_value_bytes();
    let refused = election.campaign(&"x".repeat(limit)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    raw.assert_free(&name).await;
    let leadership = election.campaign(&"short".into()).await.unwrap();
    let refused = leadership.proclaim(&"x".repeat(limit)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(leadership.is_valid());
    let seen = async || election.leader().await;
    let seen = retried(fixture, seen).await.expect("a leader");
    assert_eq!(seen.value, "short");
}

async fn retried<T>(fixture: &dyn Fixture, mut call: impl AsyncFnMut() -> Result<T>) -> T {
    loop {
        match call().await {
            Err(error) if fixture.injects_faults() && error.is_transient() => {}
            result => return result.unwrap(),
        }
    }
}

/// A campaign that is dropped, while it waits or as it is elected, leaves no leader behind.
pub async fn a_dropped_campaign_leaves_no_candidate(fixture: &dyn Fixture) {
    let name = name("dropped-campaign");
    let Some((client, election)) = election(fixture, &name).await else { return };
    let raw = raw(fixture).await;
    for step in 0..40 {
        let value = format!("{step}");
        let campaign = election.campaign(&value);
        let _ = tokio::time::timeout(Duration::from_micros(step * 150), campaign).await;
    }
    let free = || async {
        client.close().await;
        raw.inspect(&name).await.is_free()
    };
    assert!(eventually(GENEROUS, free).await, "a candidate was left");
    let leadership = election.campaign(&"last".into()).await.unwrap();
    let value = "waits".to_owned();
    let waiting = election.campaign(&value);
    assert!(tokio::time::timeout(Duration::from_millis(50), waiting).await.is_err());
    let alone = || async { raw.inspect(&name).await.waiters.is_empty() };
    assert!(eventually(GENEROUS, alone).await, "a candidate was left");
    let leader = retried(fixture, async || election.leader().await).await;
    assert_eq!(leader.expect("a leader").value, "last");
    drop(leadership);
    client.close().await;
}

/// When the leader's process is killed, the next candidate leads, and observers see it.
pub async fn a_killed_leader_process_is_replaced(fixture: &dyn Fixture) {
    let name = name("killed-leader");
    let raw = raw(fixture).await;
    let Some(url) = url(fixture, &raw) else { return };
    let Some((_client, election)) = election(fixture, &name).await else { return };
    let mut victim = HolderProcess::start(&url).await;
    let ttl = ttl_for_killed_process(fixture, &raw).as_millis();
    victim.send(&format!("campaign {name} victim {ttl}"));
    victim.expect_line("waiting").await;
    let before = victim.wait_until_held().await.expect("a token");
    let mut observer = election.observe();
    assert_eq!(next(fixture, &mut observer).await.expect("a leader").value, "victim");
    victim.process.kill9().unwrap();
    let leadership = election.campaign_with(&"heir".into(), Wait::AtMost(GENEROUS)).await.unwrap();
    assert!(before < leadership.token());
    next_value(fixture, &mut observer, "heir").await;
    leadership.resign().await.unwrap();
}

/// A leader whose process is stopped is replaced after its TTL. It hears of that when it continues, and
/// does not disturb its successor.
pub async fn a_stopped_leader_process_is_replaced_and_hears_of_it(fixture: &dyn Fixture) {
    let name = name("stopped-leader");
    let raw = raw(fixture).await;
    let Some(url) = url(fixture, &raw) else { return };
    let Some((_client, election)) = election(fixture, &name).await else { return };
    let mut stopped = HolderProcess::start(&url).await;
    stopped.send(&format!("campaign {name} stopped {}", fixture.ttl().as_millis()));
    stopped.expect_line("waiting").await;
    stopped.wait_until_held().await;
    stopped.process.stop().unwrap();
    let mut observer = election.observe();
    let leadership = election.campaign_with(&"heir".into(), Wait::AtMost(GENEROUS)).await.unwrap();
    stopped.process.cont().unwrap();
    let report = stopped.next_line().await;
    assert!(report == "lost expired" || report == "lost not-held", "{report}");
    stopped.send("release");
    stopped.expect_line("not held").await;
    assert!(leadership.is_valid());
    next_value(fixture, &mut observer, "heir").await;
    let leader = election.leader().await.unwrap().expect("a leader");
    assert_eq!((leader.value.as_str(), leader.token), ("heir", leadership.token()));
    leadership.resign().await.unwrap();
}
