//! What the servers say of a lock while an experiment is played: a client asks them directly, again and again.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::LocalSet;

use crate::algorithms::Info;
use crate::client::Options;
use crate::history::{Stored, Truth, now};
use crate::specimens::{Algorithm, Bench};
use crate::steps::Steps;

/// How often it asks.
const PERIOD: Duration = Duration::from_millis(40);

/// How long the servers may take to answer before they count as silent.
const PATIENCE: Duration = Duration::from_millis(500);

/// A client that asks the servers of an experiment for the holder of its lock, on a thread of its own.
pub(crate) struct Observer {
    servers: Arc<Mutex<Vec<String>>>,
    truth: Arc<Mutex<Vec<Truth>>>,
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Observer {
    /// Starts to ask these servers for the holder of `lock`.
    pub(crate) fn start(
        info: &'static Info,
        servers: Vec<String>,
        lock: String,
        options: Options,
    ) -> Self {
        let servers = Arc::new(Mutex::new(servers));
        let (end, over) = channel();
        let truth = Arc::<Mutex<Vec<Truth>>>::default();
        let (asked, said) = (Arc::clone(&servers), Arc::clone(&truth));
        let thread = std::thread::spawn(move || {
            // Without a runtime the experiment has no such lane.
            let _ = ask(info, &asked, &lock, &options, &said, &over);
        });
        Self { servers, truth, end, thread }
    }

    /// Asks these servers from now on.
    pub(crate) fn lead_to(&self, servers: Vec<String>) {
        *locked(&self.servers) = servers;
    }

    /// What the servers have said.
    pub(crate) fn end(self) -> Vec<Truth> {
        drop(self.end);
        // What it has heard is valid however it ended.
        let _ = self.thread.join();
        std::mem::take(&mut *locked(&self.truth))
    }
}

fn ask(
    info: &'static Info,
    servers: &Mutex<Vec<String>>,
    lock: &str,
    options: &Options,
    said: &Mutex<Vec<Truth>>,
    over: &Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let mut client: Option<(Vec<String>, Box<dyn Algorithm>)> = None;
    while over.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let servers = locked(servers).clone();
        let at = now();
        let answer = tasks.block_on(&runtime, async {
            let asking = async {
                if client.as_ref().is_none_or(|(known, _)| *known != servers) {
                    let steps = Rc::new(Steps::new("observer".into()));
                    let bench = Bench { servers: servers.clone(), steps };
                    client = Some((servers, info.client(&bench, options).await?));
                }
                match &client {
                    Some((_, client)) => client.holder(lock).await,
                    None => Err(io::ErrorKind::NotConnected.into()),
                }
            };
            tokio::time::timeout(PATIENCE, asking).await
        });
        let state = match answer {
            Ok(Ok(None)) => Stored::Free,
            Ok(Ok(Some(client))) => Stored::Held(client),
            Ok(Err(_)) | Err(_) => Stored::Silent,
        };
        let mut truth = locked(said);
        if truth.last().is_none_or(|last| last.state != state) {
            truth.push(Truth { at, state });
        }
    }
    // Some clients close their sessions when they are dropped.
    tasks.block_on(&runtime, async { drop(client) });
    drop(tasks);
    runtime.shutdown_background();
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::{GENEROUS, eventually};

    use super::*;

    fn observe(id: &str, server: String) -> Observer {
        let info = crate::algorithms::find(id).expect("it is an algorithm");
        let options = Options { url: String::new(), max_hold: None };
        Observer::start(info, vec![server], "a".into(), options)
    }

    fn states(observer: &Observer) -> Vec<Stored> {
        locked(&observer.truth).iter().map(|truth| truth.state.clone()).collect()
    }

    async fn until(observer: &Observer, expected: &[Stored]) {
        let said = || async { states(observer) == expected };
        assert!(eventually(GENEROUS, said).await, "{:?}, not {expected:?}", states(observer));
    }

    #[tokio::test]
    async fn the_truth_is_what_the_store_says_and_each_change_is_one_entry() {
        let folder = tenure_testkit::temp_dir();
        let directory = folder.path().display();
        let observer = observe("local", directory.to_string());
        until(&observer, &[Stored::Free]).await;
        let client = tenure::connect(&format!("local:{directory}")).await;
        let mutex = client.expect("a directory is a store").mutex("a").expect("a valid name");
        let guard = mutex.with(tenure::Options::new().label("A")).acquire().await;
        let held = Stored::Held("A".into());
        until(&observer, &[Stored::Free, held.clone()]).await;
        guard.expect("it is free").release().await.expect("it is held");
        until(&observer, &[Stored::Free, held, Stored::Free]).await;
        assert!(observer.end().is_sorted_by_key(|truth| truth.at));
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_silent_until_another_one_is_asked() {
        let folder = tenure_testkit::temp_dir();
        let file = folder.path().join("file");
        std::fs::write(&file, "no directory").expect("the directory is writable");
        let observer = observe("local", file.display().to_string());
        until(&observer, &[Stored::Silent]).await;
        observer.lead_to(vec![folder.path().join("store").display().to_string()]);
        until(&observer, &[Stored::Silent, Stored::Free]).await;
        assert_eq!(observer.end().len(), 2);
    }
}
