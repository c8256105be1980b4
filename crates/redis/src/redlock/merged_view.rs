//! One view of a lock, merged from what each node shows.

use std::collections::HashMap;

use tenure_core::{Holder, LockName, LockState, Waiter};

/// Merges what at least `enough` nodes show.
pub(super) fn merge(name: &LockName, nodes: Vec<LockState>, enough: usize) -> LockState {
    let mut holders: HashMap<String, Vec<Holder>> = HashMap::new();
    let mut waiters: HashMap<String, (Vec<usize>, Waiter)> = HashMap::new();
    for node in nodes {
        for holder in node.holders {
            holders.entry(holder.owner.clone()).or_default().push(holder);
        }
        for (place, waiter) in node.waiters.into_iter().enumerate() {
            let seen = waiters.entry(waiter.owner.clone());
            seen.or_insert_with(|| (Vec::new(), waiter)).0.push(place);
        }
    }
    let mut state = LockState::free(name.clone());
    for (_, shown) in holders.into_iter().filter(|(_, shown)| shown.len() >= enough) {
        state.holders.extend(holder(shown, enough));
    }
    state.holders.sort_by_key(|holder| holder.token);
    // A holder stays in the queue until it is released: its round might have been lost.
    let holds = |owner: &str| state.holders.iter().any(|holder| holder.owner == owner);
    let mut line: Vec<_> = waiters
        .into_values()
        .filter(|(places, waiter)| places.len() >= enough && !holds(&waiter.owner))
        .collect();
    // The nodes' queues differ; waiters are shown in the order of their mean positions.
    let mean = |places: &[usize]| places.iter().sum::<usize>() * 1000 / places.len().max(1);
    line.sort_by_key(|(places, _)| mean(places));
    state.waiters = line.into_iter().map(|(_, waiter)| waiter).collect();
    state
}

/// A holder with the token that most nodes show, held for as long as enough nodes show it.
fn holder(mut shown: Vec<Holder>, enough: usize) -> Option<Holder> {
    let count = |token| shown.iter().filter(|holder| holder.token == token).count();
    let token = shown.iter().map(|holder| holder.token).max_by_key(|&token| count(token))?;
    let mut ends: Vec<_> = shown.iter().map(|holder| holder.expires_in).collect();
    // A hold without an end is the longest of all.
    ends.sort_by_key(|end| std::cmp::Reverse((end.is_none(), *end)));
    let expires_in = ends.get(enough.saturating_sub(1)).copied().flatten();
    let mut holder = shown.swap_remove(0);
    (holder.token, holder.expires_in) = (token, expires_in);
    Some(holder)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tenure_core::{Mode, Token};

    fn node(holder: &str, token: u64, left: u64, line: &str) -> LockState {
        let mut state = LockState::free(LockName::new("a").unwrap());
        if !holder.is_empty() {
            let mut holder = Holder::new(holder, Mode::Exclusive);
            holder.token = Some(Token::new(token));
            holder.expires_in = Some(Duration::from_secs(left));
            state.holders.push(holder);
        }
        state.waiters = line.chars().map(|owner| Waiter::new(owner, Mode::Exclusive)).collect();
        state
    }

    fn merged(nodes: Vec<LockState>, enough: usize) -> LockState {
        merge(&LockName::new("a").unwrap(), nodes, enough)
    }

    #[test]
    fn a_holder_on_a_minority_of_nodes_holds_nothing() {
        let nodes = vec![node("x", 7, 9, ""), node("y", 8, 9, ""), node("", 0, 0, "")];
        assert!(merged(nodes, 2).is_free());
    }

    #[test]
    fn a_holder_is_shown_with_the_token_of_most_and_until_most_have_ended() {
        let nodes = vec![node("x", 7, 5, ""), node("x", 8, 9, "x"), node("x", 8, 7, "x")];
        let state = merged(nodes, 2);
        assert_eq!(state.holders.len(), 1);
        assert_eq!(state.holders[0].token, Some(Token::new(8)));
        assert_eq!(state.holders[0].expires_in, Some(Duration::from_secs(7)));
        assert!(state.waiters.is_empty(), "it does not wait for itself");
    }

    #[test]
    fn waiters_are_shown_in_the_order_of_most_queues() {
        let nodes = vec![node("", 0, 0, "abc"), node("", 0, 0, "bac"), node("", 0, 0, "abd")];
        let line: String = merged(nodes, 2).waiters.into_iter().map(|w| w.owner).collect();
        assert_eq!(line, "abc");
    }
}
