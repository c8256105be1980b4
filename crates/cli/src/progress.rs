//! A progress bar on standard error, if that is a terminal.

use std::io::{self, IsTerminal, Write};

use crate::output;

const WIDTH: usize = 30;

/// It is wiped when it is dropped.
pub(crate) struct Bar {
    title: &'static str,
    total: u64,
    shown: bool,
}

impl Bar {
    pub(crate) fn new(title: &'static str, total: u64) -> Self {
        let shown = io::stderr().is_terminal() && !output::is_quiet();
        let mut bar = Self { title, total, shown };
        bar.show(0);
        bar
    }

    pub(crate) fn show(&mut self, done: u64) {
        if self.shown {
            let line = draw(self.title, done, self.total, output::colour_is_allowed());
            // Without a terminal to write to, there is no bar.
            self.shown = write!(io::stderr().lock(), "\r{line}").is_ok();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn draw(title: &str, done: u64, total: u64, colour: bool) -> String {
    let done = done.min(total);
    let filled = usize::try_from(done * WIDTH as u64 / total.max(1)).unwrap_or(WIDTH);
    let (full, empty) = ("#".repeat(filled), "-".repeat(WIDTH - filled));
    let full = if colour { format!("\x1b[32m{full}\x1b[0m") } else { full };
    format!("{title:<22} [{full}{empty}] {done}/{total}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_filled_as_far_as_the_work_is_done() {
        let bar = |done| draw("x", done, 10, false);
        assert!(bar(0).contains(&format!("[{}] 0/10", "-".repeat(30))));
        assert!(bar(5).contains(&format!("[{}{}] 5/10", "#".repeat(15), "-".repeat(15))));
        assert!(bar(11).contains(&format!("[{}] 10/10", "#".repeat(30))));
        assert!(draw("x", 0, 0, false).contains("0/0"));
        assert!(draw("x", 5, 10, true).contains("\x1b[32m"));
    }
}
