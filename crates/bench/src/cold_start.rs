//! From the start of a command that takes a lock to the start of the command that it runs under it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::contest::{Contest, ETCD, LOCAL, REDIS, ZOOKEEPER};
use crate::figure::Samples;
use crate::peer::ARGUMENT;
use crate::queue::clock;
use crate::scale::Scale;
use crate::table::Row;

const ROUNDS: usize = 9;
const STARTS: usize = 20;

/// `tenure run` on each engine, beside the commands of others and the start of a command alone.
pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let this = std::env::current_exe()?;
    let tenure = this.with_file_name("tenure");
    if !tenure.is_file() {
        eprintln!("bench: cold-start: no {}, which `cargo xtask bench` builds", tenure.display());
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for contest in [LOCAL, REDIS, ETCD, ZOOKEEPER] {
        let server = contest.start_server()?;
        let folder = tempfile::tempdir()?;
        let (url, address) = (contest.url(&server), server.target());
        let words = |words: &[&str]| words.iter().map(PathBuf::from).collect::<Vec<_>>();
        let ours =
            [vec![tenure.clone()], words(&["--store", &url, "run", "cold-start", "--"])].concat();
        let file = folder.path().join("flock");
        let peer = match contest.engine {
            "local" => Some(("flock", [words(&["flock"]), vec![file]].concat())),
            "etcd" => {
                let endpoints = format!("--endpoints=127.0.0.1:{address}");
                Some(("etcdctl lock", words(&["etcdctl", &endpoints, "lock", "cold-start"])))
            }
            _ => None,
        };
        let [mut run, mut other, mut alone] = [const { Samples::new() }; 3];
        for _ in 0..scale.rounds(ROUNDS) {
            run.add(starts(scale, &ours)?);
            alone.add(starts(scale, &[])?);
            if let Some((_, words)) = &peer {
                other.add(starts(scale, words)?);
            }
        }
        rows.push(row(&contest, &run, peer.map(|(name, _)| (name, other)), &alone));
    }
    Ok(rows)
}

fn row(contest: &Contest, run: &Samples, peer: Option<(&str, Samples)>, alone: &Samples) -> Row {
    let what = format!("{}: from the start of `tenure run` to that of its command", contest.engine);
    let row = Row::of_times(what, run, "the command alone", alone, None);
    match peer {
        Some((name, times)) => row.peer(name, times.median()),
        None => row,
    }
}

/// The times in which this program, with the words before it, starts to run.
fn starts(scale: Scale, words: &[PathBuf]) -> Outcome<Vec<Duration>> {
    let this = std::env::current_exe()?;
    let mut times = Vec::new();
    for _ in 0..scale.count(STARTS) {
        let words = [words, &[this.clone(), ARGUMENT.into(), "clock".into()]].concat();
        let program = &words[0];
        let start = clock();
        let output = Command::new(program).args(&words[1..]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // `etcdctl` prints nothing else when it runs a command.
        let began = text.trim().parse::<u64>();
        let began = began.map_err(|_| format!("{} said {text:?}", program.display()))?;
        times.push(Duration::from_nanos(began.saturating_sub(start)));
    }
    Ok(times)
}
