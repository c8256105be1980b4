//! The store contract on Redis, call by call. A lock without waiters takes the shorter way of `uncontended`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::select_ok;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Fencing, Grant, QueueTicket,
    Released, Renewal, Store, WaitPolicy, require_runtime,
};
use tenure_core::{
    AuditRecord, Effect, Error, ErrorKind, Finding, Holder, LockName, LockState, Mode, Result,
    Token,
};

use crate::config::{CellUpdates, RedisConfig, Topology};
use crate::diagnose;
use crate::fault::{CONNECT, fault, no_answer};
use crate::held::HeldClaims;
use crate::inbox::{Inbox, Sent, WaiterRegistry};
use crate::inspect::{self, Pages};
use crate::keys::{Keyring, Keys};
use crate::scripts::{Call, Scripts};
use crate::servers::Servers;
use crate::transactions::Transactions;
use crate::wire::{Arg, Command, MessageListener, Value, cmd};

/// How often a claim is sent while each call removes expired holders: enough for a quarter of a million.
const MAX_CLAIM_CALLS: usize = 1024;

/// Locks on Redis.
pub struct RedisStore {
    pub(crate) config: RedisConfig,
    pub(crate) servers: Servers,
    /// Connections for renewals only, made by the first renewal and served by its runtime: that of the
    /// client's keeper, so renewals go on while the program's runtime is blocked or has ended. Claims that
    /// `WAIT` for replicas do not delay them either.
    pub(crate) renewals: Servers,
    pub(crate) keyring: Keyring,
    pub(crate) scripts: Arc<Scripts>,
    /// What swaps cells, unless scripts do.
    pub(crate) transactions: Option<Transactions>,
    pub(crate) inbox: Inbox,
    /// Holds whose value in Redis is known to the byte: locks that were taken while they were free.
    pub(crate) taken: HeldClaims,
    /// The `WAIT` behind every command that grants or renews, where replicas count.
    pub(crate) wait: Option<Command>,
}

impl RedisStore {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`Unreachable`](ErrorKind::Unreachable) if none answers in time,
    /// [`Denied`](ErrorKind::Denied) for credentials that are refused, and
    /// [`Invalid`](ErrorKind::Invalid) for a configuration that cannot work.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        require_runtime(CONNECT)?;
        // Every step has a timeout of its own; this one is for all steps together.
        let (late, timeout) = (no_answer(&config), config.timeout);
        let waiters = Arc::new(WaiterRegistry::default());
        let listener = Arc::clone(&waiters);
        let opened = Self::open(config, waiters, listener);
        tokio::time::timeout(timeout, opened).await.unwrap_or(Err(late))
    }

    /// Connects. `listener` receives all messages.
    pub(crate) async fn open(
        config: RedisConfig,
        waiters: Arc<WaiterRegistry>,
        listener: Arc<dyn MessageListener>,
    ) -> Result<Self> {
        let cluster = matches!(config.topology, Topology::Cluster { .. });
        let servers = Servers::connect(&config, Some(listener)).await?;
        let scripts = Arc::new(Scripts::load(&servers, servers.is_sharded()).await?);
        let keyring = Keyring::new(&config.prefix, cluster);
        let inbox = Inbox::new(keyring.clone(), servers.clone(), Arc::clone(&scripts), waiters);
        let renewals = servers.with_own_connections()?;
        let by_watch = config.cells == CellUpdates::Watch;
        let transactions = by_watch.then(|| Transactions::new(servers.clone()));
        let limit = millis(config.timeout / 2);
        let wait = cmd("WAIT").number(config.replicas).number(limit);
        let wait = (config.replicas > 0).then_some(wait);
        let taken = HeldClaims::default();
        Ok(Self { config, servers, renewals, keyring, scripts, transactions, inbox, taken, wait })
    }

    async fn ask(&self, claim: &Claim, keys: &Keys, lease: Duration) -> Result<ClaimOutcome> {
        let kind: Cow<'_, str> = match claim.mode {
            Mode::Exclusive => "x 0 0".into(),
            Mode::Shared => "s 1 0".into(),
            Mode::Permits { take, of } => format!("p {take} {of}").into(),
        };
        let (origin, inbox) = (origin_text(claim), self.inbox.channel(keys));
        let arguments: [Arg<'_>; 6] = [
            claim.owner.into(),
            (&*kind).into(),
            millis(claim.ttl).into(),
            (&origin).into(),
            millis(lease).into(),
            (&*inbox).into(),
        ];
        let call = Call {
            operation: "acquire",
            slot: keys.slot,
            keys: &keys.all(),
            arguments: if lease.is_zero() { &arguments[..4] } else { &arguments },
            wait: self.wait.as_ref(),
        };
        // Each call removes some expired holders; another call follows if more are left.
        for _ in 0..MAX_CLAIM_CALLS {
            let sent = self.inbox.sending();
            let (reply, acknowledged) = self.scripts.claim.run(&self.servers, call).await?;
            if let Some(answer) = self.answer(claim, Some(sent), &reply)? {
                return self.confirm(claim, answer, acknowledged).await;
            }
        }
        Ok(ClaimOutcome::Busy)
    }

    /// The outcome that a script returned. `None` if another call has to follow.
    pub(crate) fn answer(
        &self,
        claim: &Claim,
        sent: Option<Sent>,
        reply: &Value,
    ) -> Result<Option<ClaimOutcome>> {
        let Value::Text(words) = reply else { return Err(unexpected_reply("acquire")) };
        let words = std::str::from_utf8(words).map_err(|_| unexpected_reply("acquire"))?;
        let mut words = words.split(' ');
        let words = [words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
        Ok(match (words, sent) {
            (["granted", token, _], _) => {
                self.inbox.forget(claim.owner);
                let token = self.wanted(token.parse().ok().map(Token::new));
                Some(ClaimOutcome::Granted(Grant::new(token, None)))
            }
            (["queued", again, server_us], Some(sent)) => {
                let server_us = server_us.parse().map_err(|_| unexpected_reply("acquire"))?;
                let ask_again_in = again.parse().ok().map(Duration::from_millis);
                self.inbox.queued(claim.owner, sent, server_us, ask_again_in);
                Some(ClaimOutcome::Queued(QueueTicket::new(ask_again_in).tended()))
            }
            (["busy", ..], _) => {
                self.inbox.forget(claim.owner);
                Some(ClaimOutcome::Busy)
            }
            (["held", ..], _) => Some(ClaimOutcome::Busy),
            (["ask" | "more", ..], _) => None,
            _ => return Err(unexpected_reply("acquire")),
        })
    }

    /// Undoes a grant that too few replicas have acknowledged.
    pub(crate) async fn confirm(
        &self,
        claim: &Claim,
        answer: ClaimOutcome,
        acknowledged: Option<Value>,
    ) -> Result<ClaimOutcome> {
        if !matches!(answer, ClaimOutcome::Granted(_)) {
            return Ok(answer);
        }
        let Err(error) = self.check_replicas("acquire", acknowledged) else { return Ok(answer) };
        if error.kind() != ErrorKind::QuorumLost {
            // The client undoes a claim whose effect is unknown.
            return Err(error);
        }
        self.release(claim).await.map_err(Error::with_unknown_effect)?;
        Err(error.about(&claim.name))
    }

    /// Makes a renewal over the connection for renewals. While that is dialled, and if the server has none to
    /// spare, the other connection serves: it is harmless to renew twice.
    pub(crate) async fn over_renewals<'a, T, F>(
        &'a self,
        slot: u16,
        over: impl Fn(&'a Servers) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'a,
    {
        if self.renewals.is_connected(slot) {
            return over(&self.renewals).await;
        }
        let both = [over(&self.renewals).boxed(), over(&self.servers).boxed()];
        select_ok(both).await.map(|(value, _)| value)
    }

    /// Fails unless as many replicas as the configuration asks for have acknowledged a write.
    pub(crate) fn check_replicas(
        &self,
        operation: &'static str,
        acknowledged: Option<Value>,
    ) -> Result<()> {
        let wanted = self.config.replicas;
        let acknowledged = match acknowledged {
            None => return Ok(()),
            Some(Value::Integer(count)) => u32::try_from(count).unwrap_or(0),
            Some(Value::Refusal(refusal)) => {
                return Err(fault(operation, &refusal).with_unknown_effect());
            }
            Some(_) => 0,
        };
        if acknowledged >= wanted {
            return Ok(());
        }
        let why = format!("only {acknowledged} of {wanted} replicas have acknowledged it");
        Err(Error::new(ErrorKind::QuorumLost, operation, why))
    }

    /// Without fencing there are no tokens, even if the queue of other clients made one.
    fn wanted(&self, token: Option<Token>) -> Option<Token> {
        token.filter(|_| self.config.fencing)
    }
}

impl RedisStore {
    /// Reads a lock page by page.
    async fn read_pages(&self, name: &LockName, mut pages: Pages) -> Result<LockState> {
        let keys = self.keyring.keys(name);
        let [all @ .., _] = &keys.all();
        while let Some(arguments) = pages.next() {
            let (slot, arguments) = (keys.slot, &arguments);
            let call = Call { operation: "inspect", slot, keys: all, arguments, wait: None };
            pages.add(self.scripts.inspect.run(&self.servers, call).await?.0)?;
        }
        let mut state = pages.finish();
        for holder in &mut state.holders {
            holder.token = self.wanted(holder.token);
        }
        Ok(state)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let fencing = if self.config.fencing {
            Fencing::Until {
                fault: "the server loses data while its clock is behind the last token's \
                        millisecond",
            }
        } else {
            Fencing::None
        };
        let promised = Capabilities::none()
            .fencing(fencing)
            .fifo()
            .waiters()
            .push()
            .shared()
            .permits()
            .mixed_modes()
            .downgrade()
            .audits()
            .cross_process();
        // A bare `SET` cannot record the server's time.
        if self.config.fencing { promised.ages() } else { promised }
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let keys = self.keyring.keys(&claim.name);
        let taken = self.take(claim, &keys).await?;
        if let Some(answer @ ClaimOutcome::Granted(_)) = taken {
            return Ok(answer);
        }
        let WaitPolicy::Queue { lease, poll } = policy else {
            return match taken {
                Some(answer) => Ok(answer),
                None => self.ask(claim, &keys, Duration::ZERO).await,
            };
        };
        // A claim is queued only after its client has subscribed, and a client subscribes only when a
        // claim must wait.
        if taken.is_none() && !self.inbox.is_subscribed(&keys) && !self.inbox.is_queued(claim.owner)
        {
            match self.ask(claim, &keys, Duration::ZERO).await? {
                ClaimOutcome::Busy => {}
                answer => return Ok(answer),
            }
        }
        // Once the claim is registered, the channel is kept.
        self.inbox.enter(claim.owner, keys.slot, lease, poll);
        if let Err(error) = self.inbox.subscribe(&keys).await {
            if !self.inbox.is_queued(claim.owner) {
                self.inbox.forget(claim.owner);
            }
            return Err(error);
        }
        // The caller may stop waiting for the reply.
        let assume_queued = self.inbox.assume_queued(claim.owner);
        let answer = self.ask(claim, &keys, lease).await;
        match &answer {
            Err(error) if error.effect() == Effect::Unknown => drop(assume_queued),
            _ => assume_queued.settle(),
        }
        if answer.is_err() && !self.inbox.is_queued(claim.owner) {
            self.inbox.forget(claim.owner);
        }
        answer
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        let Some((pushed, since)) = self.inbox.pushed(claim).await else {
            return Ok(ClaimOutcome::Queued(*ticket));
        };
        if self.config.replicas > 0 {
            // Asking again confirms the grant with the replicas.
            return Ok(ClaimOutcome::Queued(*ticket));
        }
        self.inbox.forget(claim.owner);
        let token = self.wanted(pushed.token);
        Ok(ClaimOutcome::Granted(Grant::new(token, Some(since))))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        let keys = self.keyring.keys(&claim.name);
        if self.set_unchanged(claim, &keys).await.map_err(|error| error.about(&claim.name))? {
            return Ok(Renewal::Renewed);
        }
        let [holder, _, _, pool, ends, _] = keys.all();
        let (keys_used, arguments) =
            ([holder, pool, ends], [claim.owner.into(), millis(claim.ttl).into()]);
        let over = |servers| {
            let (slot, keys, arguments) = (keys.slot, &keys_used[..], &arguments[..]);
            let call = Call { operation: "renew", slot, keys, arguments, wait: self.wait.as_ref() };
            self.scripts.renew.run_or(&self.scripts.single_key, servers, call)
        };
        match self.over_renewals(keys.slot, over).await? {
            (Value::Integer(1), acknowledged) => {
                let checked = self.check_replicas("renew", acknowledged);
                let unknown = |error: Error| error.about(&claim.name).with_unknown_effect();
                checked.map(|()| Renewal::Renewed).map_err(unknown)
            }
            (Value::Integer(0), _) => Ok(Renewal::Lost),
            _ => Err(unexpected_reply("renew")),
        }
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let keys = self.keyring.keys(&claim.name);
        // The holder's value changes: renewals and the release are the scripts' from now on.
        self.taken.remove(claim.owner);
        let call = Call {
            operation: "downgrade",
            slot: keys.slot,
            keys: &keys.all(),
            arguments: &[claim.owner.into(), millis(claim.ttl).into()],
            wait: self.wait.as_ref(),
        };
        match self.scripts.downgrade.run(&self.servers, call).await? {
            (Value::Integer(0), _) => Ok(Downgraded::Lost),
            (reply, acknowledged) => {
                let token = reply.text().ok_or_else(|| unexpected_reply("downgrade"))?;
                let unknown = |error: Error| error.about(&claim.name).with_unknown_effect();
                self.check_replicas("downgrade", acknowledged).map_err(unknown)?;
                let token = self.wanted(token.parse().ok().map(Token::new));
                Ok(Downgraded::Shared(Grant::new(token, None)))
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let keys = self.keyring.keys(&claim.name);
        self.inbox.forget(claim.owner);
        if self.delete_unchanged(claim, &keys).await? {
            return Ok(Released::Released);
        }
        let call = Call {
            operation: "release",
            slot: keys.slot,
            keys: &keys.all(),
            arguments: &[claim.owner.into()],
            wait: None,
        };
        let Scripts { release, single_key, .. } = &*self.scripts;
        released("release", &release.run_or(single_key, &self.servers, call).await?.0)
    }

    async fn claim_together(&self, claims: &[Claim]) -> Result<Option<Vec<Grant>>> {
        self.take_together(claims).await
    }

    async fn release_together(&self, claims: &[Claim]) -> Result<bool> {
        self.free_together(claims).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.read_pages(name, Pages::new(name)).await
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        Ok(self.read_pages(name, Pages::of_holders(name)).await?.holders)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut names = Vec::new();
        for server in &self.servers.all().await? {
            inspect::scan(server, &self.keyring, prefix, &mut names).await?;
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let keys = self.keyring.keys(&eviction.name);
        let (owner, record) = (&eviction.owner, eviction.record().to_line());
        let value = inspect::unspell(owner).unwrap_or_else(|| owner.clone().into_bytes());
        let call = Call {
            operation: "evict",
            slot: keys.slot,
            keys: &[&keys.all()[..], &[keys.audit()]].concat(),
            arguments: &[owner.into(), (&record).into(), (&value).into()],
            wait: None,
        };
        released("evict", &self.scripts.evict.run(&self.servers, call).await?.0)
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        let keys = self.keyring.keys(name);
        let read = inspect::read_audit(keys.audit());
        let (reply, _) = self.servers.call("read the records of", keys.slot, &read, None).await?;
        inspect::audit_records(reply)
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        let (keys, line) = (self.keyring.keys(name), record.to_line());
        let call = Call {
            operation: "write a record of",
            slot: keys.slot,
            keys: &[keys.audit()],
            arguments: &[(&line).into()],
            wait: None,
        };
        self.scripts.record.run(&self.servers, call).await.map(drop)
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        diagnose::diagnose(self, &self.config, &self.servers.all().await?, None).await
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("config", &self.config).finish_non_exhaustive()
    }
}

pub(crate) fn released(operation: &'static str, reply: &Value) -> Result<Released> {
    match reply {
        Value::Integer(1) => Ok(Released::Released),
        Value::Integer(0) => Ok(Released::NotHeld),
        _ => Err(unexpected_reply(operation)),
    }
}

pub(crate) fn unexpected_reply(operation: &'static str) -> Error {
    let why = "the reply is unexpected: is this a Redis server?";
    Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect()
}

/// `<pid> <host> <label>`
pub(crate) fn origin_text(claim: &Claim) -> String {
    format!("{} {} {}", claim.origin.pid, word(&claim.origin.host), claim.label)
}

/// A host name has no spaces; if one had, it must not shift the words behind it.
fn word(text: &str) -> Cow<'_, str> {
    match text {
        "" => "-".into(),
        text if text.contains(' ') => text.replace(' ', "_").into(),
        text => text.into(),
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
