//! `tenure doctor`: checks whether the store is safe to lock on.

use std::cmp::Reverse;

use serde::Serialize;
use tenure::{Finding, Severity};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{Closed, Output, printable};

pub(crate) async fn execute(store: &str, output: &Output) -> Outcome {
    Connection::with(store, async |connection| diagnose(connection, output).await).await
}

async fn diagnose(connection: &Connection, output: &Output) -> Outcome {
    let mut findings = connection.client.diagnose().await?;
    findings.sort_by_key(|finding| Reverse(finding.severity));
    let written = findings.iter().try_for_each(|finding| write_finding(finding, output));
    let worst = findings.first().map(|finding| finding.severity);
    let code = if worst == Some(Severity::Unsafe) { exit::UNSAFE } else { exit::OK };
    // Unlike other commands, the code is the same if the reader closes the pipe early.
    written.map_or_else(|closed| closed.outcome().map(|_| code), |()| Ok(code))
}

/// The JSON object for one finding.
#[derive(Debug, Serialize)]
struct FindingObject<'a> {
    severity: String,
    what: &'a str,
    remedy: &'a str,
}

fn write_finding(finding: &Finding, output: &Output) -> Result<(), Closed> {
    let Finding { severity, what, remedy, .. } = finding;
    let object = FindingObject { severity: severity.to_string(), what, remedy };
    let mut text = format!("{severity:<6}  {}", printable(what));
    if !remedy.is_empty() {
        text.push_str(&format!("\n        remedy: {}", printable(remedy)));
    }
    output.result(&object, text)
}
