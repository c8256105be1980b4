//! What is told while a lock is waited for.

use std::time::Duration;

use tenure::store::Origin;
use tenure::{Client, Holder, LockState};
use tokio::time::sleep;

use crate::{exit, output, show};

/// When the state of the lock is told, counted from the last time; the last one repeats. Each costs
/// one look at the whole line, however many wait in it: so they become rare.
const AFTER: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(9),
    Duration::from_secs(50),
    Duration::from_secs(600),
];

/// Waits for `action`. Meanwhile reports that the store does not answer, and on a terminal or with
/// `-v` who holds the lock.
pub(crate) async fn telling<T>(client: &Client, name: &str, action: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = action => done,
        never = tell(client, name) => match never {},
    }
}

async fn tell(client: &Client, name: &str) -> std::convert::Infallible {
    let last = AFTER[AFTER.len() - 1];
    // A fault that lasts a moment only is of interest to those who watch.
    let hasty = output::is_watched().then_some(AFTER[0]);
    let later = AFTER.into_iter().skip(1).chain(std::iter::repeat(last));
    for pause in hasty.into_iter().chain(later) {
        sleep(pause).await;
        match client.inspect(name).await {
            Ok(state) => {
                if output::is_watched()
                    && let Some(text) = describe(&state, &Origin::here())
                {
                    output::remark(&text);
                }
            }
            // A claim that is in line outlasts this, however long it takes. It is a fault: it is
            // reported under cron, too.
            Err(error) if error.is_transient() => {
                let why = exit::line(&error);
                output::complain(&format!("still waiting for the lock {name:?}: {why}"));
            }
            // The claim meets the same fault, and ends with it.
            Err(_) => {}
        }
    }
    std::future::pending().await
}

/// Who holds the lock and how many are before us. `None` for a lock that is just being handed over.
fn describe(state: &LockState, us: &Origin) -> Option<String> {
    let (first, others) = state.holders.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and 1 other".into(),
        more => format!(" and {more} others"),
    };
    let ours = |host: Option<&str>, pid| host == Some(us.host.as_str()) && pid == Some(us.pid);
    let place = state.waiters.iter().position(|one| ours(one.host.as_deref(), one.pid));
    let line = match place {
        Some(0) => "; next in line".into(),
        Some(before) => format!("; {before} before us in line"),
        None => String::new(),
    };
    let name = &state.name;
    Some(format!("waiting for the lock {name:?}, held by {}{others}{line}", holder(first)))
}

fn holder(holder: &Holder) -> String {
    let who = show::whereabouts(holder.host.as_deref(), holder.pid, &holder.label);
    match holder.age {
        Some(age) => format!("{who} for {}", show::span(age)),
        None => who,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::{LockName, Mode, Waiter};

    fn holder(pid: u32, age: Option<u64>) -> Holder {
        let mut holder = Holder::new("ab", Mode::Shared);
        holder.host = Some("h".into());
        holder.pid = Some(pid);
        holder.label = "make".into();
        holder.age = age.map(Duration::from_secs);
        holder
    }

    fn waiter(pid: u32) -> Waiter {
        let mut waiter = Waiter::new("cd", Mode::Exclusive);
        waiter.host = Some("h".into());
        waiter.pid = Some(pid);
        waiter
    }

    #[test]
    fn the_text_says_who_holds_it_since_when_and_our_place() {
        let us = Origin::new("h", 9);
        let said = |holders: Vec<Holder>, waiters: Vec<Waiter>| {
            describe(&LockState::new(LockName::new("a").unwrap(), holders, waiters), &us)
        };
        assert_eq!(said(vec![], vec![waiter(9)]), None);
        let text = said(vec![holder(1, Some(187))], vec![waiter(9)]).unwrap();
        let held = "waiting for the lock \"a\", held by h:1 (make)";
        assert_eq!(text, format!("{held} for 3m07s; next in line"));
        let line = vec![waiter(7), waiter(8), waiter(9), waiter(10)];
        let text = said(vec![holder(1, None), holder(2, None)], line).unwrap();
        assert_eq!(text, format!("{held} and 1 other; 2 before us in line"));
        // Redlock's waiters are not in a line that decides.
        assert_eq!(said(vec![holder(1, None)], vec![]).unwrap(), held);
    }
}
