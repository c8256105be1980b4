//! All hazards against all algorithms.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tenure_lab::algorithms::{self, Family, Info};
use tenure_lab::hazards::{self, Hazard};
use tenure_lab::{Experiment, Result as Played, expected, report};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::output::{self, Output};
use crate::progress::Bar;

const LEGEND: &str =
    "\ns safe   f fenced: the stale writes were rejected   B broken   · not applicable";

pub(super) fn execute(arguments: &args::LabMatrix, output: &Output) -> Outcome {
    let (hazards, algorithms) = chosen(arguments)?;
    let experiments: Vec<Experiment> = hazards
        .iter()
        .flat_map(|&hazard| {
            algorithms.iter().map(move |&algorithm| Experiment { hazard, algorithm })
        })
        .collect();
    let all = experiments.len() as u64;
    let (lab, _folder) = super::lab()?;
    let begin = Instant::now();
    let state = Mutex::new((Bar::new("experiments", all), Vec::<Played>::new()));
    lab.play_all(experiments, usize::from(arguments.at_once), |played| {
        let (bar, results) = &mut *state.lock().unwrap_or_else(PoisonError::into_inner);
        results.push(played);
        bar.show(results.len() as u64);
    });
    let time = begin.elapsed();
    let (bar, results) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    drop(bar);
    let verdicts: BTreeMap<(String, String), &'static str> = results
        .iter()
        .map(|played| {
            ((played.hazard.to_owned(), played.algorithm.to_owned()), played.outcome.word())
        })
        .collect();
    if arguments.print_expected {
        let mut known = expected::expected();
        known.extend(verdicts);
        return output::exit_code(output.line(expected::print(&known).trim_end()), exit::OK);
    }
    show(&hazards, &algorithms, &results, &verdicts, output)?;
    let played = results.iter().filter(|it| it.outcome.word() != "-").count();
    output::note(&format!("{played} experiments in {} s", time.as_secs()));
    publish(arguments.html.as_deref(), arguments.open, &results)?;
    if let Some(folder) = &arguments.pictures {
        for (played, picture) in results.iter().filter_map(|it| Some((it, report::picture(it)?))) {
            let file = folder.join(format!("{}.{}.svg", played.hazard, played.algorithm));
            std::fs::write(&file, picture)
                .map_err(|error| Failure::system("write a picture", &error))?;
        }
    }
    Ok(match differences(&results, &expected::expected()) {
        0 => exit::OK,
        _ => exit::UNSAFE,
    })
}

type Chosen = (Vec<&'static Hazard>, Vec<&'static Info>);

fn chosen(arguments: &args::LabMatrix) -> Result<Chosen, Failure> {
    for name in &arguments.hazards {
        hazards::find(name).ok_or_else(|| super::unknown("hazard", name))?;
    }
    for name in &arguments.algorithms {
        algorithms::find(name).ok_or_else(|| super::unknown("algorithm", name))?;
    }
    let is_named =
        |names: &[String], id: &str| names.is_empty() || names.iter().any(|name| name == id);
    let hazards = hazards::all().filter(|hazard| is_named(&arguments.hazards, hazard.id)).collect();
    let is_quick = |info: &Info| {
        !arguments.quick || !matches!(info.family, Family::Cluster | Family::Sentinel)
    };
    let algorithms = algorithms::all()
        .iter()
        .filter(|info| is_named(&arguments.algorithms, info.id) && is_quick(info));
    Ok((hazards, algorithms.collect()))
}

/// Prints the verdicts.
fn show(
    hazards: &[&Hazard],
    algorithms: &[&Info],
    results: &[Played],
    verdicts: &BTreeMap<(String, String), &'static str>,
    output: &Output,
) -> Result<(), Failure> {
    let written = if output.is_json() {
        results.iter().try_for_each(|played| output.object(played))
    } else {
        let rows: Vec<&str> = hazards.iter().map(|hazard| hazard.id).collect();
        let columns: Vec<&str> = algorithms.iter().map(|info| info.id).collect();
        let cell = |hazard: &str, algorithm: &str| {
            verdicts.get(&(hazard.to_owned(), algorithm.to_owned())).copied().unwrap_or("-")
        };
        output::grid(&rows, &columns, cell).and_then(|()| output.line(LEGEND))
    };
    match written {
        Ok(()) => Ok(()),
        Err(closed) => closed.outcome().map(drop),
    }
}

/// Reports every verdict that is not the expected one, and counts them.
fn differences(results: &[Played], expected: &BTreeMap<(String, String), &'static str>) -> usize {
    let mut count = 0;
    for played in results {
        let key = (played.hazard.to_owned(), played.algorithm.to_owned());
        let (expected, found) =
            (expected.get(&key).copied().unwrap_or("nothing"), played.outcome.word());
        let pair = format!("{} against {}", played.hazard, played.algorithm);
        match &played.outcome {
            tenure_lab::Outcome::Missing(why) => {
                output::note(&format!("{pair}: not played: {why}"))
            }
            _ if expected != found => {
                count += 1;
                output::report_line(&report::story(played));
                output::report(&format!("{pair}: {found}, but {expected} is expected"));
            }
            _ => {}
        }
    }
    count
}

/// Writes the page, and shows it.
pub(super) fn publish(file: Option<&Path>, open: bool, results: &[Played]) -> Result<(), Failure> {
    let file = match (file, open) {
        (Some(file), _) => file.to_owned(),
        (None, true) => {
            std::env::temp_dir().join(format!("tenure-lab-{}.html", std::process::id()))
        }
        (None, false) => return Ok(()),
    };
    save(&file, results)?;
    if open {
        let mut browser = Command::new("xdg-open");
        let shown = browser.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !shown.is_ok_and(|status| status.success()) {
            output::note(&format!("no browser was found: the page is {}", file.display()));
        }
    }
    Ok(())
}

fn save(file: &Path, results: &[Played]) -> Result<(), Failure> {
    let what = format!("write {}", file.display());
    std::fs::write(file, report::page(results)).map_err(|error| Failure::system(&what, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_that_differs_is_counted_in_either_direction_and_a_missing_server_is_not() {
        let played =
            |outcome| Played { hazard: "pause", algorithm: "blind-del", outcome, seconds: 0.0 };
        let void = played(tenure_lab::Outcome::Void("why".into()));
        let missing = played(tenure_lab::Outcome::Missing("why".into()));
        let none = played(tenure_lab::Outcome::NotApplicable("why".into()));
        let expect = |verdict| BTreeMap::from([(("pause".into(), "blind-del".into()), verdict)]);
        assert_eq!(differences(&[void], &expect("broken")), 1);
        assert_eq!(differences(std::slice::from_ref(&none), &expect("broken")), 1);
        assert_eq!(differences(&[none], &expect("-")), 0);
        assert_eq!(differences(&[missing], &expect("broken")), 0);
    }
}
