//! To take a lock away by force.

use tenure_core::{Error, ErrorKind, Eviction, Released, Result};

use crate::canary::with_loss;
use crate::fault::is_lease_gone;
use crate::inner::Inner;
use crate::members::Again;
use crate::record::{Record, admitted, mode};
use crate::rpc::TxnRequest;
use crate::txn::{delete, get, get_line, put, written_at};

/// How often it begins anew when the record was written meanwhile.
const ROUNDS: usize = 5;

impl Inner {
    pub(crate) async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let line = self.keyring.line(&eviction.name);
        let key = line.key(&eviction.owner);
        let audit = self.keyring.audit(&eviction.name);
        for _ in 0..ROUNDS {
            let reads = vec![get_line(&line), get(&audit)];
            let mut seen = self.members.look("evict", reads).await?;
            let keys = seen.found(0);
            let Some(place) = keys.iter().position(|kv| kv.key == key) else {
                return Ok(Released::NotHeld);
            };
            let held = place < admitted(keys.iter().map(mode));
            // Unchanged since it was seen: one that is moved meanwhile is to be told elsewhere.
            let mut compare = vec![written_at(&key, keys[place].mod_revision)];
            let mut success = vec![delete(&key)];
            if held {
                let records = seen.found(1).pop();
                let written = records.as_ref().map_or(0, |records| records.mod_revision);
                compare.push(written_at(&audit, written));
                let older = records.map(|records| records.value).unwrap_or_default();
                success.push(put(&audit, eviction.recorded(&older), 0));
            }
            let (lease, revision) = (keys[place].lease, keys[place].create_revision);
            let holds = Record::read(&keys[place].value).is_some_and(|record| record.held);
            if holds && lease != 0 {
                let canary = self.keyring.canary(lease);
                let known = self.members.look("evict", vec![get(&canary)]).await?.found(0).pop();
                let written = known.as_ref().map_or(0, |known| known.mod_revision);
                compare.push(written_at(&canary, written));
                let value = with_loss(known.as_ref(), &eviction.owner, revision);
                success.push(put(&canary, value, lease));
            }
            let request = TxnRequest { compare, success, failure: Vec::new() };
            let outcome = self.members.txn("evict", Again::Never, &mut false, request).await;
            // With its lease, the key has gone.
            if outcome.as_ref().is_err_and(is_lease_gone) {
                continue;
            }
            if outcome?.succeeded {
                return Ok(if held { Released::Released } else { Released::NotHeld });
            }
        }
        let why = "the lock changed at every look: try again";
        Err(Error::new(ErrorKind::Unreachable, "evict", why).about(&eviction.name))
    }
}
