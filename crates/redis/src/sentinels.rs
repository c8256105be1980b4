//! The Sentinels, and which server they name as the master.
//!
//! Each has one connection, which lasts. All are asked at once, more than half of them must answer, and
//! the answer with the highest configuration epoch counts: a Sentinel that was cut off goes on naming
//! the old master, with an older epoch. If fewer answer, no server is connected to: those that do may be
//! on the wrong side of a partition, together with the old master, which would go on granting locks. A
//! connection that exists is kept. So the configuration should name all Sentinels, and none that is
//! gone for good. The highest epoch is remembered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::config::{RedisConfig, Topology};
use crate::fault::{CONNECT, fault, no_answer};
use crate::link::Link;
use crate::servers::Address;
use crate::wire::{Value, cmd};

pub(crate) struct Sentinels {
    links: Vec<Link>,
    service: String,
    config: RedisConfig,
    /// The highest configuration epoch seen so far.
    epoch: AtomicU64,
}

/// The reply of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    master: Address,
    /// 0 if this user may not ask for the epoch.
    epoch: u64,
}

/// How long the other Sentinels have once most have answered.
const COURTESY: Duration = Duration::from_millis(50);

impl Sentinels {
    pub(crate) fn new(config: &RedisConfig, addresses: &[Address], service: &str) -> Result<Self> {
        let link = |address: &Address| {
            let topology = Topology::Single { server: address.clone() };
            Link::to_sentinel(&RedisConfig { topology, database: 0, ..config.clone() })
        };
        Ok(Self {
            links: addresses.iter().map(link).collect::<Result<_>>()?,
            service: service.to_owned(),
            config: config.clone(),
            epoch: AtomicU64::new(0),
        })
    }

    /// The servers that may be the master, the likeliest first: more than one only if Sentinels
    /// disagree within one epoch.
    pub(crate) fn masters(&self) -> BoxFuture<'_, Result<Vec<Address>>> {
        // Boxed, because a link dials through its Sentinels, and these have links: the type is recursive.
        self.find().boxed()
    }

    async fn find(&self) -> Result<Vec<Address>> {
        let mut asked: FuturesUnordered<_> = self.links.iter().map(|link| self.ask(link)).collect();
        // The rest of the time is for the connection to the master.
        let mut end = Instant::now() + self.config.step_limit() / 2;
        let (mut said, mut telling) = (Vec::new(), no_answer(&self.config));
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, asked.next()).await {
            match answer {
                Ok(named) => said.push(named),
                // A refusal says more than that another Sentinel is down.
                Err(error) if telling.is_transient() => telling = error,
                Err(_) => {}
            }
            if said.len() > self.links.len() / 2 {
                end = end.min(Instant::now() + COURTESY);
            }
        }
        if said.len() <= self.links.len() / 2 {
            let told = said.is_empty() || !telling.is_transient();
            return Err(if told { telling } else { self.too_few(said.len(), &telling) });
        }
        let (masters, epoch) = choose(&said, self.links.len(), self.epoch.load(Ordering::Acquire));
        if masters.is_empty() {
            return Err(outdated());
        }
        self.epoch.store(epoch, Ordering::Release);
        Ok(masters)
    }

    fn too_few(&self, answered: usize, telling: &Error) -> Error {
        let (named, needed) = (self.links.len(), self.links.len() / 2 + 1);
        let why = format!(
            "{answered} of {named} Sentinels answer, {needed} are needed: fewer may be cut off and name \
             an old master; bring the others back, or name only those that exist ({telling})"
        );
        Error::new(ErrorKind::Unreachable, CONNECT, why)
    }

    async fn ask(&self, link: &Link) -> Result<Named> {
        // While a failover goes on, only this names the new master.
        let address = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let details = cmd("SENTINEL").arg("MASTER").arg(&self.service);
        let [named, details] = link.call(CONNECT, [&address, &details]).await?;
        if let Value::Refusal(refusal) = &named {
            return Err(fault(CONNECT, refusal));
        }
        let named = named.texts().unwrap_or_default();
        let epoch = details.field("config-epoch").and_then(Value::text);
        let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        if let [host, port] = &named[..]
            && let Ok(port) = port.parse()
        {
            return Ok(Named { master: (host.clone(), port), epoch });
        }
        let (sentinel, service) = (link.name(), &self.service);
        let why = format!("Sentinel {sentinel} names no master {service}; check the service name");
        Err(Error::new(ErrorKind::Unreachable, CONNECT, why))
    }
}

/// The masters of the highest epoch, ordered by how many Sentinels name each. An epoch below `known`
/// counts only if most of the `sentinels` have it: then they were set up anew.
fn choose(said: &[Named], sentinels: usize, known: u64) -> (Vec<Address>, u64) {
    let Some(highest) = said.iter().map(|named| named.epoch).max() else {
        return (Vec::new(), known);
    };
    let current: Vec<&Named> = said.iter().filter(|named| named.epoch == highest).collect();
    if highest < known && current.len() <= sentinels / 2 {
        return (Vec::new(), known);
    }
    let votes = |master: &Address| current.iter().filter(|named| named.master == *master).count();
    let mut masters: Vec<Address> = current.iter().map(|named| named.master.clone()).collect();
    masters.sort();
    masters.dedup();
    masters.sort_by_key(|master| std::cmp::Reverse(votes(master)));
    (masters, highest)
}

fn outdated() -> Error {
    let why = "the Sentinels that answer are behind what was known before: check the others";
    Error::new(ErrorKind::Unreachable, CONNECT, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(port: u16, epoch: u64) -> Named {
        Named { master: ("host".into(), port), epoch }
    }

    fn chosen(said: &[Named], known: u64) -> (Vec<u16>, u64) {
        let (masters, epoch) = choose(said, 3, known);
        (masters.into_iter().map(|(_, port)| port).collect(), epoch)
    }

    #[test]
    fn the_highest_epoch_counts_and_then_the_most_votes() {
        assert_eq!(chosen(&[], 0), (vec![], 0));
        assert_eq!(chosen(&[named(1, 0)], 0), (vec![1], 0));
        assert_eq!(chosen(&[named(1, 1), named(1, 1), named(2, 2)], 0), (vec![2], 2));
        assert_eq!(chosen(&[named(2, 1), named(1, 1), named(2, 1)], 0), (vec![2, 1], 1));
    }

    #[test]
    fn an_older_epoch_is_not_believed_unless_most_sentinels_have_it() {
        assert_eq!(chosen(&[named(1, 1)], 2), (vec![], 2), "one that was cut off");
        assert_eq!(chosen(&[named(1, 1), named(1, 1)], 2), (vec![1], 1), "set up anew");
        assert_eq!(chosen(&[named(1, 1), named(1, 0)], 2), (vec![], 2));
    }
}
