//! What the calls of a store and the tasks of its waiters share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Background, Claim, HoldListeners, OwnerId, Result, now};

use crate::config::EtcdConfig;
use crate::desk::Desk;
use crate::keys::{Keyring, Line};
use crate::lease::{Lease, Leases};
use crate::members::{Again, Members};
use crate::place::{Place, Standing};
use crate::rpc::TxnRequest;
use crate::txn::{delete, hangs_on};
use crate::watch::Watches;

pub(crate) struct Inner {
    pub(crate) config: EtcdConfig,
    pub(crate) keyring: Keyring,
    pub(crate) members: Arc<Members>,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    pub(crate) places: Mutex<HashMap<OwnerId, Arc<Place>>>,
    pub(crate) desk: Desk,
    pub(crate) listeners: HoldListeners,
    /// Where everything goes on that outlives a call, or that several calls wait for.
    pub(crate) background: Background,
}

impl Inner {
    pub(crate) async fn connect(config: EtcdConfig) -> Result<Arc<Self>> {
        let keyring = Keyring::new(&config.prefix);
        let (probe, _) = keyring.all("");
        let background = Background::start("tenure-etcd")?;
        let members = Members::connect(&config, probe.clone(), &background).await?;
        Ok(Arc::new(Self {
            keyring,
            leases: Leases::new(Arc::clone(&members), probe),
            watches: Watches::new(Arc::clone(&members), background.clone()),
            members,
            places: Mutex::default(),
            desk: Desk::new(background.runtime().clone()),
            listeners: HoldListeners::default(),
            config,
            background,
        }))
    }

    /// The line of a claim's lock, and the claim's own key in it.
    pub(crate) fn key_of(&self, claim: &Claim) -> (Line, Vec<u8>) {
        let line = self.keyring.line(&claim.name);
        let key = line.key(&claim.owner.to_string());
        (line, key)
    }

    /// A lease to hold on, of which at most a quarter has passed: the rest is the grant's term. The
    /// claim has moved in.
    pub(crate) async fn hold_lease(self: &Arc<Self>, claim: &Claim) -> Result<Arc<Lease>> {
        let (_, key) = self.key_of(claim);
        let (owner, ttl) = (claim.owner, claim.ttl);
        let take = move |lease: &Lease| lease.move_in(owner, &key, now() + ttl);
        self.lease_to_hold(claim, take).await
    }

    /// Has the lease at hand that a claim will hold on.
    pub(crate) async fn prepare(self: &Arc<Self>, claim: &Claim) -> Result<()> {
        self.lease_to_hold(claim, |_| true).await.map(drop)
    }

    async fn lease_to_hold(
        self: &Arc<Self>,
        claim: &Claim,
        take: impl Fn(&Lease) -> bool + Send + 'static,
    ) -> Result<Arc<Lease>> {
        let lease = self.lease(claim.ttl, claim.ttl / 4, take).await?;
        self.attend(&lease);
        Ok(lease)
    }

    /// A lease to wait on, which lasts for `patience` from now on, and up to a quarter longer. The
    /// claim has moved in.
    pub(crate) async fn place_lease(
        self: &Arc<Self>,
        claim: &Claim,
        patience: Duration,
    ) -> Result<Arc<Lease>> {
        let (_, key) = self.key_of(claim);
        let owner = claim.owner;
        let take = move |lease: &Lease| lease.move_in(owner, &key, now() + patience);
        self.lease(patience + patience / 4, patience / 4, take).await
    }

    async fn lease(
        self: &Arc<Self>,
        life: Duration,
        age: Duration,
        take: impl Fn(&Lease) -> bool + Send + 'static,
    ) -> Result<Arc<Lease>> {
        let lease = match self.leases.at_hand(life, age, &take) {
            Some(lease) => lease,
            None => {
                let inner = Arc::clone(self);
                let asked = async move { inner.leases.get("acquire", life, age, take).await };
                self.background.run("acquire", asked).await?
            }
        };
        self.sweep(&lease);
        Ok(lease)
    }

    /// Removes those whose time is over, in the background, from a lease that lives on for others.
    pub(crate) fn sweep(self: &Arc<Self>, lease: &Arc<Lease>) {
        if !lease.wants_sweeping(now()) {
            return;
        }
        for suspect in lease.overdue(now()) {
            let (inner, lease, owner) = (Arc::clone(self), Arc::clone(lease), suspect.owner);
            let removal = async move {
                // It may have been renewed, or claimed again, while this waited for its turn.
                if !lease.is_overdue(owner, now()) {
                    return Ok(());
                }
                let compare = vec![hangs_on(&suspect.key, lease.id)];
                let success = vec![delete(&suspect.key)];
                let request = TxnRequest { compare, success, failure: Vec::new() };
                let mut doubt = false;
                let removed = inner.members.txn("expire", Again::Harmless, &mut doubt, request);
                if removed.await?.succeeded {
                    inner.forget(owner);
                }
                lease.move_out(owner);
                Ok(())
            };
            // One that fails is tried again by the next sweep.
            drop(self.desk.queue(owner, removal));
        }
    }

    pub(crate) fn place(&self, owner: OwnerId) -> Option<Arc<Place>> {
        self.places.lock().get(&owner).cloned()
    }

    /// Stops waiting for a claim, and says how far it got, if it ever had to wait. What is in etcd
    /// stays.
    pub(crate) fn forget(&self, owner: OwnerId) -> Option<Standing> {
        let place = self.places.lock().remove(&owner)?;
        let standing = place.standing();
        place.abandon();
        Some(standing)
    }

    /// Stops waiting for all claims, and listening for losses.
    pub(crate) fn forget_all(&self) {
        self.leases.leave_alone();
        for (_, place) in self.places.lock().drain() {
            place.abandon();
        }
    }
}
