//! Calls that go to all nodes: releases, evictions, looks.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{Error, LockName, Released, Result, now};
use tenure_proto::quorum::{Majority, Reply, Tally};

use super::Quorum;
use super::replies::{News, Replies};
use crate::list;
use crate::wire::{Command, Value};

impl Quorum {
    /// Sends what a majority must do, to the nodes with a bit in `to`: nodes answer 1 if they did.
    pub(super) async fn resolve(
        &self,
        operation: &'static str,
        command: &Command,
        to: u32,
        limit: Duration,
    ) -> Result<Released> {
        let view = self.nodes.view(now(), limit);
        let nodes = self.nodes.list.len();
        let (mut tally, mut replies) = (Tally::new(nodes), Replies::new(limit));
        let (mut answered, mut faults) = (0, Vec::new());
        for node in 0..nodes {
            let wanted = to & 1 << node != 0;
            match wanted.then(|| view.post(node, command)).flatten() {
                Some(reply) => replies.push(node, (), reply),
                None => drop(tally.handle_reply(node, Reply::Silent)),
            }
        }
        loop {
            match tally.outcome() {
                Majority::For => return Ok(Released::Released),
                Majority::Against => return Ok(Released::NotHeld),
                Majority::Unclear => {
                    let error = self.nodes.too_few(operation, answered, faults);
                    return Err(error.with_unknown_effect());
                }
                Majority::Pending => {}
            }
            match replies.next().await {
                News::Said(node, (), outcome) => {
                    let reply = match outcome {
                        Ok(Value::Integer(1)) => Reply::Yes,
                        Ok(Value::Integer(0)) => Reply::No,
                        Ok(odd) => {
                            faults.push(self.nodes.refused(operation, &view, node, &odd));
                            Reply::Silent
                        }
                        Err(_) => Reply::Silent,
                    };
                    answered += usize::from(reply != Reply::Silent);
                    tally.handle_reply(node, reply);
                }
                News::Late => {
                    for (node, ()) in replies.give_up() {
                        tally.handle_reply(node, Reply::Silent);
                    }
                }
            }
        }
    }

    /// What each node says to a question, those that do not answer left out: at least a majority.
    pub(super) async fn survey(
        &self,
        operation: &'static str,
        command: &Command,
        limit: Duration,
    ) -> Result<Vec<Value>> {
        let view = self.nodes.view(now(), limit);
        let (mut replies, mut said, mut faults) = (Replies::new(limit), Vec::new(), Vec::new());
        for node in 0..self.nodes.list.len() {
            if let Some(reply) = view.post(node, command) {
                replies.push(node, (), reply);
            }
        }
        while let News::Said(node, (), outcome) = replies.next().await {
            match outcome {
                Ok(refusal @ Value::Refusal(_)) => {
                    faults.push(self.nodes.refused(operation, &view, node, &refusal));
                }
                Ok(value) => said.push(value),
                Err(lost) => faults.push(crate::fault::lost(operation, &lost)),
            }
        }
        match said.len() < self.nodes.majority() {
            true => Err(self.nodes.too_few(operation, said.len(), faults)),
            false => Ok(said),
        }
    }

    /// How many nodes must show something for it to be true of the lock, when so many answered.
    /// What those that did not might show is assumed.
    pub(super) fn enough(&self, answered: usize) -> usize {
        let silent = self.nodes.list.len() - answered;
        self.nodes.majority().saturating_sub(silent).max(1)
    }

    /// The names of all locks on a majority of nodes.
    pub(super) async fn list(&self, prefix: &str, limit: Duration) -> Result<Vec<LockName>> {
        let scans = self.nodes.list.iter().map(|node| async move {
            node.connection(now())?;
            let mut names = Vec::new();
            let scan = list::scan(&node.link, &self.keyring, prefix, &mut names);
            let scanned = tokio::time::timeout(limit, scan).await.ok()?;
            names.sort();
            names.dedup();
            Some(scanned.map(|()| names))
        });
        let (mut pages, mut faults): (Vec<Vec<LockName>>, Vec<Error>) = (Vec::new(), Vec::new());
        for scanned in join_all(scans).await.into_iter().flatten() {
            match scanned {
                Ok(names) => pages.push(names),
                Err(error) => faults.push(error),
            }
        }
        if pages.len() < self.nodes.majority() {
            return Err(self.nodes.too_few("list locks", pages.len(), faults));
        }
        let enough = self.enough(pages.len());
        let mut names = pages.concat();
        names.sort();
        let shown = names.chunk_by(|a, b| a == b).filter(|same| same.len() >= enough);
        Ok(shown.map(|same| same[0].clone()).collect())
    }
}
