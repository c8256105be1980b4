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
}

struct TenureHold {
    guard: Guard,
    uses_tokens: bool,
}

impl Tenure {
    pub(crate) async fn connect(url: &str, uses_tokens: bool) -> io::Result<Self> {
        let client = tenure::connect(url).await.map_err(io::Error::other)?;
        Ok(Self { client, uses_tokens, max_hold: None })
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
        let mut options = Options::new().ttl(ttl);
        if let Some(limit) = self.max_hold {
            options = options.max_hold(limit);
        }
        let mutex = self.client.mutex(lock).map_err(io::Error::other)?.with(options);
        match mutex.acquire_within(wait).await {
            Ok(guard) => Ok(Some(Box::new(TenureHold { guard, uses_tokens: self.uses_tokens }))),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
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
