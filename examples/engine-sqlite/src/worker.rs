//! The thread that owns the connection.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tenure_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::fault::fault;
use crate::queue;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Does jobs one after the other, in the order in which they were sent.
///
/// The order matters: the caller of a store may drop the future of a claim, and then undoes the claim by a
/// release. A job that was sent is done also if its caller is gone, so the release finds what the claim
/// did. (With `spawn_blocking` the two could run in either order.) A thread of its own also keeps a slow
/// disk from blocking the caller's runtime. It ends with the last sender.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    jobs: mpsc::Sender<Job>,
}

impl Worker {
    /// Opens the file, creates it if it is missing, and starts the thread.
    pub(crate) async fn start(path: &Path, timeout: Duration) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (opened, outcome) = oneshot::channel();
        let path = path.to_owned();
        let thread = std::thread::Builder::new().name("tenure-sqlite".into()).spawn(move || {
            let mut connection = match open(&path, timeout) {
                Ok(connection) => connection,
                Err(error) => return drop(opened.send(Err(error))),
            };
            // Nothing to do where the caller has gone away: there are no jobs then.
            let _ = opened.send(Ok(()));
            for job in queue {
                job(&mut connection);
            }
        });
        thread.map_err(|cause| {
            let why = "the system has no thread left";
            Error::new(ErrorKind::Internal, OPEN, why).caused_by(cause)
        })?;
        outcome.await.map_err(|_| stopped(OPEN))??;
        Ok(Self { jobs })
    }

    /// Has `work` done in a transaction, which is rolled back if it fails. `operation` completes
    /// "could not …".
    pub(crate) async fn transact<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, outcome) = oneshot::channel();
        let job = move |connection: &mut Connection| {
            let done = (|| {
                // SQLite waits for the write lock here, for the busy timeout at most. A transaction that
                // asked for it later could fail where it is too late to wait.
                let transaction =
                    connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let done = work(&transaction)?;
                transaction.commit()?;
                Ok(done)
            })();
            let _ = answer.send(done.map_err(|cause| fault(operation, cause)));
        };
        self.send(operation, Box::new(job), outcome).await
    }

    /// Has `work` done that only reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, outcome) = oneshot::channel();
        let job = move |connection: &mut Connection| {
            let done = work(connection).map_err(|cause| fault(operation, cause));
            let _ = answer.send(done);
        };
        self.send(operation, Box::new(job), outcome).await
    }

    async fn send<T>(
        &self,
        operation: &'static str,
        job: Job,
        outcome: oneshot::Receiver<Result<T>>,
    ) -> Result<T> {
        self.jobs.send(job).map_err(|_| stopped(operation))?;
        outcome.await.map_err(|_| stopped(operation))?
    }
}

const OPEN: &str = "open the SQLite file";

fn open(path: &Path, timeout: Duration) -> Result<Connection> {
    let open = || -> rusqlite::Result<Connection> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(timeout)?;
        // Readers do not wait for a writer, and each commit is synced: no token is given twice after the
        // machine has lost power.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        queue::prepare(&transaction, &boot_id())?;
        transaction.commit()?;
        Ok(connection)
    };
    // SQLite does not wait for another process that turns a new file to WAL at the same moment.
    let deadline = Instant::now() + timeout;
    loop {
        match open() {
            Err(cause)
                if cause.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome.map_err(|cause| fault(OPEN, cause)),
        }
    }
}

/// What tells this start of the machine from all others: times in the file count from there.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn stopped(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the thread of the SQLite store has ended")
}
