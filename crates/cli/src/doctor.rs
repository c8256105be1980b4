//! `tenure doctor`: is this store fit to lock on?

use std::cmp::Reverse;

use serde::Serialize;
use tenure::{Finding, Severity};

use crate::connection::Connection;
use crate::exit::{self, Outcome};
use crate::output::{Closed, Output, printable};

#[derive(Debug, Serialize)]
struct FindingObject<'a> {
    severity: String,
    what: &'a str,
    remedy: &'a str,
}

pub(crate) async fn execute(store: &str, output: &Output) -> Outcome {
    Connection::with(store, async |connection| diagnose(connection, output).await).await
}

async fn diagnose(connection: &Connection, output: &Output) -> Outcome {
    let mut findings = connection.diagnose().await?;
    findings.sort_by_key(|finding| Reverse(finding.severity));
    let told = findings.iter().try_for_each(|finding| tell(finding, output));
    let worst = findings.first().map(|finding| finding.severity);
    let verdict = if worst == Some(Severity::Unsafe) { exit::UNSAFE } else { exit::OK };
    // A reader who has seen enough does not make the store any safer.
    told.map_or_else(|closed| closed.outcome().map(|_| verdict), |()| Ok(verdict))
}

fn tell(finding: &Finding, output: &Output) -> Result<(), Closed> {
    let Finding { severity, what, remedy, .. } = finding;
    let object = FindingObject { severity: severity.to_string(), what, remedy };
    let mut text = format!("{severity:<6}  {}", printable(what));
    if !remedy.is_empty() {
        text.push_str(&format!("\n        remedy: {}", printable(remedy)));
    }
    output.say(&object, text)
}
