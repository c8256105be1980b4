//! The results of a run: as JSON, as a page, and as the tables and pictures of the book.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::plot::{self, Picture, escape};
use crate::table::{self, Row, Standing};
use crate::{Outcome, clients};

const FILE: &str = "bench.json";

/// The results of a run, and what they depend on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) is_quick: bool,
    pub(crate) seconds: u64,
    /// The clients that were not installed, or failed.
    pub(crate) absent: BTreeSet<String>,
    /// The scenarios that failed, with their errors.
    pub(crate) failed: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// Where a run took place.
#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
    /// The versions of what is installed, as each program reports its own.
    versions: Vec<String>,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let programs: [(&str, &[&str]); 7] = [
            ("redis-server", &["--version"]),
            ("etcd", &["--version"]),
            ("java", &["-version"]),
            ("go", &["version"]),
            ("node", &["--version"]),
            ("python3", &["--version"]),
            ("rustc", &["--version"]),
        ];
        let mut versions = vec![format!("tenure {}", env!("CARGO_PKG_VERSION"))];
        versions.extend(clients::releases());
        versions.extend(programs.iter().filter_map(|(program, words)| version(program, words)));
        Self {
            processor: model.unwrap_or("an unknown processor").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            versions,
        }
    }

    fn told(&self) -> String {
        let Self { processor, cores, kernel, versions } = self;
        format!("{processor}, {cores} cores, Linux {kernel}; {}", versions.join("; "))
    }
}

/// The first line of what a program says of its version. `None`: it is not installed.
fn version(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().next()?.trim();
    let named = line.to_ascii_lowercase().contains(&program.replace("3", ""));
    Some(if named { line.to_owned() } else { format!("{program} {line}") })
}

impl Report {
    /// One page without references to anything outside of it.
    pub(crate) fn page(&self) -> Outcome<String> {
        let pictures = plot::pictures(&self.rows)?;
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>tenure: measurements</title>\n<style>\n{}{}</style>\n</head>\n<body>\n\
             <h1>Measurements</h1>\n<p>{}</p>\n<p class=\"soft\">{}</p>\n",
            include_str!("page.css"),
            plot::STYLE,
            escape(&self.summary()),
            escape(&self.machine.told()),
        );
        for engine in self.engines() {
            let _ = write!(page, "<h2>{}</h2>\n<div class=\"pictures\">\n", escape(engine));
            for Picture { svg, .. } in pictures.iter().filter(|it| it.engine == engine) {
                page += svg;
            }
            page += "</div>\n<div class=\"scroll\"><table>\n<thead><tr>";
            for head in table::HEADS {
                let _ = write!(page, "<th scope=\"col\">{head}</th>");
            }
            page += "</tr></thead>\n<tbody>\n";
            for row in self.rows.iter().filter(|row| row.engine() == engine) {
                page += "<tr>";
                for cell in &table::cells(row)[..7] {
                    let _ = write!(page, "<td>{}</td>", escape(cell));
                }
                let verdict = row.verdict();
                let class = if row.standing().is_missed() { "missed" } else { "holds" };
                let _ = writeln!(page, "<td class=\"{class}\">{}</td></tr>", escape(&verdict));
            }
            page += "</tbody></table></div>\n";
        }
        Ok(page + "</body>\n</html>\n")
    }

    /// Writes the tables into a page of the book, between two comments, and the pictures beside it.
    pub(crate) fn write_into(&self, file: &Path) -> Outcome<()> {
        const BEGIN: &str = "<!-- measured: written by `cargo xtask bench --book` -->\n";
        const END: &str = "<!-- end of what was measured -->\n";
        let text = std::fs::read_to_string(file)?;
        let parts = text
            .split_once(BEGIN)
            .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = parts.ok_or("the page has no place for the tables")?;
        let folder = file.with_file_name("pictures").join("performance");
        // Removes pictures of rows that are gone. It fails if there are none.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let pictures = plot::pictures(&self.rows)?;
        let mut measured = format!("{}\n\nMachine: {}.\n", self.summary(), self.machine.told());
        for engine in self.engines() {
            let rows: Vec<Row> =
                self.rows.iter().filter(|row| row.engine() == engine).cloned().collect();
            let _ = write!(measured, "\n## {}\n\n{}\n", title(engine), table::markdown(&rows));
            for Picture { file, svg, .. } in pictures.iter().filter(|it| it.engine == engine) {
                let styled = svg.replacen('>', &format!("><style>{}</style>", plot::STYLE), 1);
                std::fs::write(folder.join(file), styled)?;
                let alternative = file.trim_end_matches(".svg").replace('-', " ");
                let _ = writeln!(measured, "![{alternative}](pictures/performance/{file})");
            }
        }
        Ok(std::fs::write(file, format!("{before}{BEGIN}{measured}{END}{after}"))?)
    }

    /// Adds the rows of an earlier run, if there was one, except those that were measured anew.
    pub(crate) fn add_earlier(&mut self, folder: &Path) -> Outcome<()> {
        let file = folder.join(FILE);
        let earlier: Self = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                format!("{} is not of this version ({error}): remove it", file.display())
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.absent.extend(earlier.absent);
        self.seconds += earlier.seconds;
        self.is_quick |= earlier.is_quick;
        let is_new = |row: &Row| !self.rows.iter().any(|it| it.what == row.what);
        let mut rows: Vec<Row> = earlier.rows.into_iter().filter(is_new).collect();
        rows.append(&mut self.rows);
        self.rows = rows;
        Ok(())
    }

    pub(crate) fn write_files(&self, folder: &Path) -> Outcome<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(FILE), serde_json::to_string_pretty(self)?)?;
        Ok(std::fs::write(folder.join("bench.html"), self.page()?)?)
    }

    /// What the run was, and its outcome, in sentences.
    fn summary(&self) -> String {
        let compared = self.rows.iter().filter(|row| !row.peers.is_empty());
        let (mut count, mut ahead, mut level) = (0, 0, 0);
        for row in compared {
            count += 1;
            match row.ratio_to_peer() {
                Some(ratio) if ratio <= 1.0 => ahead += 1,
                _ if row.standing() == Standing::Level => level += 1,
                _ => {}
            }
        }
        let above = self.rows.iter().filter(|row| row.standing() == Standing::Above).count();
        let how = if self.is_quick { "Measured with `--quick`" } else { "Measured" };
        let took = format!("{} min {} s", self.seconds / 60, self.seconds % 60);
        let mut text = format!(
            "{how} in {took}: {} rows. In {ahead} of the {count} with other clients, tenure costs no more \
             than the best of them; in {level}, the difference is less than the spread. {above} rows miss a \
             bound.",
            self.rows.len()
        );
        let mut list = |what: &str, items: Vec<&str>| {
            if !items.is_empty() {
                let _ = write!(text, " {what}: {}.", items.join("; "));
            }
        };
        let unexplained = self.rows.iter().filter(|row| row.is_unexplained());
        list("Missed without a known reason", unexplained.map(|row| &*row.what).collect());
        list("Not measured", self.failed.iter().map(String::as_str).collect());
        list("Clients that were absent", self.absent.iter().map(String::as_str).collect());
        text
    }

    /// In the order of the rows.
    fn engines(&self) -> Vec<&str> {
        let mut engines = Vec::new();
        for row in &self.rows {
            if !engines.contains(&row.engine()) {
                engines.push(row.engine());
            }
        }
        engines
    }
}

fn title(engine: &str) -> String {
    match engine {
        "etcd" => engine.into(),
        "zookeeper" => "ZooKeeper".into(),
        _ => {
            let mut letters = engine.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;

    fn report() -> Report {
        let rows = vec![
            Row::time("redis: pair <free>", Figure::once(2.0)).peer("other", Figure::once(4.0)),
            Row::time("etcd: pair", Figure::once(3.0)).limit("bare", Figure::once(2.0), Some(1.1)),
        ];
        Report {
            machine: Machine::here(),
            is_quick: true,
            seconds: 90,
            absent: ["redsync: not prepared".to_owned()].into(),
            failed: vec!["zk-hot: it took too long".into()],
            rows,
        }
    }

    #[test]
    fn the_first_rows_are_kept_without_an_earlier_run() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = report();
        first.add_earlier(folder.path()).unwrap();
        assert_eq!(first.rows.len(), 2);
    }

    #[test]
    fn rows_of_another_version_are_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{}").unwrap();
        let error = report().add_earlier(folder.path()).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }

    #[test]
    fn the_summary_lists_what_is_missed_absent_or_failed() {
        let text = report().summary();
        for part in [
            "In 1 of the 1 with other clients",
            "Missed without a known reason: etcd: pair.",
            "Not measured: zk-hot: it took too long.",
            "Clients that were absent: redsync: not prepared.",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn earlier_rows_stay_unless_they_were_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        report().write_files(folder.path()).unwrap();
        let again = Row::time("etcd: pair", Figure::once(9.0));
        let mut new = Report { rows: vec![again], seconds: 30, is_quick: false, ..report() };
        new.add_earlier(folder.path()).unwrap();
        let rows: Vec<_> = new.rows.iter().map(|row| (&*row.what, row.ours.value)).collect();
        assert_eq!(rows, [("redis: pair <free>", 2.0), ("etcd: pair", 9.0)]);
        assert!(new.is_quick && new.seconds == 120);
    }

    #[test]
    fn the_page_contains_all_that_it_shows() {
        let page = report().page().unwrap();
        for outside in ["http://", "https://", "src=", "@import", "<link"] {
            let names = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!names.contains(outside), "{outside}");
        }
        assert!(page.contains("pair &lt;free&gt;") && !page.contains("<free>"));
        assert!(page.contains("ABOVE") && page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("In 1 of the 1 with other clients"));
    }

    #[test]
    fn the_book_gets_the_tables_between_its_marks_and_keeps_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("performance.md");
        let marks = "<!-- measured: written by `cargo xtask bench --book` -->\nSTALE\n\
                     <!-- end of what was measured -->\n";
        std::fs::write(&file, format!("# Before\n{marks}after\n")).unwrap();
        report().write_into(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# Before\n") && text.ends_with("-->\nafter\n"), "{text}");
        assert!(
            text.contains("## Redis\n")
                && text.contains("| etcd: pair |")
                && !text.contains("STALE")
        );
        let picture = folder.path().join("pictures/performance/redis-pair-free.svg");
        assert!(std::fs::read_to_string(picture).unwrap().contains("prefers-color-scheme: dark"));
    }
}
