//! The tables of docs/neighbours.md: a row for each lock that a test has seen handed over between tenure and
//! another project's client, with the times of that run, and a row for each counter that both have added to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A table that tests write.
struct Table {
    /// What a test prints before a row.
    mark: &'static str,
    begin: &'static str,
    end: &'static str,
    head: &'static str,
    /// The columns behind which only figures of the run follow.
    columns: usize,
}

const TABLES: [Table; 2] = [
    Table {
        mark: "shared: ",
        begin: "<!-- rows of `cargo xtask neighbours` -->",
        end: "<!-- end of the rows -->",
        head: "\
| Client | Its lock | Shared as | Setting | Handed to ours | Handed to theirs |
|---|---|---|---|---|---|
",
        columns: 4,
    },
    Table {
        mark: "counted: ",
        begin: "<!-- counts of `cargo xtask neighbours` -->",
        end: "<!-- end of the counts -->",
        head: "\
| Client | Contenders | Added by ours | Added by theirs | Counted |
|---|---|---|---|---|
",
        columns: 2,
    },
];

/// The rows of each table, by what they say without the figures.
#[derive(Debug, Default)]
pub(crate) struct Rows([BTreeMap<Vec<String>, String>; TABLES.len()]);

impl Rows {
    /// Reads a line of a test program if it reports a row.
    pub(crate) fn read_report(&mut self, line: &str) {
        for (at, table) in TABLES.iter().enumerate() {
            if let Some((_, row)) = line.split_once(table.mark) {
                self.read(at, row);
            }
        }
    }

    /// Reads a row of a table.
    fn read(&mut self, table: usize, row: &str) {
        let columns = TABLES[table].columns;
        let cells: Vec<String> = row.trim().split('|').map(|cell| cell.trim().to_owned()).collect();
        if let Some(what) = cells.get(1..=columns)
            && cells.len() > columns + 2
        {
            self.0[table].insert(what.to_vec(), row.trim().to_owned());
        }
    }

    /// What the document lacks, and what it says without a result. Rows of a client of which a test was skipped are
    /// left out of the second.
    pub(crate) fn compare(&self, skipped: &[String]) -> io::Result<Vec<String>> {
        Ok(self.faults(&documented(&fs::read_to_string(document())?)?, skipped))
    }

    fn faults(&self, documented: &Self, skipped: &[String]) -> Vec<String> {
        let mut faults = Vec::new();
        for (seen, known) in self.0.iter().zip(&documented.0) {
            let lacks = seen.keys().filter(|row| !known.contains_key(*row));
            faults.extend(lacks.map(|row| format!("lacks {}", row.join(" | "))));
            let unseen = known.keys().filter(|row| !seen.contains_key(*row));
            let unseen = unseen.filter(|row| !skipped.iter().any(|why| concerns(why, &row[0])));
            faults
                .extend(unseen.map(|row| format!("has {}, which no test showed", row.join(" | "))));
        }
        faults
    }

    /// Writes the rows into the document. Rows of which there is no result stay as they are if `keep`.
    pub(crate) fn write(mut self, keep: bool) -> io::Result<usize> {
        let mut text = fs::read_to_string(document())?;
        let documented = documented(&text)?;
        let mut count = 0;
        for ((table, rows), known) in TABLES.iter().zip(&mut self.0).zip(documented.0) {
            if keep {
                for (what, row) in known {
                    rows.entry(what).or_insert(row);
                }
            }
            let (before, _, after) = split(&text, table)?;
            let Table { begin, end, head, .. } = table;
            let lines: Vec<&str> = rows.values().map(String::as_str).collect();
            text = format!("{before}{begin}\n{head}{}\n{end}{after}", lines.join("\n"));
            count += rows.len();
        }
        fs::write(document(), text)?;
        Ok(count)
    }
}

/// Whether a skipped test is one of this client: it begins with the name of its program, `redis-py: …`, as the client's
/// name does but for signs.
fn concerns(skipped: &str, client: &str) -> bool {
    let bare = |text: &str| {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
    };
    let program = bare(skipped.split(": ").next().unwrap_or_default());
    !program.is_empty() && bare(client).starts_with(&program)
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/neighbours.md")
}

fn documented(text: &str) -> io::Result<Rows> {
    let mut rows = Rows::default();
    for (at, table) in TABLES.iter().enumerate() {
        let (_, lines, _) = split(text, table)?;
        let lines = lines.trim().lines().skip(table.head.lines().count());
        lines.for_each(|line| rows.read(at, line));
    }
    Ok(rows)
}

/// The text before the rows of a table, the table, and the text behind it.
fn split<'a>(text: &'a str, table: &Table) -> io::Result<(&'a str, &'a str, &'a str)> {
    let Table { begin, end, .. } = table;
    let parts = text.split_once(begin).and_then(|(before, rest)| {
        let (table, after) = rest.split_once(end)?;
        Some((before, table, after))
    });
    parts.ok_or_else(|| io::Error::other(format!("docs/neighbours.md lacks {begin} or {end}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_rows() -> Rows {
        let [shared, counted] = &TABLES;
        let text = format!(
            "x{}\n{}| Redis-Py 1 | lock | mutex | none | 9 ms | 1 ms |\n{}y{}\n{}| Redis-Py 1 | many | 1 | 2 | 3 |\n{}",
            shared.begin, shared.head, shared.end, counted.begin, counted.head, counted.end
        );
        documented(&text).unwrap()
    }

    #[test]
    fn rows_are_compared_without_their_figures() {
        let mut seen = Rows::default();
        seen.read_report("test a ... shared: | Redis-Py 1 | lock | mutex | none | 4 ms | 5 ms |");
        seen.read_report("counted: | Redis-Py 1 | many | 4 | 5 | 9 |");
        seen.read_report("a line that is no row | shared: x");
        assert_eq!(seen.faults(&with_rows(), &[]), [""; 0]);
        seen.read_report("shared: | a 2 | lock | mutex | none | 4 ms | 5 ms |");
        assert_eq!(seen.faults(&with_rows(), &[]), ["lacks a 2 | lock | mutex | none"]);
    }

    #[test]
    fn a_row_without_a_result_is_a_fault_unless_a_test_of_its_client_was_skipped() {
        let faults = |skipped: &str| Rows::default().faults(&with_rows(), &[skipped.into()]).len();
        assert_eq!(faults("cargo-deny is not installed"), 2);
        assert_eq!(faults("redsync: a test: the client is not prepared"), 2);
        assert_eq!(faults("redis-py: a test: the client is not prepared"), 0);
    }
}
