//! What the servers say of a lock while an experiment is played: a client asks them directly, again and again.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
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
    end: Sender<()>,
    thread: JoinHandle<Vec<Truth>>,
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
        let asked = Arc::clone(&servers);
        let thread = std::thread::spawn(move || {
            // Without a runtime the experiment has no such lane.
            ask(info, &asked, &lock, &options, &over).unwrap_or_default()
        });
        Self { servers, end, thread }
    }

    /// Asks these servers from now on.
    pub(crate) fn lead_to(&self, servers: Vec<String>) {
        *self.servers.lock().unwrap_or_else(PoisonError::into_inner) = servers;
    }

    /// What the servers have said.
    pub(crate) fn end(self) -> Vec<Truth> {
        drop(self.end);
        self.thread.join().unwrap_or_default()
    }
}

fn ask(
    info: &'static Info,
    servers: &Mutex<Vec<String>>,
    lock: &str,
    options: &Options,
    over: &Receiver<()>,
) -> io::Result<Vec<Truth>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let mut client: Option<(Vec<String>, Box<dyn Algorithm>)> = None;
    let mut truth: Vec<Truth> = Vec::new();
    while over.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let servers = servers.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
        if truth.last().is_none_or(|last| last.state != state) {
            truth.push(Truth { at, state });
        }
    }
    // Some clients close their sessions when they are dropped.
    tasks.block_on(&runtime, async { drop(client) });
    drop(tasks);
    runtime.shutdown_background();
    Ok(truth)
}
