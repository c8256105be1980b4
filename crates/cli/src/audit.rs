//! `tenure audit`: the evictions and revocations of a lock, newest first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure::{AuditRecord, LockName};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{self, Output, printable};
use crate::{args, show};

const HEADINGS: [&str; 6] = ["EVENT", "AGO", "OWNER", "TOKEN", "BY", "REASON"];

pub(crate) async fn execute(store: &str, arguments: &args::Audit, output: &Output) -> Outcome {
    let name = LockName::new(&arguments.name)?;
    Connection::with(store, async |connection| {
        let records = connection.client.audit(name.as_str()).await?;
        if output.is_json() {
            for record in &records {
                if let Err(closed) = output.object(&object(&name, record)) {
                    return closed.outcome();
                }
            }
            return Ok(exit::OK);
        }
        let rows: Vec<_> = records.iter().map(row).collect();
        match rows.is_empty() {
            true => Ok(exit::OK),
            false => output::exit_code(output.table(&HEADINGS, rows), exit::OK),
        }
    })
    .await
}

fn row(record: &AuditRecord) -> Vec<String> {
    let AuditRecord { event, at, owner, token, by, reason, .. } = record;
    let ago = at.map(|at| SystemTime::now().duration_since(at).unwrap_or(Duration::ZERO));
    vec![
        event.as_str().into(),
        ago.map_or_else(|| "-".into(), show::duration),
        printable(owner),
        token.map_or_else(|| "-".into(), |token| token.to_string()),
        printable(&format!("{}:{}", by.host, by.pid)),
        printable(reason),
    ]
}

/// The JSON object for one record.
#[derive(Serialize)]
struct AuditObject<'a> {
    lock: &'a str,
    event: &'a str,
    at_unix_ms: Option<u64>,
    owner: &'a str,
    token: Option<u64>,
    by_host: &'a str,
    by_pid: u32,
    reason: &'a str,
}

fn object<'a>(name: &'a LockName, record: &'a AuditRecord) -> AuditObject<'a> {
    let at = record.at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    AuditObject {
        lock: name.as_str(),
        event: record.event.as_str(),
        at_unix_ms: at.and_then(|at| u64::try_from(at.as_millis()).ok()),
        owner: &record.owner,
        token: record.token.map(|token| token.get()),
        by_host: &record.by.host,
        by_pid: record.by.pid,
        reason: &record.reason,
    }
}
