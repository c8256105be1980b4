//! To go on holding, and to let go.

use std::sync::Arc;

use tenure_core::{Claim, Released, Renewal, Result};

use crate::inner::Inner;
use crate::members::Again;
use crate::place::{Place, Standing};
use crate::record::Record;
use crate::rpc::TxnRequest;
use crate::txn::{delete, get, get_first};

impl Inner {
    /// The key must be there, and its lease confirmed by a sign of life sent after this began.
    pub(crate) async fn renew(self: &Arc<Self>, claim: &Claim) -> Result<Renewal> {
        for _ in 0..2 {
            let (line, key) = self.key_of(claim);
            let mut seen = self.members.look("renew", vec![get(&key)]).await?;
            let Some(own) = seen.found(0).pop() else { break };
            let Some(record) = Record::read(&own.value) else { break };
            if record.held {
                let renewed = self.confirm("renew", claim, &own).await?.is_some();
                return Ok(if renewed { Renewal::Renewed } else { Renewal::Lost });
            }
            // It was handed the lock, and its key not moved. The lease it is moved to may have had its
            // last sign of life before this began: so look again.
            let Some(lease) = self.leases.find(own.lease) else { break };
            let place = Place::new(claim.clone(), line, key, own.create_revision, lease);
            if self.promote_if_admitted(&place).await?.is_none() {
                break;
            }
        }
        Ok(Renewal::Lost)
    }

    pub(crate) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Released> {
        let standing = self.forget(claim.owner);
        self.remove(claim, standing).await
    }

    /// Deletes a claim's key. The key is the claim's alone, so nothing of anybody else's, and
    /// nothing newer, can be hit. One that waited may hold without having heard of it.
    pub(crate) async fn remove(
        &self,
        claim: &Claim,
        standing: Option<Standing>,
    ) -> Result<Released> {
        let (line, key) = self.key_of(claim);
        let waited = standing.is_some();
        let mut success = vec![delete(&key)];
        if waited {
            success.insert(0, get_first(&line));
        }
        let request = TxnRequest { success, ..Default::default() };
        let mut outcome = self.members.txn("release", Again::Never, &mut false, request).await?;
        let own = outcome.found(usize::from(waited)).pop();
        let first = waited.then(|| outcome.found(0).pop()).flatten();
        self.leases.move_out(claim.owner);
        let Some(own) = own else { return Ok(Released::NotHeld) };
        let knew = matches!(standing, Some(Standing::Holds(_)))
            || Record::read(&own.value).is_some_and(|record| record.held);
        let is_first = first.is_some_and(|first| first.create_revision == own.create_revision);
        Ok(if knew || is_first { Released::Released } else { Released::NotHeld })
    }
}
