//! `tenure ls`: lists the locks that are held or waited for.

use tenure::LockState;

use crate::args;
use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Output};
use crate::show::{self, StateObject};

pub(crate) async fn execute(store: &str, arguments: &args::Ls, output: &Output) -> Outcome {
    Connection::with(store, async |connection| list(connection, arguments, output).await).await
}

async fn list(connection: &Connection, arguments: &args::Ls, output: &Output) -> Outcome {
    let states = connection.client.inspect_all(&arguments.prefix).await?;
    if let Some(none) = show::no_locks(&arguments.prefix).filter(|_| states.is_empty()) {
        output::note(&none);
    }
    let written = match output.is_json() {
        true => states.iter().try_for_each(|state| output.object(&StateObject::from(state))),
        false => {
            let headings = ["NAME", "MODE", "HOLDER", "TOKEN", "AGE", "TTL", "WAITERS"];
            output.table(&headings, states.iter().flat_map(rows).collect())
        }
    };
    output::exit_code(written, exit::OK)
}

/// One row per holder; one row without a holder if the lock has only waiters.
fn rows(state: &LockState) -> Vec<Vec<String>> {
    let (name, waiters) = (state.name.to_string(), state.waiters.len().to_string());
    let none = || String::from("-");
    if state.holders.is_empty() {
        return vec![vec![name, none(), none(), none(), none(), none(), waiters]];
    }
    let row = |holder: &tenure::Holder| {
        vec![
            name.clone(),
            show::mode(holder.mode),
            show::process(holder.host.as_deref(), holder.pid, &holder.label),
            holder.token.map_or_else(none, |token| token.to_string()),
            holder.age.map_or_else(none, show::duration),
            holder.expires_in.map_or_else(none, show::duration),
            waiters.clone(),
        ]
    };
    state.holders.iter().map(row).collect()
}
