//! Which locks a sample reads, and how.

use std::collections::{BTreeSet, HashMap};

use futures_util::{FutureExt, StreamExt, stream};

use super::Watch;
use super::change::Seen;
use crate::{AuditRecord, Client, ErrorKind, LockName, LockState, Result};

impl Watch {
    /// The locks to read, and the last of those that are read in their turn.
    pub(super) fn choose(&self, names: &[LockName]) -> (Vec<LockName>, Option<LockName>) {
        let known = &self.known;
        if names.len() <= Self::PER_SAMPLE {
            return (names.to_vec(), None);
        }
        // A quarter is for the locks whose turn it is, so that each is read some time.
        let preferred = Self::PER_SAMPLE / 4 * 3;
        let mut chosen = BTreeSet::new();
        let is_new =
            |name: &&LockName| !known.contains_key(name) && !self.unreadable.contains(name);
        let new = names.iter().filter(is_new);
        let hinted = self.hinted.names.iter();
        let focused =
            self.focus.iter().chain(hinted).filter(|name| names.binary_search(name).is_ok());
        chosen.extend(focused.chain(new).take(preferred).cloned());
        let waiters = |seen: &&Seen| seen.state.waiters.len();
        let mut contended: Vec<_> = known.values().filter(|seen| waiters(seen) > 0).collect();
        contended.sort_by_key(|seen| std::cmp::Reverse(waiters(seen)));
        for seen in contended {
            if chosen.len() >= preferred {
                break;
            }
            if names.binary_search(&seen.state.name).is_ok() {
                chosen.insert(seen.state.name.clone());
            }
        }
        let from = self.turn.as_ref().map_or(0, |turn| names.partition_point(|name| name <= turn));
        let mut turn = None;
        for name in names[from..].iter().chain(&names[..from]) {
            if chosen.len() >= Self::PER_SAMPLE {
                break;
            }
            chosen.insert(name.clone());
            turn = Some(name.clone());
        }
        (chosen.into_iter().collect(), turn)
    }

    /// The audit records of the locks from which a claim has gone: they tell an eviction from a release. Those of
    /// at most [`PER_SAMPLE`](Self::PER_SAMPLE) locks are read.
    pub(super) async fn records(
        &self,
        states: &[LockState],
    ) -> Result<(HashMap<LockName, Vec<AuditRecord>>, bool)> {
        if self.lacks_records {
            return Ok((HashMap::new(), true));
        }
        let lost_one = |state: &&LockState| {
            self.known.get(&state.name).is_some_and(|seen| seen.lacks_a_claim(state))
        };
        let gone = states.iter().filter(lost_one).map(|state| state.name.clone());
        let names: Vec<_> = gone.take(Self::PER_SAMPLE).collect();
        let client = self.client.clone();
        let read = move |name: LockName| {
            let client = client.clone();
            async move { (client.audit(name.as_str()).await, name) }.boxed()
        };
        let mut audits = stream::iter(names).map(read).buffer_unordered(Client::READERS);
        let mut records = HashMap::new();
        while let Some((audit, name)) = audits.next().await {
            match audit {
                Ok(found) => drop(records.insert(name, found)),
                Err(error) => match error.kind() {
                    ErrorKind::Unsupported | ErrorKind::Denied => return Ok((records, true)),
                    _ => return Err(error),
                },
            }
        }
        Ok((records, false))
    }
}

impl Client {
    /// How many locks are read at a time.
    const READERS: usize = 16;

    /// The states of these locks, in this order. Left out are those that cannot be read although the store
    /// answers, such as damaged ones: they are logged and added to `unreadable`, unless they are there already.
    pub(crate) async fn inspect_each(
        &self,
        names: Vec<LockName>,
        unreadable: &mut BTreeSet<LockName>,
    ) -> Result<Vec<LockState>> {
        let client = self.clone();
        let read = move |name: LockName| {
            let client = client.clone();
            // Boxed, because the compiler cannot see otherwise that the caller's future can be sent.
            async move { (client.inspect(name.as_str()).await, name) }.boxed()
        };
        let mut reads = stream::iter(names).map(read).buffered(Self::READERS);
        let mut states = Vec::new();
        while let Some((state, name)) = reads.next().await {
            match state {
                Ok(state) => {
                    unreadable.remove(&name);
                    states.push(state);
                }
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Denied => {
                    return Err(error);
                }
                Err(error) => {
                    if !unreadable.contains(&name) {
                        tracing::warn!(lock = %name, %error, "a lock is left out: it cannot be read");
                        unreadable.insert(name);
                    }
                }
            }
        }
        Ok(states)
    }
}
