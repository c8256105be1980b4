//! Descriptions of histories, for messages.

use crate::claims::{CLIENTS, Step};
use crate::rounds::Rounds;
use crate::state::{Answer, State};

pub(crate) fn name(client: usize) -> char {
    char::from(b'A' + client as u8)
}

pub(crate) fn start(state: &State) -> String {
    let [a, b, c] = state.nodes.map(|node| node.counter);
    format!("All clients ask nodes 0, 1 and 2. Their counters: {a}, {b}, {c}.")
}

pub(crate) fn step(rounds: &Rounds, before: &State, step: Step, after: &State) -> String {
    let answer = |state: &State, client: usize, node: usize| match state.clients[client].links[node]
        .answer
    {
        Some(Answer::Granted(counter)) => format!("granted, counter {counter}"),
        Some(Answer::Held) => "held by another".into(),
        Some(Answer::Acknowledged) => "raised".into(),
        Some(Answer::NotMine) => "not its holder".into(),
        None => "nothing".into(),
    };
    match step {
        Step::Arrive(client, node) => {
            let (client_name, said) = (name(client), answer(after, client, node));
            let counter = after.nodes[node].counter;
            let gone = before.nodes[node].holders & !after.nodes[node].holders;
            let expired: String = (0..CLIENTS)
                .filter(|client| gone & (1 << client) != 0)
                .map(|client| format!("{}'s hold on node {node} expires, and ", name(client)))
                .collect();
            format!(
                "{expired}{client_name}'s request reaches node {node}: {said} (it counts {counter})"
            )
        }
        Step::Answer(client, node) => {
            let (client_name, said) = (name(client), answer(before, client, node));
            let verdict = changed_verdict(rounds, before, client, after);
            format!("{client_name} hears from node {node}: {said}{verdict}")
        }
        Step::Late(client, node) => {
            let verdict = changed_verdict(rounds, before, client, after);
            format!("{} stops waiting for node {node}{verdict}", name(client))
        }
        Step::Lose(client, node) => {
            format!("what was under way between {} and node {node} is lost", name(client))
        }
        Step::Release(client, node) => format!("{}'s release reaches node {node}", name(client)),
        Step::Expire(client, node) => format!("{}'s hold on node {node} expires", name(client)),
        Step::GiveUp(client) => format!("{} gives up", name(client)),
    }
}

fn changed_verdict(rounds: &Rounds, before: &State, client: usize, after: &State) -> String {
    let (old, new) = (before.clients[client], after.clients[client]);
    let (was, is) = (rounds.get(old.round), rounds.get(new.round));
    match new.won {
        Some((token, _)) if old.won.is_none() => format!(", and WINS with token {token}"),
        _ if is.verdict() != was.verdict() => ", and has lost".into(),
        _ if is.token() == was.token() => String::new(),
        _ => is.token().map_or_else(String::new, |t| format!(", and takes {t} as its token")),
    }
}
