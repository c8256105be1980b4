//! How holders hear at once that their locks are gone.
//!
//! On every lease for holding hangs one key that is no lock, and is watched. It goes when the lease
//! goes; and who takes a lock by force writes into it whose it was. So a hold costs no watch of its
//! own, however many there are.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Hold, OwnerId, Result, Token, now};

use crate::fault::is_lease_gone;
use crate::inner::Inner;
use crate::lease::Lease;
use crate::members::Again;
use crate::rpc::{KeyValue, TxnRequest};
use crate::txn::{created_at, get, put};
use crate::watch::Scope;

/// How many losses are written down: more than anybody takes by force while one look lasts.
const LINES: usize = 100;

/// Before it listens again, when that failed.
const PAUSE: Duration = Duration::from_millis(250);

impl Inner {
    /// Listens for the losses on a lease, unless somebody does already, until it is gone.
    pub(crate) fn attend(self: &Arc<Self>, lease: &Arc<Lease>) {
        lease.attend(|| {
            let (inner, lease) = (Arc::clone(self), Arc::clone(lease));
            let listening = async move { inner.listen(&lease).await };
            self.background.runtime().spawn(listening).abort_handle()
        });
    }

    async fn listen(&self, lease: &Lease) {
        let key = self.keyring.canary(lease.id);
        let scope = Scope { key, end: Vec::new(), writes: true };
        loop {
            match self.listen_once(lease, &scope).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::debug!(lease = lease.id, "the lease is gone");
                    lease.end().into_iter().for_each(|hold| self.listeners.lost(hold));
                    return;
                }
                // Its holders have heard of their end by the clock.
                Err(_) if lease.is_over(now()) => return,
                Err(error) => {
                    tracing::debug!(%error, "losses are not heard of");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Watch, then look, then wait: so nothing falls in between. False: the lease is gone.
    async fn listen_once(&self, lease: &Lease, scope: &Scope) -> Result<bool> {
        let mut watch = self.watches.start(scope).await?;
        let request = TxnRequest {
            compare: vec![created_at(&scope.key, 0)],
            success: vec![put(&scope.key, Vec::new(), lease.id)],
            failure: vec![get(&scope.key)],
        };
        let seen = self.members.txn("hold", Again::Harmless, &mut false, request).await;
        let mut seen = match seen {
            // It went with its lease; one that was deleted by hand is there again by now.
            Err(error) if is_lease_gone(&error) => return Ok(false),
            seen => seen?,
        };
        if let Some(kv) = seen.found(0).pop() {
            losses(&kv.value).for_each(|hold| self.listeners.lost(hold));
        }
        watch.changed().await?;
        Ok(true)
    }
}

/// The value of a canary that is told of one more loss.
pub(crate) fn with_loss(canary: Option<&KeyValue>, owner: &str, revision: i64) -> Vec<u8> {
    let known = canary.map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
    let newest = format!("{owner} {revision}");
    let known = known.unwrap_or_default();
    let lines = std::iter::once(newest.as_str()).chain(known.lines());
    lines.take(LINES).collect::<Vec<_>>().join("\n").into_bytes()
}

fn losses(value: &[u8]) -> impl Iterator<Item = Hold> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.lines().filter_map(|line| {
        let (owner, revision) = line.split_once(' ')?;
        let owner: OwnerId = owner.parse().ok()?;
        Some(Hold { owner, token: Some(Token::new(revision.parse().ok()?)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_tells_of_the_last_losses_and_of_nothing_it_cannot_read() {
        let owners: Vec<OwnerId> = (0..LINES + 5).map(|_| OwnerId::random()).collect();
        let mut canary = KeyValue { value: b"by hand".to_vec(), ..Default::default() };
        for (revision, owner) in owners.iter().enumerate() {
            canary.value = with_loss(Some(&canary), &owner.to_string(), revision as i64);
        }
        let told: Vec<Hold> = losses(&canary.value).collect();
        assert_eq!(told.len(), LINES);
        let last = owners.len() - 1;
        let lost = Hold { owner: owners[last], token: Some(Token::new(last as u64)) };
        assert_eq!(told[0], lost);
        assert_eq!(losses(&with_loss(None, "not an owner", 7)).count(), 0);
    }
}
