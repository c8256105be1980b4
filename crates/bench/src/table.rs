//! Rows of results, and the table of them.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Samples};
use crate::reasons;

/// A cost of ours, beside that of other clients and a limit, all measured in the same run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The engine, a colon, and what was measured.
    pub(crate) what: String,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) ours: Figure,
    /// Other clients that do the same.
    pub(crate) peers: Vec<Side>,
    /// The highest acceptable ratio to the best of the peers.
    pub(crate) peer_bound: Option<f64>,
    /// The work without which it cannot be done, such as the same commands over a bare socket; or another
    /// use of ours that it is compared with.
    pub(crate) limit: Option<Side>,
    /// The highest acceptable ratio to the limit.
    pub(crate) limit_bound: Option<f64>,
    /// Where it stands in a plot.
    pub(crate) point: Option<Point>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) figure: Figure,
}

/// A place in a plot of how a cost grows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The plot's title.
    pub(crate) plot: String,
    /// What grows along the horizontal axis.
    pub(crate) axis: Cow<'static, str>,
    pub(crate) x: f64,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, ours: Figure) -> Self {
        Self {
            what: what.into(),
            unit: unit.into(),
            ours,
            peers: Vec::new(),
            peer_bound: None,
            limit: None,
            limit_bound: None,
            point: None,
        }
    }

    /// A time in microseconds.
    pub(crate) fn time(what: impl Into<String>, ours: Figure) -> Self {
        Self::new(what, "us", ours)
    }

    /// A comparison of medians with a limit.
    pub(crate) fn of_times(
        what: impl Into<String>,
        ours: &Samples,
        against: impl Into<String>,
        theirs: &Samples,
        bound: Option<f64>,
    ) -> Self {
        Self::time(what, ours.median()).limit(against, theirs.median(), bound)
    }

    pub(crate) fn limit(
        mut self,
        name: impl Into<String>,
        figure: Figure,
        bound: Option<f64>,
    ) -> Self {
        self.limit = Some(Side { name: name.into(), figure });
        self.limit_bound = bound;
        self
    }

    pub(crate) fn peer(mut self, name: impl Into<String>, figure: Figure) -> Self {
        self.peers.push(Side { name: name.into(), figure });
        self
    }

    /// Ours may cost at most so many times as much as the best peer.
    pub(crate) fn at_most(mut self, bound: f64) -> Self {
        self.peer_bound = Some(bound);
        self
    }

    pub(crate) fn at(mut self, plot: impl Into<String>, axis: &'static str, x: f64) -> Self {
        self.point = Some(Point { plot: plot.into(), axis: axis.into(), x });
        self
    }

    pub(crate) fn engine(&self) -> &str {
        self.what.split(':').next().unwrap_or_default()
    }

    pub(crate) fn best_peer(&self) -> Option<&Side> {
        self.peers.iter().min_by(|one, other| one.figure.value.total_cmp(&other.figure.value))
    }

    pub(crate) fn ratio_to_peer(&self) -> Option<f64> {
        self.best_peer().map(|peer| self.ours.value / peer.figure.value)
    }

    pub(crate) fn ratio_to_limit(&self) -> Option<f64> {
        self.limit.as_ref().map(|limit| self.ours.value / limit.figure.value)
    }

    pub(crate) fn is_within_bounds(&self) -> bool {
        let within = |ratio: Option<f64>, bound: Option<f64>| match (ratio, bound) {
            (Some(ratio), Some(bound)) => ratio <= bound,
            _ => true,
        };
        within(self.ratio_to_peer(), self.peer_bound)
            && within(self.ratio_to_limit(), self.limit_bound)
    }

    /// Whether the bounds hold and no peer is ahead; and if not, why, where that is known.
    pub(crate) fn verdict(&self) -> String {
        let missed = match self {
            _ if !self.is_within_bounds() => "ABOVE",
            _ if self.ratio_to_peer().is_some_and(|ratio| ratio > 1.0) => "behind",
            Self { peer_bound: None, limit_bound: None, .. } if self.peers.is_empty() => {
                return String::new();
            }
            _ => return "holds".into(),
        };
        match reasons::known(&self.what) {
            "" => missed.into(),
            reason => format!("{missed}: {reason}"),
        }
    }
}

/// The heads of the table's columns.
pub(crate) const HEADS: [&str; 8] =
    ["measured", "ours", "spread", "best peer", "ratio", "limit", "ratio", ""];

/// A row's cells, under [`HEADS`].
pub(crate) fn cells(row: &Row) -> [String; 8] {
    let value = |figure: Figure| format!("{} {}", number(figure.value), row.unit);
    let side = |side: &Side| format!("{}: {}", side.name, value(side.figure));
    let ratio = |ratio: Option<f64>, bound: Option<f64>| match (ratio, bound) {
        (None, _) => String::new(),
        (Some(ratio), None) => format!("{ratio:.2}"),
        (Some(ratio), Some(bound)) => format!("{ratio:.2} (at most {bound:.2})"),
    };
    [
        row.what.clone(),
        value(row.ours),
        row.ours.spread.map(|spread| format!("{:.0} %", spread * 100.0)).unwrap_or_default(),
        row.best_peer().map(side).unwrap_or_default(),
        ratio(row.ratio_to_peer(), row.peer_bound),
        row.limit.as_ref().map(side).unwrap_or_default(),
        ratio(row.ratio_to_limit(), row.limit_bound),
        row.verdict(),
    ]
}

/// A value with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as usize),
    }
}

/// A number with its thousands set apart.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The table in Markdown.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let line = |cells: [String; 8]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(HEADS.map(str::to_owned));
    text += "|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let _ = write!(text, "{}", line(cells(row)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row::time("x: y", Figure::once(12.0))
    }

    #[test]
    fn the_best_peer_is_the_one_that_costs_least() {
        let row = row().peer("slow", Figure::once(40.0)).peer("fast", Figure::once(10.0));
        assert_eq!(row.best_peer().unwrap().name, "fast");
        assert_eq!(row.ratio_to_peer(), Some(1.2));
        assert_eq!(row.verdict(), "behind");
        assert!(row.is_within_bounds());
    }

    #[test]
    fn a_row_is_above_its_bound_for_the_peer_and_for_the_limit() {
        assert!(!row().peer("p", Figure::once(10.0)).at_most(1.1).is_within_bounds());
        let limited = |bound| row().limit("l", Figure::once(10.0), Some(bound));
        assert_eq!(
            (limited(1.1).verdict().as_str(), limited(1.2).verdict().as_str()),
            ("ABOVE", "holds")
        );
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        let texts = [0.0, 0.1234, 9.99, 12.34, 999.6, 1234.5, 1234567.0].map(number);
        assert_eq!(texts, ["0", "0.12", "9.99", "12.3", "1,000", "1,235", "1,234,567"]);
    }
}
