//! `--once-per`: runs a command only if it has not succeeded within a period.
//!
//! The last successful run is a value in the store that expires with the period, counted from the start
//! of that run. It is written and read under the lock, and fenced: a run that lost its lock, and that
//! another one has followed, is not written down.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tenure::store::{Moment, now};
use tenure::{Once, OnceRun, OnceStart, Token};

use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::output::{note, printable};
use crate::{args, show};

/// The period of one lock.
#[derive(Debug)]
pub(crate) struct OncePer {
    lock: String,
    runs: Once<String>,
    period: Duration,
    /// The exit code if the command is not run.
    code: u8,
}

/// A run that has begun.
#[derive(Debug)]
pub(crate) struct Run {
    run: Box<OnceRun<String>>,
    period: Duration,
    started: Moment,
    record: LastRun,
}

/// A successful run, as it is kept in the store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LastRun {
    /// The start, by the store's clock.
    at_unix_ms: u64,
    host: String,
    pid: u32,
    token: Option<u64>,
}

impl OncePer {
    /// The period of the command line, if it has one.
    pub(crate) fn new(
        connection: &Connection,
        arguments: &args::Run,
    ) -> Result<Option<Self>, Failure> {
        let Some(period) = arguments.once_per else { return Ok(None) };
        let lock = arguments.lock.name.clone();
        // What a program does once under the name of the lock is another thing.
        let runs = connection.client.once::<String>(&format!("run:{lock}"))?.ttl(period);
        let code = arguments.lock.busy_exit_code.unwrap_or(exit::OK);
        Ok(Some(Self { lock, runs, period, code }))
    }

    /// Reports the last successful run and returns the exit code, if the period is not over.
    pub(crate) async fn skip(&self) -> Result<Option<u8>, Failure> {
        Ok(self.runs.get().await?.map(|last| self.report(&last)))
    }

    /// Begins a run under the lock with this token. `Err` with the exit code if the period is not over.
    pub(crate) async fn start(
        &self,
        connection: &Connection,
        token: Option<Token>,
    ) -> Result<Result<Run, u8>, Failure> {
        let run = match self.runs.start(token).await? {
            OnceStart::Replayed(last) => return Ok(Err(self.report(&last))),
            OnceStart::Started(run) => run,
        };
        let started = now();
        let time = connection.client.store().cells()?.time().await?;
        let origin = tenure::store::Origin::here();
        let record = LastRun {
            at_unix_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            host: origin.host.clone(),
            pid: origin.pid,
            token: token.map(Token::get),
        };
        Ok(Ok(Run { run, period: self.period, started, record }))
    }

    fn report(&self, last: &str) -> u8 {
        let name = &self.lock;
        let period = show::duration(self.period);
        let ran = match serde_json::from_str::<LastRun>(last) {
            Ok(LastRun { at_unix_ms, host, pid, token }) => {
                let at = UNIX_EPOCH + Duration::from_millis(at_unix_ms);
                let ago = SystemTime::now().duration_since(at).unwrap_or_default();
                let (ago, host) = (show::duration(ago), printable(&host));
                let token = token.map(|token| format!(", token {token}")).unwrap_or_default();
                format!("it ran {ago} ago on {host}, pid {pid}{token}")
            }
            // Another version of tenure wrote it.
            Err(_) => "it ran".into(),
        };
        note(&format!("{name:?} is not run: {ran}, within --once-per {period}"));
        self.code
    }
}

impl Run {
    /// Writes down that the run succeeded. Must be called while the lock is held.
    pub(crate) async fn finish(self) -> Result<(), Failure> {
        let Self { run, period, started, record } = self;
        let left = period.saturating_sub(now().since(started));
        if left.is_zero() {
            // The period was over before the command was.
            return Ok(());
        }
        let text = serde_json::to_string(&record)
            .map_err(|error| Failure::system("write down the run", &error.into()))?;
        run.ttl(left).finish(&text).await.map_err(|error| {
            let line = exit::line(&error);
            let why = format!("the command succeeded, but may be run again: {line}");
            Failure::new(exit::code(error.kind()), why)
        })
    }
}
