//! Locks without waiters: one command takes, renews or releases them, where scripts would look at the queue.

use tenure_core::store::{Claim, ClaimOutcome, Grant, Released, now};
use tenure_core::{Error, Mode, Result, Token};

use crate::fault::accepted;
use crate::held::Hold;
use crate::keys::Keys;
use crate::link::Link;
use crate::native_commands::set_if_unchanged;
use crate::scripts::Call;
use crate::store::{RedisStore, millis, origin_text, released};
use crate::wire::{Arg, Value, cmd};

/// How many locks one call takes or releases: it blocks the server no longer than one that admits a crowd.
const MAX_TOGETHER: usize = 128;

impl RedisStore {
    /// Takes a lock that is free and has no waiters, the cheapest way. `None` if `claim.lua` has to
    /// decide.
    pub(crate) async fn take(&self, claim: &Claim, keys: &Keys) -> Result<Option<ClaimOutcome>> {
        // A claim that is in the queue must leave it in the same step in which it is granted.
        let alone = claim.mode == Mode::Exclusive
            && !self.inbox.is_registered(claim.owner)
            && !self.inbox.has_waiters(&claim.name);
        let taken = match (alone, self.config.fencing) {
            (true, true) => self.take_fenced(claim, keys).await?,
            (true, false) => self.set_if_absent(claim, keys).await?,
            (false, _) => None,
        };
        if let Some(ClaimOutcome::Granted(grant)) = &taken
            && self.servers.link(keys.slot).is_some_and(|link| link.native().delete().is_some())
        {
            let (token, at) = (grant.token.unwrap_or(Token::new(0)), now());
            let hold = Hold { token, downgraded: false, asked: 0, ends: at + claim.ttl };
            self.taken.put(claim.owner, hold, at);
        }
        Ok(taken)
    }

    async fn take_fenced(&self, claim: &Claim, keys: &Keys) -> Result<Option<ClaimOutcome>> {
        let origin = origin_text(claim);
        let [holder, queue, .., token] = keys.all();
        let call = Call {
            operation: "acquire",
            slot: keys.slot,
            keys: &[token, holder, queue],
            arguments: &[claim.owner.into(), millis(claim.ttl).into(), (&origin).into()],
            wait: self.wait.as_ref(),
        };
        let (reply, acknowledged) = self.scripts.take.run(&self.servers, call).await?;
        match self.answer(claim, None, &reply)? {
            Some(answer) => self.confirm(claim, answer, acknowledged).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes a free lock without a token: one `SET NX PX`, as other clients do.
    async fn set_if_absent(&self, claim: &Claim, keys: &Keys) -> Result<Option<ClaimOutcome>> {
        if self.config.replicas > 0 {
            return Ok(None);
        }
        let value = self.expected_value(claim, Token::new(0));
        let set = cmd("SET").arg(keys.holder()).arg(&value).arg("NX").arg("PX");
        let set = set.number(millis(claim.ttl));
        let (reply, _) = self.servers.call("acquire", keys.slot, &set, None).await?;
        match accepted("acquire", reply)? {
            Value::Null => Ok(None),
            _ => Ok(Some(ClaimOutcome::Granted(Grant::new(None, None)))),
        }
    }

    /// Deletes the holder's key if its value is known and has not changed: then no claim waits. False if
    /// the script has to decide.
    pub(crate) async fn delete_unchanged(&self, claim: &Claim, keys: &Keys) -> Result<bool> {
        let Some(hold) = self.taken.remove(claim.owner) else { return Ok(false) };
        let delete = |link: Link| link.native().delete();
        // A waiter of this client has marked the value.
        let delete = self.servers.link(keys.slot).and_then(delete);
        let Some(delete) = delete.filter(|_| !self.inbox.has_waiters(&claim.name)) else {
            return Ok(false);
        };
        let command = delete.command(keys.holder(), &self.expected_value(claim, hold.token));
        let (reply, _) = self.servers.call("release", keys.slot, &command, None).await?;
        if let (Value::Refusal(refusal), Some(link)) = (&reply, self.servers.link(keys.slot)) {
            link.native().refused_delete(delete, refusal);
        }
        Ok(matches!(reply, Value::Integer(1)))
    }

    /// Restarts the term of a lock whose value is known and has not changed. False if the script has to
    /// decide.
    pub(crate) async fn set_unchanged(&self, claim: &Claim, keys: &Keys) -> Result<bool> {
        let Some(hold) = self.taken.get(claim.owner) else { return Ok(false) };
        let link = self.renewals.link(keys.slot);
        // The first renewal goes over both connections, by the script.
        if !link.is_some_and(|link| link.is_connected() && link.native().has_set_if_equal()) {
            return Ok(false);
        }
        let value = self.expected_value(claim, hold.token);
        let command = set_if_unchanged(keys.holder(), &value, millis(claim.ttl));
        let at = now();
        let wait = self.wait.as_ref();
        let (reply, acknowledged) = self.renewals.call("renew", keys.slot, &command, wait).await?;
        match reply {
            Value::Refusal(refusal) => {
                if let Some(link) = self.renewals.link(keys.slot) {
                    link.native().refused_set(&refusal);
                }
                Ok(false)
            }
            Value::Null => {
                // A waiter has marked the value, or the lock is lost.
                self.taken.remove(claim.owner);
                Ok(false)
            }
            _ => {
                self.taken.extend(claim.owner, at + claim.ttl);
                let checked = self.check_replicas("renew", acknowledged);
                checked.map(|()| true).map_err(Error::with_unknown_effect)
            }
        }
    }

    /// The value of the holder's key after this claim has taken a free lock.
    fn expected_value(&self, claim: &Claim, token: Token) -> String {
        let origin = origin_text(claim);
        match self.config.fencing {
            true => format!("{} {token} - {origin}", claim.owner),
            false => format!("{} - - {origin}", claim.owner),
        }
    }

    /// Takes several free locks by one run of a script.
    pub(crate) async fn take_together(&self, claims: &[Claim]) -> Result<Option<Vec<Grant>>> {
        let Some(keys) = self.together(claims) else { return Ok(None) };
        let waits = |claim: &Claim| self.inbox.has_waiters(&claim.name);
        if self.config.replicas > 0 || claims.iter().any(waits) {
            return Ok(None);
        }
        let origins: Vec<String> = claims.iter().map(origin_text).collect();
        let [.., token] = keys[0].all();
        let (mut all, mut arguments) = (vec![token], Vec::<Arg<'_>>::new());
        for ((claim, keys), origin) in claims.iter().zip(&keys).zip(&origins) {
            all.extend(&keys.all()[..2]);
            let claimed: [Arg<'_>; 3] =
                [claim.owner.into(), millis(claim.ttl).into(), origin.into()];
            arguments.extend(claimed);
        }
        let (slot, keys, arguments) = (keys[0].slot, &all[..], &arguments[..]);
        let call = Call { operation: "acquire", slot, keys, arguments, wait: None };
        let Some(reply) = self.scripts.take.run_on_one_node(&self.servers, call).await? else {
            return Ok(None);
        };
        match self.answer(&claims[0], None, &reply)? {
            Some(ClaimOutcome::Granted(grant)) => Ok(Some(vec![grant; claims.len()])),
            _ => Ok(None),
        }
    }

    /// Releases several locks that no claim waits for by one run of a script.
    pub(crate) async fn free_together(&self, claims: &[Claim]) -> Result<bool> {
        let Some(keys) = self.together(claims) else { return Ok(false) };
        let owners: Vec<Arg<'_>> = claims.iter().map(|claim| claim.owner.into()).collect();
        let holders: Vec<&str> = keys.iter().map(Keys::holder).collect();
        let (slot, keys, arguments) = (keys[0].slot, &holders[..], &owners[..]);
        let call = Call { operation: "release", slot, keys, arguments, wait: None };
        let Some(reply) = self.scripts.free.run_on_one_node(&self.servers, call).await? else {
            return Ok(false);
        };
        if released("release", &reply)? == Released::NotHeld {
            return Ok(false);
        }
        for claim in claims {
            self.taken.remove(claim.owner);
        }
        Ok(true)
    }

    /// The keys of these locks, if one call may serve all: they are in one slot, and not too many.
    fn together(&self, claims: &[Claim]) -> Option<Vec<Keys>> {
        let keys: Vec<Keys> = claims.iter().map(|claim| self.keyring.keys(&claim.name)).collect();
        let alike = keys.iter().all(|it| it.slot == keys[0].slot);
        (alike && (2..=MAX_TOGETHER).contains(&keys.len())).then_some(keys)
    }
}
