//! Calls to all nodes: releases, evictions, inspections, lists.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::store::{Moment, Released, now};
use tenure_core::{AuditRecord, LockName, LockState, Result};
use tenure_proto::quorum::{Majority, Reply, Tally};

use super::Quorum;
use super::nodes::Fault;
use super::replies::{Replies, ReplyEvent};
use super::unconfirmed_releases::Release;
use crate::inspect::{self, Pages};
use crate::wire::{self, Command, Value};

/// A call that a majority of nodes must carry out.
struct MajorityCall {
    limit: Duration,
    replies: Replies<()>,
    /// A bit for each node that the call could not be sent to, that refused it, or whose connection broke.
    lost: u32,
}

impl MajorityCall {
    fn new(limit: Duration) -> Self {
        Self { limit, replies: Replies::new(limit), lost: 0 }
    }

    /// The nodes that have not answered, each with its reply, if that can still arrive.
    fn rest(self) -> impl Iterator<Item = (usize, Option<wire::Reply>)> {
        let lost = (0..u32::BITS as usize).filter(move |node| self.lost & 1 << node != 0);
        let awaited = self.replies.rest().map(|(node, reply)| (node, Some(reply)));
        lost.map(|node| (node, None)).chain(awaited)
    }
}

impl Quorum {
    /// Releases a claim on the nodes with a bit in `to`. If a node has not confirmed it when the outcome is
    /// known, and its connection breaks, the release is sent again.
    pub(super) async fn release_everywhere(
        &self,
        release: &Release,
        to: u32,
        limit: Duration,
        until: Moment,
    ) -> Result<Released> {
        let mut call = MajorityCall::new(limit);
        let released = self.ask_majority("release", &release.command, to, &mut call).await;
        for (node, reply) in call.rest() {
            self.nodes.list[node].confirm_later(release, reply, until);
        }
        released
    }

    /// Evicts a holder on all nodes.
    pub(super) async fn evict_everywhere(
        &self,
        evict: &Command,
        limit: Duration,
    ) -> Result<Released> {
        self.ask_majority("evict", evict, u32::MAX, &mut MajorityCall::new(limit)).await
    }

    /// Adds a record on all nodes.
    pub(super) async fn record_everywhere(&self, add: &Command, limit: Duration) -> Result<()> {
        let mut call = MajorityCall::new(limit);
        self.ask_majority("write a record of", add, u32::MAX, &mut call).await.map(drop)
    }

    /// The records that any node shows, if a majority answers: an eviction leaves the same one on each.
    pub(super) async fn audit(&self, name: &LockName, limit: Duration) -> Result<Vec<AuditRecord>> {
        const READ: &str = "read the records of";
        let read = inspect::read_audit(self.keyring.keys(name).audit());
        let view = self.nodes.view(now(), limit);
        let (mut replies, mut faults) = (Replies::new(limit), Vec::new());
        for node in 0..self.nodes.list.len() {
            if let Some(reply) = view.post(node, &read) {
                replies.push(node, (), reply);
            }
        }
        let (mut records, mut answered) = (Vec::new(), 0);
        while let ReplyEvent::Arrived(node, (), outcome) = replies.next().await {
            match outcome {
                Ok(refusal @ Value::Refusal(_)) => {
                    faults.push((node, self.nodes.refused(READ, &view, node, &refusal)));
                }
                Ok(shown) => {
                    answered += 1;
                    let shown = inspect::audit_records(shown)?;
                    let new = shown.into_iter().filter(|record| !records.contains(record));
                    records.extend(new.collect::<Vec<_>>());
                }
                Err(lost) => faults.push((node, crate::fault::lost(READ, &lost))),
            }
        }
        if answered < self.nodes.majority() {
            return Err(self.nodes.too_few(READ, answered, &faults));
        }
        records.sort_by_key(|record| std::cmp::Reverse(record.at));
        Ok(records)
    }

    /// Sends a command to the nodes with a bit in `to`; a node replies 1 if it carried it out. A majority
    /// decides.
    async fn ask_majority(
        &self,
        operation: &'static str,
        command: &Command,
        to: u32,
        call: &mut MajorityCall,
    ) -> Result<Released> {
        let view = self.nodes.view(now(), call.limit);
        let nodes = self.nodes.list.len();
        let mut tally = Tally::new(nodes);
        let (mut answered, mut faults) = (0, Vec::new());
        for node in 0..nodes {
            let wanted = to & 1 << node;
            match (wanted != 0).then(|| view.post(node, command)).flatten() {
                Some(reply) => call.replies.push(node, (), reply),
                None => {
                    call.lost |= wanted;
                    tally.handle_reply(node, Reply::Silent);
                }
            }
        }
        call.replies.decided_by(self.nodes.majority());
        view.look(to);
        loop {
            match tally.outcome() {
                Majority::For => return Ok(Released::Released),
                Majority::Against => return Ok(Released::NotHeld),
                Majority::Unclear => {
                    let error = self.nodes.too_few(operation, answered, &faults);
                    return Err(error.with_unknown_effect());
                }
                Majority::Pending => {}
            }
            match call.replies.next().await {
                ReplyEvent::Arrived(node, (), outcome) => {
                    let reply = match outcome {
                        Ok(Value::Integer(1)) => Reply::Yes,
                        Ok(Value::Integer(0)) => Reply::No,
                        Ok(odd) => {
                            faults.push((node, self.nodes.refused(operation, &view, node, &odd)));
                            call.lost |= 1 << node;
                            Reply::Silent
                        }
                        Err(_) => {
                            call.lost |= 1 << node;
                            Reply::Silent
                        }
                    };
                    answered += usize::from(reply != Reply::Silent);
                    tally.handle_reply(node, reply);
                }
                ReplyEvent::TimedOut => {
                    for node in call.replies.awaited() {
                        tally.handle_reply(node, Reply::Silent);
                    }
                }
            }
        }
    }

    /// What each node that answers shows of a lock: at least a majority.
    pub(super) async fn look(&self, name: &LockName, limit: Duration) -> Result<Vec<LockState>> {
        const LOOK: &str = "inspect";
        let keys = self.keyring.keys(name);
        let [all @ .., _] = &keys.all();
        let view = self.nodes.view(now(), limit);
        let (mut replies, mut shown, mut faults) = (Replies::new(limit), Vec::new(), Vec::new());
        let ask = |node, pages: &Pages| {
            let page = pages.next().map(|from| self.nodes.scripts.inspect.call(all, &from));
            page.and_then(|page| view.post(node, &page))
        };
        for node in 0..self.nodes.list.len() {
            let pages = Pages::new(name);
            if let Some(reply) = ask(node, &pages) {
                replies.push(node, pages, reply);
            }
        }
        while let ReplyEvent::Arrived(node, mut pages, outcome) = replies.next().await {
            match outcome {
                Ok(refusal @ Value::Refusal(_)) => {
                    faults.push((node, self.nodes.refused(LOOK, &view, node, &refusal)));
                }
                Ok(page) => {
                    pages.add(page)?;
                    match ask(node, &pages) {
                        Some(reply) => replies.push(node, pages, reply),
                        None if pages.next().is_none() => shown.push(pages.finish()),
                        // The connection has just ended.
                        None => {}
                    }
                }
                Err(lost) => faults.push((node, crate::fault::lost(LOOK, &lost))),
            }
        }
        match shown.len() < self.nodes.majority() {
            true => Err(self.nodes.too_few(LOOK, shown.len(), &faults)),
            false => Ok(shown),
        }
    }

    /// How many of the nodes that answered must show something for it to be true of the lock. Nodes that
    /// did not answer are assumed to show it.
    pub(super) fn enough(&self, answered: usize) -> usize {
        let silent = self.nodes.list.len() - answered;
        self.nodes.majority().saturating_sub(silent).max(1)
    }

    /// The names of all locks on a majority of nodes.
    pub(super) async fn list(&self, prefix: &str, limit: Duration) -> Result<Vec<LockName>> {
        let scans = self.nodes.list.iter().map(|node| async move {
            node.connection(now())?;
            let mut names = Vec::new();
            let scan = inspect::scan(&node.link, &self.keyring, prefix, &mut names);
            let scanned = tokio::time::timeout(limit, scan).await.ok()?;
            names.sort();
            names.dedup();
            Some(scanned.map(|()| names).map_err(|error| (node.number, error)))
        });
        let (mut pages, mut faults): (Vec<Vec<LockName>>, Vec<Fault>) = (Vec::new(), Vec::new());
        for scanned in join_all(scans).await.into_iter().flatten() {
            match scanned {
                Ok(names) => pages.push(names),
                Err(fault) => faults.push(fault),
            }
        }
        if pages.len() < self.nodes.majority() {
            return Err(self.nodes.too_few("list locks", pages.len(), &faults));
        }
        let enough = self.enough(pages.len());
        let mut names = pages.concat();
        names.sort();
        let shown = names.chunk_by(|a, b| a == b).filter(|same| same.len() >= enough);
        Ok(shown.map(|same| same[0].clone()).collect())
    }
}
