//! Reports on standard error while a lock is waited for.

use std::time::Duration;

use tenure::store::Origin;
use tenure::{Client, Holder, LockState};
use tokio::time::sleep;

use crate::{exit, output, show};

/// The pauses before the first and each further report; the last one repeats. They grow because each
/// report reads the whole queue from the store.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(9),
    Duration::from_secs(50),
    Duration::from_secs(600),
];

/// Awaits `acquiring`. Meanwhile reports outages of the store and, on a terminal or with `-v`, the
/// holder of the lock.
pub(crate) async fn report_while<T>(
    client: &Client,
    name: &str,
    acquiring: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        acquired = acquiring => acquired,
        never = report(client, name) => match never {},
    }
}

async fn report(client: &Client, name: &str) -> std::convert::Infallible {
    let last = PAUSES[PAUSES.len() - 1];
    // An outage of less than ten seconds is reported only on a terminal or with -v.
    let first = output::shows_progress().then_some(PAUSES[0]);
    let later = PAUSES.into_iter().skip(1).chain(std::iter::repeat(last));
    for pause in first.into_iter().chain(later) {
        sleep(pause).await;
        match client.inspect(name).await {
            Ok(state) => {
                if output::shows_progress()
                    && let Some(text) = describe(&state, &Origin::here())
                {
                    output::note(&text);
                }
            }
            // The claim keeps waiting through an outage of any length. An outage is an error, so it
            // is reported without a terminal, too.
            Err(error) if error.is_transient() => {
                let why = exit::line(&error);
                output::report(&format!("still waiting for the lock {name:?}: {why}"));
            }
            // `acquiring` fails with the same error.
            Err(_) => {}
        }
    }
    std::future::pending().await
}

/// The holder of the lock and our position in the queue. `None` if the lock has no holder: it is
/// being handed over.
fn describe(state: &LockState, us: &Origin) -> Option<String> {
    let (first, others) = state.holders.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and 1 other".into(),
        more => format!(" and {more} others"),
    };
    let ours = |host: Option<&str>, pid| host == Some(us.host.as_str()) && pid == Some(us.pid);
    let position = state.waiters.iter().position(|waiter| ours(waiter.host.as_deref(), waiter.pid));
    let position = match position {
        Some(0) => "; next in the queue".into(),
        Some(ahead) => format!("; {ahead} ahead in the queue"),
        None => String::new(),
    };
    let name = &state.name;
    Some(format!("waiting for the lock {name:?}, held by {}{others}{position}", holder(first)))
}

fn holder(holder: &Holder) -> String {
    let process = show::process(holder.host.as_deref(), holder.pid, &holder.label);
    match holder.age {
        Some(age) => format!("{process} for {}", show::duration(age)),
        None => process,
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
    fn a_report_names_the_holder_its_age_and_our_queue_position() {
        let us = Origin::new("h", 9);
        let report = |holders: Vec<Holder>, waiters: Vec<Waiter>| {
            describe(&LockState::new(LockName::new("a").unwrap(), holders, waiters), &us)
        };
        assert_eq!(report(vec![], vec![waiter(9)]), None);
        let text = report(vec![holder(1, Some(187))], vec![waiter(9)]).unwrap();
        let held = "waiting for the lock \"a\", held by h:1 (make)";
        assert_eq!(text, format!("{held} for 3m07s; next in the queue"));
        let queue = vec![waiter(7), waiter(8), waiter(9), waiter(10)];
        let text = report(vec![holder(1, None), holder(2, None)], queue).unwrap();
        assert_eq!(text, format!("{held} and 1 other; 2 ahead in the queue"));
        // Redlock shows no waiters, because its queue is not ordered.
        assert_eq!(report(vec![holder(1, None)], vec![]).unwrap(), held);
    }
}
