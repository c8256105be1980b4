//! `tenure status`: one lock, its holders and its waiters.

use tenure::LockState;

use crate::args;
use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::lock;
use crate::output::{Closed, Output};
use crate::show::{self, StateObject};

pub(crate) async fn execute(store: &str, arguments: &args::Status, output: &Output) -> Outcome {
    lock::check_name(&arguments.name)?;
    let name = &arguments.name;
    Connection::with(store, async |connection| look(connection, name, output).await).await
}

async fn look(connection: &Connection, name: &str, output: &Output) -> Outcome {
    let state = connection.client.inspect(name).await?;
    let told = match output.is_json() {
        true => output.object(&StateObject::from(&state)),
        false => tell(&state, output),
    };
    let code = if state.holders.is_empty() { exit::FREE } else { exit::OK };
    told.map_or_else(|closed| closed.outcome(), |()| Ok(code))
}

fn tell(state: &LockState, output: &Output) -> Result<(), Closed> {
    let name = &state.name;
    if state.holders.is_empty() {
        output.line(format_args!("{name} is free"))?;
    } else {
        let headings = ["HOLDER", "MODE", "TOKEN", "AGE", "TTL", "OWNER"];
        output.table(&headings, holders(state))?;
    }
    if state.waiters.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.table(&["WAITER", "MODE", "AGE", "OWNER"], waiters(state))
}

fn holders(state: &LockState) -> Vec<Vec<String>> {
    let none = || String::from("-");
    let row = |holder: &tenure::Holder| {
        vec![
            show::whereabouts(holder.host.as_deref(), holder.pid, &holder.label),
            show::mode(holder.mode),
            holder.token.map_or_else(none, |token| token.to_string()),
            holder.age.map_or_else(none, show::span),
            holder.expires_in.map_or_else(none, show::span),
            crate::output::printable(&holder.owner),
        ]
    };
    state.holders.iter().map(row).collect()
}

fn waiters(state: &LockState) -> Vec<Vec<String>> {
    let row = |waiter: &tenure::Waiter| {
        vec![
            show::whereabouts(waiter.host.as_deref(), waiter.pid, &waiter.label),
            show::mode(waiter.mode),
            show::span(waiter.age),
            crate::output::printable(&waiter.owner),
        ]
    };
    state.waiters.iter().map(row).collect()
}
