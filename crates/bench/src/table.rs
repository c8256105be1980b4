//! Rows of results, and the table of them.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Samples};

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
    /// Why it may be behind a peer, or above a bound.
    pub(crate) reason: Option<Cow<'static, str>>,
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
            reason: None,
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

    /// Says why it may be behind a peer, or above a bound. An empty text says nothing.
    pub(crate) fn because(mut self, reason: &'static str) -> Self {
        self.reason = (!reason.is_empty()).then_some(Cow::Borrowed(reason));
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

    /// Whether a bound or the best peer is missed by so little that another run may not show it: by a tenth at
    /// most, and by less than the rounds of this run differ among themselves.
    fn is_level(&self) -> bool {
        let excess = |ratio: Option<f64>, most: f64| ratio.map_or(0.0, |ratio| ratio / most - 1.0);
        let peer = excess(self.ratio_to_peer(), self.peer_bound.unwrap_or(1.0).min(1.0));
        let limit = self.limit_bound.map_or(0.0, |bound| excess(self.ratio_to_limit(), bound));
        let spread = |side: Option<&Side>| side.and_then(|side| side.figure.spread);
        let spreads = [self.ours.spread, spread(self.best_peer()), spread(self.limit.as_ref())];
        let widest = spreads.into_iter().flatten().fold(0.0, f64::max);
        peer.max(limit) <= widest.min(LEVEL)
    }

    pub(crate) fn standing(&self) -> Standing {
        match self {
            _ if self.is_level() && !self.holds() => Standing::Level,
            _ if !self.is_within_bounds() => Standing::Above,
            _ if self.is_behind() => Standing::Behind,
            Self { peer_bound: None, limit_bound: None, .. } if self.peers.is_empty() => {
                Standing::Unbound
            }
            _ => Standing::Holds,
        }
    }

    fn is_behind(&self) -> bool {
        self.ratio_to_peer().is_some_and(|ratio| ratio > 1.0)
    }

    fn holds(&self) -> bool {
        self.is_within_bounds() && !self.is_behind()
    }

    /// Whether it is missed, and nothing says why.
    pub(crate) fn is_unexplained(&self) -> bool {
        self.standing().is_missed() && self.reason.is_none()
    }

    /// Whether the bounds hold and no peer is ahead; and if not, why.
    pub(crate) fn verdict(&self) -> String {
        let standing = self.standing();
        match &self.reason {
            Some(reason) if standing.is_missed() => format!("{}: {reason}", standing.word()),
            _ => standing.word().into(),
        }
    }
}

/// By how much two sides may differ without a difference that is told.
const LEVEL: f64 = 0.1;

/// How a row compares with its bounds and its best peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has no peer and no bound.
    Unbound,
    Holds,
    /// A peer is ahead, or a bound is missed, by less than the measurement can tell.
    Level,
    /// A peer is ahead, within the bounds.
    Behind,
    /// A bound is missed.
    Above,
}

impl Standing {
    pub(crate) const fn is_missed(self) -> bool {
        matches!(self, Self::Behind | Self::Above)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Unbound => "",
            Self::Holds => "holds",
            Self::Level => "level: the difference is less than the spread",
            Self::Behind => "behind",
            Self::Above => "ABOVE",
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
    fn a_row_that_is_missed_needs_a_reason_and_says_it() {
        let missed = || row().peer("p", Figure::once(10.0));
        assert!(missed().is_unexplained());
        let explained = missed().because("it also does something else");
        assert!(!explained.is_unexplained());
        assert_eq!(explained.verdict(), "behind: it also does something else");
        // A row that holds does not say it.
        let ahead = row().peer("p", Figure::once(20.0)).because("it also does something else");
        assert_eq!((ahead.is_unexplained(), ahead.verdict().as_str()), (false, "holds"));
        assert_eq!(row().because("").reason, None);
    }

    #[test]
    fn a_difference_within_the_spread_of_the_rounds_is_level_up_to_a_tenth() {
        let of = |ours: f64, spread| {
            let ours = Figure { value: ours, spread };
            Row::time("x: y", ours).peer("p", Figure::once(100.0)).at_most(1.0).standing()
        };
        assert_eq!(of(105.0, Some(0.06)), Standing::Level);
        assert_eq!(of(105.0, Some(0.04)), Standing::Above);
        assert_eq!(of(105.0, None), Standing::Above);
        assert_eq!(of(112.0, Some(0.9)), Standing::Above);
        assert_eq!(of(100.0, Some(0.9)), Standing::Holds);
        // A bound that allows more does not make a peer that is ahead level.
        let ours = Figure { value: 115.0, spread: Some(0.05) };
        let behind = Row::time("x: y", ours).peer("p", Figure::once(100.0)).at_most(1.2);
        assert_eq!(behind.standing(), Standing::Behind);
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
