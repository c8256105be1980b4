//! Locks in the layout of Redisson, the Java client: its locks exclude ours and ours exclude its locks.
//!
//! # Data in Redis
//!
//! A lock `orders` uses these keys, all in the hash slot of the first:
//!
//! | key | type | content |
//! |---|---|---|
//! | `orders` | hash, PX | a field for each holder, `<UUID>:<thread>`, with its count; `mode` in read-write locks, and in every exclusive hold of ours |
//! | `{orders}:<holder>:rwlock_timeout:1` | string, PX | the term of a reader; the value of ours is its note |
//! | `redisson_lock_token:{orders}` | string | the last fencing token, shared with `RFencedLock` |
//! | `redisson_lock_queue:{orders}`, `redisson_lock_timeout:{orders}` | list, zset | the waiters of `RFairLock` |
//! | `tenure_holder:{orders}` | string, PX | a note of our exclusive holder: token, time, process, label |
//! | `tenure_audit:{orders}` | list | evictions and revocations |
//! | `tenure:{tenure:orders}:cell` and others | string | values beside locks, as in the other dialect |
//!
//! A semaphore `encoders` has these instead of the first two and of the note:
//!
//! | key | type | content |
//! |---|---|---|
//! | `encoders` | string | how many permits are free: `RSemaphore` and `RPermitExpirableSemaphore` count alike |
//! | `{encoders}:timeout` | zset | a member for each permit with a term, and the millisecond in which it ends |
//! | `tenure_holder:{encoders}:<owner>` | string, PX | a note of a holder of ours |
//!
//! Permits of the parties of latches and barriers are in the layout of the other dialect, under the prefix
//! `tenure:`: programs do not use them as semaphores, and they leave no keys behind.
//!
//! A claim is one holder: its id as a UUID, with the thread `0`. Threads of Java are counted from 1.
//!
//! # One layout for both kinds of Redisson lock
//!
//! Redisson's `RLock` and `RReadWriteLock` must not share a name: a reader that finds a hash without `mode`
//! joins a plain lock's holder. A store cannot know for which of the two a program asks. So an exclusive
//! hold of ours is a plain lock's hash with `mode=write` besides: to a plain, fair or fenced lock the hash
//! exists, and to a reader or writer it is written by another one. A release publishes for both. A hold of
//! Redisson's, of either kind, is respected by our readers and writers.
//!
//! # Waiting
//!
//! Redisson keeps its waiters in its processes, and so does this dialect: no order among clients, and none
//! shown. A claim that must wait subscribes to the channels on which the end of the present hold is published, asks
//! once more, and then waits for a message, for the end of the holder's term, or for the poll cap. While
//! waiters of a fair lock are in their queue, a free lock is theirs: `lua/redisson/fair.lua` says when one of them
//! counts as gone. Ours do not queue there: that a lock is a fair one shows only while Java programs queue for it,
//! and each of them removes those from the queue whose time-outs are over by its own clock.
//!
//! # What is refused
//!
//! - One name for a semaphore and another kind of lock: the keys differ. A counter is not told from a
//!   semaphore, though: Redisson's `RSemaphore`, `RCountDownLatch` and `RAtomicLong` look alike.
//! - A lock that is no semaphore under a name that belongs to the parties of a latch or barrier: it would not
//!   exclude a Java program's.
//! - A name under which something else is stored, for example a lock of another client: the error says what
//!   it looks like, and nothing is touched.

mod family;
mod inspect;
mod names;
mod permits;
mod scripts;
#[cfg(test)]
mod scripts_tests;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Fencing, Grant, QueueTicket,
    Released, Renewal, Store, WaitPolicy, is_for_parties, require_runtime,
};
use tenure_core::{
    AuditRecord, Error, ErrorKind, Finding, Holder, LockName, LockState, Mode, OwnerId, Result,
    Token,
};
use tokio::task::AbortHandle;

use crate::config::{RedisConfig, Topology};
use crate::diagnose;
use crate::fault::{CONNECT, no_answer};
use crate::inbox::WaiterRegistry;
use crate::inspect as redis_inspect;
use crate::scripts::Call;
use crate::store::{RedisStore, millis, origin_text, released, unexpected_reply};
use crate::wire::{Arg, MessageListener, Value};
pub(crate) use names::keys_and_channels;
use names::{Channel, Names, holder, lock_of_channel};
use scripts::Scripts;
use waiters::{Waiters, Wanted};

/// How often a claim asks before it waits: the holder may change between two requests, and with it the
/// channel to listen to.
const ASKS: usize = 3;

/// How often channels are looked for on which no claim waits.
const SWEEP: Duration = Duration::from_secs(5);

/// Locks on Redis in the layout of Redisson.
pub struct RedissonStore {
    /// Connections, the leases of parties, and what is kept beside locks.
    base: RedisStore,
    prefix: String,
    cluster: bool,
    scripts: Scripts,
    waiters: Arc<Waiters>,
    sweeper: Mutex<Option<AbortHandle>>,
}

/// What the server answers to a claim.
enum Asked {
    Granted(Grant),
    /// When the lock may be free, and the channels that may say so before.
    Busy {
        again: Option<Duration>,
        channels: &'static [Channel],
    },
}

impl RedissonStore {
    /// Connects to the servers. The prefix belongs to the name of a lock, as Redisson knows it: set it to
    /// the empty string, unless its clients have a name mapper that adds the same.
    ///
    /// # Errors
    /// As [`RedisStore::connect`].
    pub async fn connect(mut config: RedisConfig) -> Result<Self> {
        config.check()?;
        require_runtime(CONNECT)?;
        let prefix = std::mem::take(&mut config.prefix);
        config.prefix = format!("tenure:{prefix}");
        let (late, timeout) = (no_answer(&config), config.timeout);
        let opened = tokio::time::timeout(timeout, Self::open(config, prefix)).await;
        opened.unwrap_or(Err(late))
    }

    async fn open(config: RedisConfig, prefix: String) -> Result<Self> {
        let cluster = matches!(config.topology, Topology::Cluster { .. });
        let waiters = Arc::new(Waiters::default());
        let inbox = Arc::default();
        let listener = Listeners { redisson: Arc::clone(&waiters), inbox: Arc::clone(&inbox) };
        let base = RedisStore::open(config, inbox, Arc::new(listener)).await?;
        let scripts = Scripts::load(&base.servers, base.servers.is_sharded()).await?;
        Ok(Self { base, prefix, cluster, scripts, waiters, sweeper: Mutex::default() })
    }

    /// The store for a lock that Java programs do not know. Every call on a lock comes through here first.
    fn own_layout(&self, name: &LockName) -> Option<&RedisStore> {
        is_for_parties(name).then_some(&self.base)
    }

    fn names(&self, name: &LockName) -> Names {
        Names::new(&self.prefix, name, self.cluster)
    }

    const fn fenced(&self) -> &'static str {
        if self.base.config.fencing { "fenced" } else { "" }
    }

    async fn ask(&self, claim: &Claim, names: &Names) -> Result<Asked> {
        let kind = match claim.mode {
            Mode::Exclusive => "x",
            Mode::Shared => "s",
            Mode::Permits { take, of } => {
                return self.ask_for_permits(claim, names, take, of).await;
            }
        };
        let holder = holder(claim.owner);
        let (timer, origin) = (names.timer(&holder), origin_text(claim));
        let ([queue, timeouts], channel) = (&names.fair, names.channel(Channel::Lock));
        let arguments: [Arg<'_>; 5] = [
            (&holder).into(),
            millis(claim.ttl).into(),
            kind.into(),
            (&origin).into(),
            self.fenced().into(),
        ];
        let call = Call {
            operation: "acquire",
            slot: names.slot,
            keys: &[&names.lock, &names.token, &names.note, &timer, queue, timeouts, &channel],
            arguments: &arguments,
            wait: self.base.wait.as_ref(),
        };
        let (reply, acknowledged) = self.scripts.take.run(&self.base.servers, call).await?;
        let answer = self.answer(claim, names, reply, acknowledged).await?;
        answer.ok_or_else(|| unexpected_reply("acquire"))
    }

    /// What a script has answered to a claim. `None` if it is to be called again.
    async fn answer(
        &self,
        claim: &Claim,
        names: &Names,
        reply: Value,
        acknowledged: Option<Value>,
    ) -> Result<Option<Asked>> {
        let text = reply.text().ok_or_else(|| unexpected_reply("acquire"))?;
        let mut words = text.split(' ');
        match [words.next(), words.next(), words.next()].map(Option::unwrap_or_default) {
            ["granted", token, _] => {
                self.confirm(claim, acknowledged).await?;
                Ok(Some(Asked::Granted(Grant::new(self.wanted(token), None))))
            }
            ["busy", left, channel] => {
                let again = left.parse().ok().map(Duration::from_millis);
                let channels: &[Channel] = match channel {
                    "lock" => &[Channel::Lock],
                    "semaphore" => &[Channel::Semaphore],
                    "reader" => &[Channel::ReadWrite],
                    // A hold of ours, perhaps. Any kind of lock of Redisson's may end it by force.
                    _ => &[Channel::ReadWrite, Channel::Lock],
                };
                Ok(Some(Asked::Busy { again, channels }))
            }
            ["foreign", ..] => {
                let wanted = match claim.mode {
                    Mode::Permits { .. } => "semaphore",
                    _ => "lock",
                };
                Err(self.foreign("acquire", names, wanted).await.about(&claim.name))
            }
            ["latch", ..] => Err(Self::awaited_latch(names).about(&claim.name)),
            ["more", ..] => Ok(None),
            _ => Err(unexpected_reply("acquire")),
        }
    }

    /// Undoes a grant that too few replicas have acknowledged.
    async fn confirm(&self, claim: &Claim, acknowledged: Option<Value>) -> Result<()> {
        let Err(error) = self.base.check_replicas("acquire", acknowledged) else { return Ok(()) };
        if error.kind() == ErrorKind::QuorumLost {
            self.release(claim).await.map_err(Error::with_unknown_effect)?;
        }
        Err(error.about(&claim.name))
    }

    fn wanted(&self, token: &str) -> Option<Token> {
        token.parse().ok().map(Token::new).filter(|_| self.base.config.fencing)
    }

    fn is_subscribed(&self, names: &Names, channel: Channel) -> bool {
        self.base.servers.listens_to(names.slot, &names.channel(channel))
    }

    async fn subscribe(&self, names: &Names, channel: Channel) -> Result<()> {
        self.base.servers.subscribe(names.slot, &names.channel(channel)).await?;
        self.waiters.track(&names.lock, channel, names.slot);
        let mut sweeper = self.sweeper.lock();
        if sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            let (waiters, servers) = (Arc::downgrade(&self.waiters), self.base.servers.clone());
            let sweep = async move {
                loop {
                    tokio::time::sleep(SWEEP).await;
                    let Some(waiters) = waiters.upgrade() else { return };
                    let leave = |lock: &str, channel, slot| {
                        servers.unsubscribe(slot, &Names::of_key(lock, slot).channel(channel));
                    };
                    if !waiters.sweep(leave) {
                        return;
                    }
                }
            };
            *sweeper = Some(tokio::spawn(sweep).abort_handle());
        }
        Ok(())
    }
}

#[async_trait]
impl Store for RedissonStore {
    fn capabilities(&self) -> Capabilities {
        let fencing = if self.base.config.fencing {
            Fencing::Until {
                fault: "the server loses the counter of a lock, by a failover, a restart without \
                        persistence, an eviction of keys or a deletion",
            }
        } else {
            Fencing::None
        };
        let promised = Capabilities::none().fencing(fencing).push().shared().permits().downgrade();
        promised.audits().cross_process().ages()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        if let Some(own) = self.own_layout(&claim.name) {
            let Mode::Permits { .. } = claim.mode else { return Err(for_parties_only(claim)) };
            return own.claim(claim, policy).await;
        }
        let names = self.names(&claim.name);
        let mut again = None;
        for _ in 0..ASKS {
            let listened = Channel::ALL.map(|channel| self.is_subscribed(&names, channel));
            let registered = self.waiters.asking(claim.owner);
            let channels = match self.ask(claim, &names).await? {
                Asked::Granted(grant) => {
                    self.waiters.forget(claim.owner, true);
                    return Ok(ClaimOutcome::Granted(grant));
                }
                Asked::Busy { again: left, channels } => {
                    again = left;
                    channels
                }
            };
            if policy == WaitPolicy::NoWait {
                return Ok(ClaimOutcome::Busy);
            }
            if registered && channels.iter().all(|channel| listened[*channel as usize]) {
                self.waiters.refused(claim.owner);
                break;
            }
            // What happens from here on is heard; what happened before is found by asking again.
            let wanted = match claim.mode {
                Mode::Exclusive => Wanted::Writer,
                Mode::Shared => Wanted::Reader,
                Mode::Permits { take, .. } => Wanted::Permits(take),
            };
            self.waiters.enter(claim.owner, &names.lock, wanted);
            for channel in channels {
                self.subscribe(&names, *channel).await?;
            }
        }
        Ok(ClaimOutcome::Queued(QueueTicket::new(again)))
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        if let Some(own) = self.own_layout(&claim.name) {
            return own.wait(claim, ticket).await;
        }
        self.waiters.woken(claim.owner).await;
        Ok(ClaimOutcome::Queued(*ticket))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        if let Some(own) = self.own_layout(&claim.name) {
            return own.renew(claim).await;
        }
        let (names, holder) = (self.names(&claim.name), holder(claim.owner));
        let (reply, acknowledged) = if let Mode::Permits { take, .. } = claim.mode {
            self.renew_permits(claim, &names, take).await?
        } else {
            let timer = names.timer(&holder);
            let keys = [&*names.lock, &names.note, &timer];
            let arguments = [(&holder).into(), Arg::from(millis(claim.ttl))];
            let (slot, wait) = (names.slot, self.base.wait.as_ref());
            let call = Call { operation: "renew", slot, keys: &keys, arguments: &arguments, wait };
            let over = |servers| self.scripts.renew.run(servers, call);
            self.base.over_renewals(names.slot, over).await?
        };
        if released("renew", &reply)? == Released::NotHeld {
            return Ok(Renewal::Lost);
        }
        let unknown = |error: Error| error.about(&claim.name).with_unknown_effect();
        self.base.check_replicas("renew", acknowledged).map_err(unknown)?;
        Ok(Renewal::Renewed)
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        if let Some(own) = self.own_layout(&claim.name) {
            return own.downgrade(claim).await;
        }
        let (names, holder) = (self.names(&claim.name), holder(claim.owner));
        let (timer, channel) = (names.timer(&holder), names.channel(Channel::ReadWrite));
        let call = Call {
            operation: "downgrade",
            slot: names.slot,
            keys: &[&names.lock, &names.note, &timer, &channel],
            arguments: &[(&holder).into(), millis(claim.ttl).into()],
            wait: self.base.wait.as_ref(),
        };
        let (reply, acknowledged) = self.scripts.downgrade.run(&self.base.servers, call).await?;
        if reply == Value::Integer(0) {
            return Ok(Downgraded::Lost);
        }
        let token = reply.text().ok_or_else(|| unexpected_reply("downgrade"))?;
        let unknown = |error: Error| error.about(&claim.name).with_unknown_effect();
        self.base.check_replicas("downgrade", acknowledged).map_err(unknown)?;
        Ok(Downgraded::Shared(Grant::new(self.wanted(&token), None)))
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        if let Some(own) = self.own_layout(&claim.name) {
            return own.release(claim).await;
        }
        self.waiters.forget(claim.owner, false);
        let (names, holder) = (self.names(&claim.name), holder(claim.owner));
        let timer = names.timer(&holder);
        let [lock, rwlock] = [Channel::Lock, Channel::ReadWrite].map(|one| names.channel(one));
        let call = Call {
            operation: "release",
            slot: names.slot,
            keys: &[&names.lock, &names.note, &lock, &rwlock, &names.fair[0], &timer],
            arguments: &[(&holder).into(), (&names.stem).into()],
            wait: None,
        };
        if let Mode::Permits { .. } = claim.mode {
            return self.release_permits(claim.owner, &names).await;
        }
        match self.scripts.release.run(&self.base.servers, call).await?.0 {
            // The name is not that of a lock. Of a claim to undo, only the owner may be known.
            Value::Integer(-1) => self.release_permits(claim.owner, &names).await,
            reply => released("release", &reply),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        if let Some(own) = self.own_layout(name) {
            return own.inspect(name).await;
        }
        let names = self.names(name);
        let mut pages = inspect::Pages::new(name, self.base.config.fencing);
        while let Some(cursor) = pages.next() {
            let call = Call {
                operation: "inspect",
                slot: names.slot,
                keys: &[&names.lock, &names.note],
                arguments: &[(&cursor).into(), (&names.stem).into()],
                wait: None,
            };
            let (reply, _) = self.scripts.inspect.run(&self.base.servers, call).await?;
            if pages.add(reply)? {
                let permits = self.inspect_permits(name, &names).await?;
                return match permits {
                    Some(state) => Ok(state),
                    None => Err(self.foreign("inspect", &names, "lock").await.about(name)),
                };
            }
        }
        Ok(pages.finish())
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        match self.own_layout(name) {
            Some(own) => own.holders(name).await,
            None => Ok(self.inspect(name).await?.holders),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut own = self.base.list(prefix).await?;
        own.retain(|name| self.own_layout(name).is_some());
        let mut found = Vec::new();
        for server in &self.base.servers.all().await? {
            inspect::list(server, &self.prefix, prefix, &mut found).await?;
            permits::list(server, &self.prefix, prefix, &mut found).await?;
        }
        found.retain(|name| self.own_layout(name).is_none());
        found.extend(own);
        found.sort();
        found.dedup();
        Ok(found)
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        if let Some(own) = self.own_layout(&eviction.name) {
            return own.evict(eviction).await;
        }
        let names = self.names(&eviction.name);
        let owner: Result<OwnerId> = eviction.owner.parse();
        let field = owner.map_or_else(|_| eviction.owner.clone(), holder);
        let record = eviction.record().to_line();
        let [lock, rwlock] = [Channel::Lock, Channel::ReadWrite].map(|one| names.channel(one));
        let Names { note, fair: [queue, _], token, audit, .. } = &names;
        let call = Call {
            operation: "evict",
            slot: names.slot,
            keys: &[&names.lock, note, &lock, &rwlock, queue, token, audit],
            arguments: &[
                (&field).into(),
                (&names.stem).into(),
                (&record).into(),
                self.fenced().into(),
            ],
            wait: None,
        };
        match self.scripts.evict.run(&self.base.servers, call).await?.0 {
            Value::Integer(-1) => self.evict_permits(eviction, &names, &record).await,
            reply => released("evict", &reply),
        }
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        if let Some(own) = self.own_layout(name) {
            return own.audit(name).await;
        }
        let names = self.names(name);
        let read = redis_inspect::read_audit(&names.audit);
        let servers = &self.base.servers;
        let (reply, _) = servers.call("read the records of", names.slot, &read, None).await?;
        redis_inspect::audit_records(reply)
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        if let Some(own) = self.own_layout(name) {
            return own.add_audit_record(name, record).await;
        }
        let (names, line) = (self.names(name), record.to_line());
        let call = Call {
            operation: "write a record of",
            slot: names.slot,
            keys: &[&names.audit],
            arguments: &[(&line).into()],
            wait: None,
        };
        self.base.scripts.record.run(&self.base.servers, call).await.map(drop)
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(&self.base)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let servers = self.base.servers.all().await?;
        diagnose::diagnose(self, &self.base.config, &servers, Some(&self.prefix)).await
    }
}

fn for_parties_only(claim: &Claim) -> Error {
    let why = "with dialect=redisson, names that begin with `latch:` or `barrier:` are those of tenure's own \
               latches and barriers, so a lock would not exclude one of a Java program: use another name";
    Error::new(ErrorKind::Unsupported, "acquire", why).about(&claim.name)
}

/// Passes messages to the waiters of both layouts.
struct Listeners {
    redisson: Arc<Waiters>,
    inbox: Arc<WaiterRegistry>,
}

impl MessageListener for Listeners {
    fn on_message(&self, channel: &[u8], message: &[u8]) {
        match lock_of_channel(channel) {
            Some(_) => self.redisson.on_message(channel, message),
            None => self.inbox.on_message(channel, message),
        }
    }

    fn on_gap(&self) {
        self.redisson.on_gap();
        self.inbox.on_gap();
    }
}

impl fmt::Debug for RedissonStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedissonStore").field("config", &self.base.config).finish_non_exhaustive()
    }
}
