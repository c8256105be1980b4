//! tenure's own locks, as one more algorithm.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tenure::{Client, ErrorKind, Guard, Options};

use crate::history::{Stamp, now};
use crate::specimens::{Algorithm, Held, Hold};

/// A client of a store.
pub(crate) struct Tenure {
    client: Client,
    uses_tokens: bool,
    max_hold: Option<Duration>,
    /// The client's name, which the servers keep with each hold.
    label: String,
}

struct TenureHold {
    guard: Guard,
    uses_tokens: bool,
}

impl Tenure {
    pub(crate) async fn connect(url: &str, uses_tokens: bool, label: &str) -> io::Result<Self> {
        let client = tenure::connect(url).await.map_err(io::Error::other)?;
        Ok(Self { client, uses_tokens, max_hold: None, label: label.to_owned() })
    }

    /// Gives every hold an end.
    pub(crate) fn with_max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }
}

#[async_trait(?Send)]
impl Algorithm for Tenure {
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>> {
        let mut options = Options::new().ttl(ttl).label(&*self.label);
        if let Some(limit) = self.max_hold {
            options = options.max_hold(limit);
        }
        let mutex = self.client.mutex(lock).map_err(io::Error::other)?.with(options);
        let acquired = match wait {
            Duration::ZERO => mutex.try_acquire().await,
            wait => mutex.acquire_within(wait).await,
        };
        match acquired {
            Ok(guard) => Ok(Some(Box::new(TenureHold { guard, uses_tokens: self.uses_tokens }))),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    async fn holder(&self, lock: &str) -> io::Result<Option<String>> {
        let state = self.client.inspect(lock).await.map_err(io::Error::other)?;
        Ok(state.holders.into_iter().next().map(|holder| holder.label))
    }

    async fn close(&self) {
        self.client.clone().close().await;
    }
}

#[async_trait(?Send)]
impl Held for TenureHold {
    fn token(&self) -> Option<u64> {
        self.guard.token().filter(|_| self.uses_tokens).map(|token| token.get())
    }

    fn deadline(&self) -> Option<Stamp> {
        Some(now() + self.guard.remaining().as_nanos() as u64)
    }

    fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    async fn release(self: Box<Self>) -> io::Result<bool> {
        match self.guard.release().await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(false),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Whether an acquire may succeed later: when the servers are back, or as fast as before.
pub(crate) fn is_fault_of_servers(error: &tenure::Error) -> bool {
    // A grant that slow servers confirmed too late was undone.
    error.is_transient() || error.kind() == ErrorKind::LeaseTooShort
}
