//! Each scenario runs in a process of its own: what it leaves behind (guards that are renewed, threads, a core
//! that it is pinned to) ends with it, and a scenario that fails, panics or hangs takes no other one along.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tenure_testkit::Process;

use crate::Outcome;
use crate::machine::runtime;
use crate::peer::ARGUMENT;
use crate::scale::Scale;
use crate::table::Row;

/// The longest time for one scenario. The longest one takes a third of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(360);

/// The role of the process in which a scenario runs.
pub(crate) const ROLE: &str = "scenario";
const QUICK: &str = "quick";
/// Begins the line of the results.
const ROWS: &str = "rows: ";
/// Begins a line about something that is not installed, as [`tenure_testkit::skip`] prints it.
const SKIPPED: &str = "skipped: ";

/// What a scenario has measured, and without which clients.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) absent: Vec<String>,
}

/// Runs a scenario of this program by its name.
pub(crate) fn run(scenario: &str, scale: Scale) -> Outcome<Measured> {
    let kind = if scale.is_quick { QUICK } else { "full" };
    let program = std::env::current_exe()?;
    results(Process::start(&program, &[ARGUMENT, ROLE, scenario, kind])?, LIMIT)
}

/// Runs in that process.
pub(crate) fn measure(scenario: &str, kind: &str) -> Outcome<()> {
    let scenario = crate::SCENARIOS.iter().find(|it| it.name == scenario);
    let scenario = scenario.ok_or("no such scenario")?;
    let rows = (scenario.measure)(Scale { is_quick: kind == QUICK })?;
    println!("{ROWS}{}", serde_json::to_string(&rows)?);
    Ok(std::io::stdout().flush()?)
}

fn results(mut process: Process, limit: Duration) -> Outcome<Measured> {
    let (runtime, start, mut absent) = (runtime(1)?, Instant::now(), Vec::new());
    loop {
        let rest = limit.saturating_sub(start.elapsed());
        let Some(line) = runtime.block_on(process.line(rest)) else {
            let why = if start.elapsed() < limit { "it failed" } else { "it took too long" };
            return Err(why.into());
        };
        if let Some(rows) = line.strip_prefix(ROWS) {
            return Ok(Measured { rows: serde_json::from_str(rows)?, absent });
        }
        match line.strip_prefix(SKIPPED) {
            Some(client) if !absent.iter().any(|it| it == client) => absent.push(client.to_owned()),
            Some(_) => {}
            None => eprintln!("{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::figure::Figure;

    fn shell(script: &str, limit: Duration) -> Outcome<Measured> {
        results(Process::start(Path::new("sh"), &["-c", script])?, limit)
    }

    #[test]
    fn a_scenario_reports_its_rows_and_what_was_not_installed() {
        let rows = [Row::time("x: y", Figure::once(1.5)).because("why")];
        let rows = serde_json::to_string(&rows).unwrap();
        let script = format!("echo 'skipped: a: b'; echo 'skipped: a: b'; echo '{ROWS}{rows}'");
        let measured = shell(&script, Duration::from_secs(60)).unwrap();
        assert_eq!(measured.absent, ["a: b"]);
        assert_eq!(measured.rows[0].what, "x: y");
        assert_eq!(measured.rows[0].reason.as_deref(), Some("why"));
    }

    #[test]
    fn nothing_of_a_scenario_goes_on_after_its_results() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("echo $$ > '{}'; echo '{ROWS}[]'; sleep 600", pid.display());
        shell(&script, Duration::from_secs(60)).unwrap();
        let pid = std::fs::read_to_string(pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn a_scenario_that_fails_or_hangs_is_an_error() {
        let failed = shell("exit 1", Duration::from_secs(60)).unwrap_err();
        assert_eq!(failed.to_string(), "it failed");
        let hangs = shell("sleep 600", Duration::from_millis(50)).unwrap_err();
        assert_eq!(hangs.to_string(), "it took too long");
    }
}
