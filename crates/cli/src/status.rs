//! `tenure status`: shows the holders and the waiters of one lock.

use tenure::LockState;

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Closed, Output, printable};
use crate::show::{self, StateObject};
use crate::{args, lock};

pub(crate) async fn execute(store: &str, arguments: &args::Status, output: &Output) -> Outcome {
    lock::check_name(&arguments.name)?;
    let name = &arguments.name;
    Connection::with(store, async |connection| show_status(connection, name, output).await).await
}

async fn show_status(connection: &Connection, name: &str, output: &Output) -> Outcome {
    let state = connection.client.inspect(name).await?;
    let written = match output.is_json() {
        true => output.object(&StateObject::from(&state)),
        false => write_tables(&state, output),
    };
    let code = if state.holders.is_empty() { exit::FREE } else { exit::OK };
    output::exit_code(written, code)
}

fn write_tables(state: &LockState, output: &Output) -> Result<(), Closed> {
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
            show::process(holder.host.as_deref(), holder.pid, &holder.label),
            show::mode(holder.mode),
            holder.token.map_or_else(none, |token| token.to_string()),
            holder.age.map_or_else(none, show::duration),
            holder.expires_in.map_or_else(none, show::duration),
            printable(&holder.owner),
        ]
    };
    state.holders.iter().map(row).collect()
}

fn waiters(state: &LockState) -> Vec<Vec<String>> {
    let row = |waiter: &tenure::Waiter| {
        vec![
            show::process(waiter.host.as_deref(), waiter.pid, &waiter.label),
            show::mode(waiter.mode),
            show::duration(waiter.age),
            printable(&waiter.owner),
        ]
    };
    state.waiters.iter().map(row).collect()
}
