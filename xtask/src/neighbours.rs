//! The tables of docs/neighbours.md: a row for each lock that a test has seen handed over between tenure and
//! another project's client, with the times of that run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- rows of `cargo xtask neighbours` -->";
const END: &str = "<!-- end of the rows -->";

/// What a test prints before a row.
const MARK: &str = "shared: ";

/// The columns behind which only times follow.
const COLUMNS: usize = 4;

/// Rows by what they say without the times.
#[derive(Debug, Default)]
pub(crate) struct Rows(BTreeMap<Vec<String>, String>);

impl Rows {
    /// Reads a line of a test program, or of the document.
    pub(crate) fn read(&mut self, line: &str) {
        let row = line.split_once(MARK).map_or(line, |(_, row)| row).trim();
        let cells: Vec<String> = row.split('|').map(|cell| cell.trim().to_owned()).collect();
        if let Some(what) = cells.get(1..=COLUMNS)
            && cells.len() > COLUMNS + 2
        {
            self.0.insert(what.to_vec(), row.to_owned());
        }
    }

    /// Reads a line of a test program if it reports a row.
    pub(crate) fn read_report(&mut self, line: &str) {
        if line.contains(MARK) && line.contains("| ") {
            self.read(line);
        }
    }

    /// What the document lacks, and what it says without a result. A client of which a test was skipped is left out
    /// of the second.
    pub(crate) fn compare(&self, skipped: &[String]) -> io::Result<Vec<String>> {
        let documented = documented(&fs::read_to_string(document())?)?;
        let lacks = self.0.keys().filter(|row| !documented.0.contains_key(*row));
        let mut faults: Vec<_> = lacks.map(|row| format!("lacks {}", row.join(" | "))).collect();
        if skipped.is_empty() {
            let unseen = documented.0.keys().filter(|row| !self.0.contains_key(*row));
            faults
                .extend(unseen.map(|row| format!("has {}, which no test showed", row.join(" | "))));
        }
        Ok(faults)
    }

    /// Writes the rows into the document. Rows of which there is no result stay as they are if `keep`.
    pub(crate) fn write(mut self, keep: bool) -> io::Result<usize> {
        let text = fs::read_to_string(document())?;
        if keep {
            for (what, row) in documented(&text)?.0 {
                self.0.entry(what).or_insert(row);
            }
        }
        let (before, _, after) = split(&text)?;
        let rows: Vec<String> = self.0.into_values().collect();
        fs::write(document(), format!("{before}{BEGIN}\n{HEAD}{}\n{END}{after}", rows.join("\n")))?;
        Ok(rows.len())
    }
}

const HEAD: &str = "\
| Client | Its lock | Shared as | Setting | Handed to ours | Handed to theirs |
|---|---|---|---|---|---|
";

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/neighbours.md")
}

fn documented(text: &str) -> io::Result<Rows> {
    let (_, table, _) = split(text)?;
    let mut rows = Rows::default();
    table.trim().lines().skip(HEAD.lines().count()).for_each(|line| rows.read(line));
    Ok(rows)
}

/// The text before the rows, the table, and the text behind it.
fn split(text: &str) -> io::Result<(&str, &str, &str)> {
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (table, after) = rest.split_once(END)?;
        Some((before, table, after))
    });
    parts.ok_or_else(|| io::Error::other(format!("docs/neighbours.md lacks {BEGIN} or {END}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_without_their_times() {
        let mut seen = Rows::default();
        seen.read_report("test a ... shared: | a 1 | lock | mutex | none | 4 ms | 5 ms |");
        seen.read_report("a line that is no row | shared: x");
        let text = format!("x{BEGIN}\n{HEAD}| a 1 | lock | mutex | none | 9 ms | 1 ms |\n{END}y");
        let documented = documented(&text).unwrap();
        assert!(documented.0.keys().eq(seen.0.keys()) && seen.0.len() == 1, "{documented:?}");
    }
}
