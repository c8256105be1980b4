//! What an experiment showed, in words.

use std::fmt::Write as _;

use crate::history::{Access, History, Kind, Stamp, Stored};
use crate::judge::{Finding, belief_end};
use crate::{Outcome, Result};

/// One experiment, event by event.
pub fn story(played: &Result) -> String {
    let mut text =
        format!("{} against {}: {}\n", played.hazard, played.algorithm, played.outcome.word());
    match &played.outcome {
        Outcome::NotApplicable(why) | Outcome::Missing(why) => {
            let _ = writeln!(text, "  {why}");
        }
        Outcome::Void(why) => {
            let _ = writeln!(text, "  it showed nothing: {why}");
        }
        Outcome::Played { judgement, history } => {
            for (at, what) in events(history) {
                let since = at.saturating_sub(history.begin) as f64 / 1e9;
                let _ = writeln!(text, "  {since:8.3} s  {what}");
            }
            for finding in &judgement.findings {
                let _ = writeln!(text, "  => {}", explain(finding, history));
            }
        }
    }
    text.trim_end().to_owned()
}

fn events(history: &History) -> Vec<(Stamp, String)> {
    let mut events: Vec<(Stamp, String)> =
        history.faults.iter().map(|fault| (fault.at, format!("! {}", fault.what))).collect();
    for grant in &history.grants {
        let token = grant.token.map_or_else(String::new, |token| format!(", token {token}"));
        events.push((grant.held, format!("{} holds {}{token}", grant.id, grant.lock)));
        let end = belief_end(grant);
        if end < history.end {
            events.push((
                end,
                format!("{} no longer believes that it holds {}", grant.id, grant.lock),
            ));
        }
    }
    for access in &history.accesses {
        events.push((access.at, describe(access)));
    }
    let truth = history.truth.iter();
    events.extend(truth.map(|truth| (truth.at, describe_stored(&truth.state))));
    for expected in &history.expectations {
        let met = if expected.met { "as it must" } else { "NOT MET" };
        events.push((expected.at, format!("{}: {met}", expected.what)));
    }
    events.sort();
    events
}

/// What the servers say.
pub(super) fn describe_stored(state: &Stored) -> String {
    match state {
        Stored::Free => "the servers say that the lock is free".into(),
        Stored::Held(client) if client.is_empty() => {
            "the servers say that the lock is taken".into()
        }
        Stored::Held(client) => format!("the servers say that {client} holds the lock"),
        Stored::Silent => "the servers do not answer".into(),
    }
}

/// An access, and what became of it.
pub(super) fn describe(access: &Access) -> String {
    let kind = if access.kind == Kind::Read { "read" } else { "write" };
    let verdict = if access.accepted { "accepted" } else { "rejected" };
    let token = access.token.map_or_else(String::new, |token| format!(" with token {token}"));
    format!("a {kind} of {}{token} is {verdict}", access.grant)
}

/// A finding, as a sentence.
pub(crate) fn explain(finding: &Finding, history: &History) -> String {
    match finding {
        Finding::Overlap { first, second, from, until } => {
            let until = (*until).min(history.end);
            let millis = until.saturating_sub(*from) / 1_000_000;
            format!("{first} and {second} both believed that they held the lock, for {millis} ms")
        }
        Finding::StaleAccepted(index) => {
            format!("a stale write of {} was accepted", history.accesses[*index].grant)
        }
        Finding::StaleRejected(index) => {
            format!("a stale access of {} was rejected", history.accesses[*index].grant)
        }
        Finding::HolderRefused(index) => {
            let (before, refused) = (&history.accesses[..*index], &history.accesses[*index]);
            let accepted = before.iter().filter(|it| it.accepted && it.lock == refused.lock);
            let greatest = accepted.filter_map(|it| Some((it.token?, &it.grant))).max();
            let why = greatest.map_or_else(String::new, |(token, grant)| {
                format!(": {grant} had been there with token {token}")
            });
            let token =
                refused.token.map_or_else(String::new, |token| format!(" with token {token}"));
            format!("{} holds the lock{token}, and the resource refused it{why}", refused.grant)
        }
        Finding::TokenOrder { before, after } => {
            format!("the token of {after} is not greater than that of {before}, which came before")
        }
        Finding::Stuck(what) => format!("it did not happen: {what}"),
        Finding::Herd { waiters, requests } => {
            format!("the release caused {requests} requests of {waiters} waiters")
        }
    }
}
