//! What etcd holds of a lock, read into words.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::{Holder, LockName, LockState, Mode, Result, Token, Waiter};

use crate::inner::Inner;
use crate::keys::Line;
use crate::members::Again;
use crate::record::{Record, admitted, mode};
use crate::rpc::lease_client::LeaseClient;
use crate::rpc::{KeyValue, LeaseTimeToLiveRequest};
use crate::txn::get_line;

/// How many leases are asked for at once.
const AT_ONCE: usize = 32;

impl Inner {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let line = self.keyring.line(name);
        let mut seen = self.members.look("inspect", vec![get_line(&line)]).await?;
        let keys = seen.found(0);
        let inside = admitted(keys.iter().map(mode));
        let (holding, waiting) = keys.split_at(inside);
        let left = self.time_left(holding).await?;
        let holders = holding.iter().filter_map(|kv| holder(&line, kv, &left)).collect();
        let waiters = waiting.iter().map(|kv| waiter(&line, kv)).collect();
        Ok(LockState { name: name.clone(), holders, waiters })
    }

    /// How long each of these keys' leases lasts yet; `None` for one that has ended.
    async fn time_left(&self, keys: &[KeyValue]) -> Result<HashMap<i64, Option<Duration>>> {
        let mut leases: Vec<i64> = keys.iter().map(|kv| kv.lease).filter(|id| *id != 0).collect();
        leases.sort_unstable();
        leases.dedup();
        let ask = |id| async move {
            let ask = |link| async move {
                LeaseClient::new(link).lease_time_to_live(LeaseTimeToLiveRequest { id }).await
            };
            let reply = self.members.call("inspect", Again::Harmless, ask).await?;
            // Whole seconds, rounded down: the lease ends within one more.
            let left = u64::try_from(reply.ttl).ok().map(|left| Duration::from_secs(left + 1));
            Ok((id, left))
        };
        let answers: Vec<Result<_>> =
            stream::iter(leases).map(ask).buffered(AT_ONCE).collect().await;
        answers.into_iter().collect()
    }
}

fn holder(line: &Line, kv: &KeyValue, left: &HashMap<i64, Option<Duration>>) -> Option<Holder> {
    let record = Record::read(&kv.value);
    let expires_in = match left.get(&kv.lease) {
        Some(Some(left)) => {
            Some(record.as_ref().filter(|one| one.held).map_or(*left, |one| one.ttl.min(*left)))
        }
        // The lease has ended, and its keys with it.
        Some(None) => return None,
        None => None,
    };
    Some(Holder {
        owner: line.owner(&kv.key),
        mode: mode(kv),
        token: u64::try_from(kv.create_revision).ok().map(Token::new),
        host: record.as_ref().map(|record| record.host.clone()),
        pid: record.as_ref().map(|record| record.pid),
        label: record.as_ref().map(|record| record.label.clone()).unwrap_or_default(),
        age: record.as_ref().filter(|record| record.held).map(Record::age),
        expires_in,
    })
}

fn waiter(line: &Line, kv: &KeyValue) -> Waiter {
    let record = Record::read(&kv.value);
    Waiter {
        owner: line.owner(&kv.key),
        mode: record.as_ref().map_or(Mode::Exclusive, |record| record.mode),
        host: record.as_ref().map(|record| record.host.clone()),
        pid: record.as_ref().map(|record| record.pid),
        age: record.as_ref().map(Record::age).unwrap_or_default(),
        label: record.map(|record| record.label).unwrap_or_default(),
    }
}
