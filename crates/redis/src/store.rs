//! The contract, call by call.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use rustis::resp::{Value, cmd};
use tenure_core::{
    Answer, Capabilities, Claim, Error, ErrorKind, Eviction, Fencing, Finding, Grant, LockName,
    LockState, Mode, Moment, OwnerId, Patience, Place, Released, Renewal, Result, Store, Token,
    now,
};

use crate::config::{RedisConfig, Topology};
use crate::examine;
use crate::inbox::{Anchor, Inbox};
use crate::inspect;
use crate::keys::{Keyring, Keys};
use crate::list;
use crate::scripts::Scripts;
use crate::servers::Servers;

/// Locks on Redis.
pub struct RedisStore {
    config: RedisConfig,
    servers: Servers,
    /// A way of their own for renewals where claims wait for replicas: WAIT holds up whatever is
    /// behind it on the same connection.
    renewals: Option<Servers>,
    keyring: Keyring,
    scripts: Scripts,
    inbox: Inbox,
}

impl RedisStore {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`Unreachable`](ErrorKind::Unreachable) if none answers in time,
    /// [`Denied`](ErrorKind::Denied) for credentials it does not take, and
    /// [`Invalid`](ErrorKind::Invalid) for a configuration that makes no sense.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        check(&config)?;
        let cluster = matches!(config.topology, Topology::Cluster { .. });
        let servers = Servers::connect(&config).await?;
        let scripts = Scripts::load(&servers, cluster).await?;
        let keyring = Keyring::new(&config.prefix, cluster);
        let inbox = Inbox::open(&config, servers.clone(), OwnerId::random().to_string());
        let renewals = match config.replicas {
            0 => None,
            _ => Some(Servers::connect(&config).await?),
        };
        Ok(Self { config, servers, renewals, keyring, scripts, inbox })
    }

    async fn ask(&self, claim: &Claim, keys: &Keys, patience: Duration) -> Result<Answer> {
        let (kind, take, of) = match claim.mode {
            Mode::Exclusive => ("x", 0, 0),
            Mode::Shared => ("s", 1, 0),
            Mode::Permits { take, of } => ("p", take, of),
        };
        let inbox = self.inbox.channel(&self.keyring, keys);
        let sent = now();
        let simple = !self.config.fencing && kind == "x" && !self.inbox.expects(claim.owner);
        if simple && self.set_if_absent(claim, keys).await? {
            return Ok(Answer::Granted(Grant { token: None, since: None }));
        }
        let reply = self
            .scripts
            .claim
            .run(
                &self.servers,
                keys.slot,
                "acquire",
                &[&keys.holder, &keys.queue, &keys.waiters, &keys.pool, &keys.ends, &keys.token],
                &[
                    &claim.owner.to_string(),
                    kind,
                    &take.to_string(),
                    &of.to_string(),
                    &claim.ttl.as_millis().to_string(),
                    &patience.as_millis().to_string(),
                    &inbox,
                    &claim.origin.pid.to_string(),
                    &word(&claim.origin.host),
                    &claim.label,
                    self.fenced(),
                ],
            )
            .await?;
        self.answer(claim, keys, sent, reply)
    }

    /// The cheapest lock there is: one `SET NX PX`, which any other client would send. Not for one
    /// that has a place in line, which only a script can give up in the same step.
    async fn set_if_absent(&self, claim: &Claim, keys: &Keys) -> Result<bool> {
        let Claim { owner, origin, label, ttl, .. } = claim;
        let value = format!("{owner} - - {} {} {label}", origin.pid, word(&origin.host));
        let set =
            || cmd("SET").key(&keys.holder).arg(&value).arg("NX").arg("PX").arg(ttl.as_millis());
        Ok(self.servers.send("acquire", keys.slot, set).await? != Value::Null)
    }

    fn answer(&self, claim: &Claim, keys: &Keys, sent: Moment, reply: Value) -> Result<Answer> {
        let Value::Array(parts) = reply else { return Err(nonsense("acquire")) };
        let parts: Vec<String> = parts.iter().filter_map(inspect::text).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            ["granted", token, _] => {
                self.inbox.settle(claim.owner, keys);
                let token = self.wanted(token.parse().ok().map(Token::new));
                Ok(Answer::Granted(Grant { token, since: None }))
            }
            ["queued", again, server_us] => {
                let server_us = server_us.parse().map_err(|_| nonsense("acquire"))?;
                self.inbox.expect(claim.owner, Anchor { local: sent, server_us });
                let ask_again_in = again.parse().ok().map(Duration::from_millis);
                Ok(Answer::Queued(Place { ask_again_in, mark: 0 }))
            }
            ["busy"] => Ok(Answer::Busy),
            _ => Err(nonsense("acquire")),
        }
    }

    /// Undoes a grant that too few replicas have.
    async fn confirm(&self, claim: &Claim, keys: &Keys, answer: Answer) -> Result<Answer> {
        let wanted = self.config.replicas;
        if wanted == 0 || !matches!(answer, Answer::Granted(_)) {
            return Ok(answer);
        }
        let limit = (self.config.timeout / 2).as_millis().to_string();
        // On the connection that the grant was made on: it waits for that connection's writes.
        let wait = || cmd("WAIT").arg(wanted).arg(&limit);
        // Whatever goes wrong from here on, the grant is there and must be undone.
        let reply = self.servers.send("acquire", keys.slot, wait).await;
        let acknowledged = match reply.map_err(Error::with_unknown_effect)? {
            Value::Integer(count) => u32::try_from(count).unwrap_or(0),
            _ => return Err(nonsense("acquire")),
        };
        if acknowledged >= wanted {
            return Ok(answer);
        }
        self.release(claim).await.map_err(Error::with_unknown_effect)?;
        let why = format!("only {acknowledged} of {wanted} replicas have it: it was undone");
        Err(Error::new(ErrorKind::QuorumLost, "acquire", why).about(&claim.name))
    }

    /// Without fencing there are no tokens, also where a line that others stand in made one.
    fn wanted(&self, token: Option<Token>) -> Option<Token> {
        token.filter(|_| self.config.fencing)
    }

    fn fenced(&self) -> &'static str {
        if self.config.fencing { "1" } else { "0" }
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
        let mut capabilities = Capabilities::full(fencing);
        capabilities.detects_death = false;
        // A bare SET cannot write down the server's time.
        capabilities.ages = self.config.fencing;
        capabilities
    }

    async fn claim(&self, claim: &Claim, patience: Patience) -> Result<Answer> {
        let keys = self.keyring.keys(&claim.name);
        let answer = match patience {
            Patience::None => self.ask(claim, &keys, Duration::ZERO).await?,
            // Nobody queues before it can hear; nobody subscribes before it must wait.
            Patience::Queue(lease)
                if self.inbox.is_subscribed(&keys) || self.inbox.expects(claim.owner) =>
            {
                self.inbox.subscribe(&self.keyring, &keys).await?;
                self.ask(claim, &keys, lease).await?
            }
            Patience::Queue(lease) => match self.ask(claim, &keys, Duration::ZERO).await? {
                Answer::Busy => {
                    self.inbox.subscribe(&self.keyring, &keys).await?;
                    self.ask(claim, &keys, lease).await?
                }
                answer => answer,
            },
        };
        self.confirm(claim, &keys, answer).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Answer> {
        let Some((news, since)) = self.inbox.news(claim.owner).await else {
            return Ok(Answer::Queued(*place));
        };
        if self.config.replicas > 0 {
            // Asking again confirms it with the replicas.
            return Ok(Answer::Queued(*place));
        }
        self.inbox.forget(claim.owner);
        let (token, since) = (self.wanted(news.token), Some(since.min(now())));
        Ok(Answer::Granted(Grant { token, since }))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        let keys = self.keyring.keys(&claim.name);
        let reply = self
            .scripts
            .renew
            .run(
                self.renewals.as_ref().unwrap_or(&self.servers),
                keys.slot,
                "renew",
                &[&keys.holder, &keys.pool, &keys.ends],
                &[&claim.owner.to_string(), &claim.ttl.as_millis().to_string()],
            )
            .await?;
        match reply {
            Value::Integer(1) => Ok(Renewal::Renewed),
            Value::Integer(0) => Ok(Renewal::Lost),
            _ => Err(nonsense("renew")),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let keys = self.keyring.keys(&claim.name);
        self.inbox.forget(claim.owner);
        let reply = self
            .scripts
            .release
            .run(
                &self.servers,
                keys.slot,
                "release",
                &[&keys.holder, &keys.queue, &keys.waiters, &keys.pool, &keys.ends, &keys.token],
                &[&claim.owner.to_string()],
            )
            .await?;
        released("release", &reply)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let keys = self.keyring.keys(name);
        let reply = self
            .scripts
            .inspect
            .run(
                &self.servers,
                keys.slot,
                "inspect",
                &[&keys.holder, &keys.queue, &keys.waiters, &keys.pool, &keys.ends],
                &[],
            )
            .await?;
        let mut state = inspect::read(name, reply)?;
        for holder in &mut state.holders {
            holder.token = self.wanted(holder.token);
        }
        Ok(state)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut names = Vec::new();
        for server in &self.servers.all().await? {
            list::scan(server, &self.keyring, prefix, &mut names).await?;
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let keys = self.keyring.keys(&eviction.name);
        let Eviction { owner, by, reason, .. } = eviction;
        let record = format!("{owner} by {} {}: {reason}", by.host, by.pid);
        let reply = self
            .scripts
            .evict
            .run(
                &self.servers,
                keys.slot,
                "evict",
                &[
                    &keys.holder,
                    &keys.queue,
                    &keys.waiters,
                    &keys.pool,
                    &keys.ends,
                    &keys.token,
                    &keys.audit,
                ],
                &[owner, &record],
            )
            .await?;
        released("evict", &reply)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(self, &self.config, &self.servers.any().await?).await
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("config", &self.config).finish_non_exhaustive()
    }
}

fn check(config: &RedisConfig) -> Result<()> {
    let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, "use this Redis store", why));
    if config.prefix.contains(['{', '}']) {
        return invalid("a prefix cannot contain braces");
    }
    if matches!(config.topology, Topology::Cluster { .. }) && config.database != 0 {
        return invalid("a Cluster has database 0 only: leave the number away");
    }
    Ok(())
}

fn released(operation: &'static str, reply: &Value) -> Result<Released> {
    match reply {
        Value::Integer(1) => Ok(Released::Released),
        Value::Integer(0) => Ok(Released::NotHeld),
        _ => Err(nonsense(operation)),
    }
}

fn nonsense(operation: &'static str) -> Error {
    let why = "the reply makes no sense: is this a Redis server?";
    Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect()
}

/// Host names have no spaces; should one have, it must not shift the words behind it.
fn word(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.replace(' ', "_") }
}
