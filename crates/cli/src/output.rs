//! Output: results on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::{self, Failure};

static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Sets what goes to standard error: with `-q` errors only, by default also notes and progress, with
/// `-v` also a log.
pub(crate) fn set_up(quiet: bool, verbose: u8) {
    QUIET.store(quiet, Ordering::Relaxed);
    VERBOSE.store(verbose > 0, Ordering::Relaxed);
    let level = match verbose {
        0 => return,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let ansi = io::stderr().is_terminal() && colour_is_allowed();
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(ansi);
    subscriber.with_writer(io::stderr).init();
}

/// Prints an error or a warning, which `-q` does not hide.
pub(crate) fn report(message: &str) {
    // If standard error is closed, there is nowhere else to report it.
    let _ = writeln!(io::stderr().lock(), "tenure: {}", printable(message));
}

/// Prints a line for programs, as it is.
pub(crate) fn report_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a note, which `-q` hides.
pub(crate) fn note(message: &str) {
    if !is_quiet() {
        report(message);
    }
}

/// Whether `-q` was given.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Whether to report progress: on a terminal or with `-v`, but not with `-q`.
pub(crate) fn shows_progress() -> bool {
    !is_quiet() && (VERBOSE.load(Ordering::Relaxed) || io::stderr().is_terminal())
}

/// Prints results, as text or as JSON.
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) const fn is_json(&self) -> bool {
        self.json
    }

    /// Prints one result: the object with `--json`, otherwise the text.
    pub(crate) fn result(&self, object: &impl Serialize, text: impl Display) -> Result<(), Closed> {
        match self.json {
            true => self.object(object),
            false => self.line(text),
        }
    }

    /// Prints a JSON object on a line of its own.
    pub(crate) fn object(&self, object: &impl Serialize) -> Result<(), Closed> {
        let text = serde_json::to_string(object).map_err(|error| Closed(error.into()))?;
        self.line(text)
    }

    /// Prints a line.
    pub(crate) fn line(&self, text: impl Display) -> Result<(), Closed> {
        write(format!("{text}\n").as_bytes())
    }

    /// Prints rows under headings, in aligned columns.
    pub(crate) fn table(&self, headings: &[&str], rows: Vec<Vec<String>>) -> Result<(), Closed> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings.iter().copied()).add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let bold = io::stdout().is_terminal() && colour_is_allowed();
        let mut text = String::new();
        for (number, line) in table.lines().enumerate() {
            let line = line.trim_end();
            match bold && number == 0 {
                true => text.push_str(&format!("\x1b[1m{line}\x1b[0m\n")),
                false => text.push_str(&format!("{line}\n")),
            }
        }
        write(text.as_bytes())
    }
}

/// A table with a short word in each cell, coloured by what it says: its headings stand upright above the columns.
#[cfg(feature = "lab")]
pub(crate) fn grid(
    rows: &[&str],
    columns: &[&str],
    cell: impl Fn(&str, &str) -> &'static str,
) -> Result<(), Closed> {
    let colour = io::stdout().is_terminal() && colour_is_allowed();
    let margin = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let height = columns.iter().map(|column| column.len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in 0..height {
        text += &" ".repeat(margin);
        for column in columns {
            // Aligned at the bottom.
            let letter = (line + column.len()).checked_sub(height);
            let letter = letter.and_then(|at| column.chars().nth(at)).unwrap_or(' ');
            text.extend([' ', letter]);
        }
        text.push('\n');
    }
    for row in rows {
        text += &format!("{row:margin$}");
        for column in columns {
            let (letter, code) = match cell(row, column) {
                "safe" => ("s", "32"),
                "fenced" => ("f", "34"),
                "broken" => ("B", "31"),
                "void" => ("?", "35"),
                _ => ("·", "2"),
            };
            match colour {
                true => text += &format!(" \x1b[{code}m{letter}\x1b[0m"),
                false => text += &format!(" {letter}"),
            }
        }
        text.push('\n');
    }
    write(text.as_bytes())
}

/// Writes bytes to standard output and flushes it.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Closed> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Closed)
}

/// The exit code of a command that has written its output: `code`, unless the write failed.
pub(crate) fn exit_code(written: Result<(), Closed>, code: u8) -> exit::Outcome {
    match written {
        Ok(()) => Ok(code),
        Err(closed) => closed.outcome(),
    }
}

/// Standard output could not be written to.
#[derive(Debug)]
pub(crate) struct Closed(io::Error);

impl Closed {
    /// Success if the reader has closed the pipe; a failure otherwise, such as for a full disk.
    pub(crate) fn outcome(self) -> exit::Outcome {
        match self.0.kind() {
            ErrorKind::BrokenPipe => Ok(exit::OK),
            _ => Err(Failure::system("write to standard output", &self.0)),
        }
    }
}

/// The text without control characters and characters that change the order or the lines of others. Names,
/// labels, host names and error messages come from other processes and must not control the terminal, nor
/// look like something else.
pub(crate) fn printable(text: &str) -> String {
    let misleads = |c: char| {
        c.is_control()
            // Marks and embeddings that change the direction of what follows, and invisible spaces.
            || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
            // Line and paragraph separators, embeddings, overrides, isolates, invisible operators.
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            // Tags and interlinear annotations.
            || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|c| if misleads(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether NO_COLOR is unset or empty; see no-color.org.
pub(crate) fn colour_is_allowed() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c é"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c é");
    }

    #[test]
    fn marks_that_reverse_or_hide_text_are_replaced() {
        for mark in "\u{202e}\u{200f}\u{2066}\u{61c}\u{200b}\u{2028}\u{e0041}\u{feff}".chars() {
            assert_eq!(printable(&format!("a{mark}b")), "a\u{fffd}b", "{mark:?}");
        }
        assert_eq!(printable("שלום 日本 👩\u{200d}🔧"), "שלום 日本 👩\u{200d}🔧");
    }

    #[test]
    fn a_closed_pipe_is_success_and_a_full_disk_is_a_failure() {
        assert_eq!(Closed(ErrorKind::BrokenPipe.into()).outcome().unwrap(), 0);
        assert_eq!(Closed(ErrorKind::StorageFull.into()).outcome().unwrap_err().code, 70);
    }
}
