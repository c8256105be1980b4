//! Results, side by side.

use std::time::Duration;

/// One comparison.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) ours: Duration,
    pub(crate) against: &'static str,
    pub(crate) theirs: Duration,
    /// The ratio that is still good. `None`: for information.
    pub(crate) bound: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.theirs.as_secs_f64()
    }

    pub(crate) fn holds(&self) -> bool {
        self.bound.is_none_or(|bound| self.ratio() <= bound)
    }
}

pub(crate) fn print(rows: &[Row]) {
    println!("| measured | time | against | time | ratio | bound | |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let verdict = if row.holds() { "holds" } else { "ABOVE" };
        let bound = row.bound.map_or("-".into(), |bound| format!("{bound:.2}"));
        println!(
            "| {} | {} | {} | {} | {:.2} | {bound} | {verdict} |",
            row.what,
            micros(row.ours),
            row.against,
            micros(row.theirs),
            row.ratio(),
        );
    }
}

fn micros(time: Duration) -> String {
    format!("{:.2} us", time.as_secs_f64() * 1e6)
}

/// The middle of several measurements.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
