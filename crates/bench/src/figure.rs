//! What was measured: a value with its spread over the rounds of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A cost: the smaller the better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// The highest value of a round less the lowest one, as a share of `value`. `None` if there was one
    /// round.
    pub(crate) spread: Option<f64>,
}

impl Figure {
    /// A value without rounds: a count, a limit, or what was measured once.
    pub(crate) const fn once(value: f64) -> Self {
        Self { value, spread: None }
    }

    /// The median of one value of each round.
    pub(crate) fn of_rounds(rounds: Vec<f64>) -> Self {
        Self::with_rounds(middle(rounds.clone()), &rounds)
    }

    fn with_rounds(value: f64, rounds: &[f64]) -> Self {
        let highest = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lowest = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let spread = (rounds.len() > 1 && value > 0.0).then(|| (highest - lowest) / value);
        Self { value, spread }
    }
}

/// Times of single operations, round by round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    rounds: Vec<Vec<Duration>>,
}

impl Samples {
    pub(crate) const fn new() -> Self {
        Self { rounds: Vec::new() }
    }

    /// Times of one observation, in so many parts that follow each other.
    pub(crate) fn in_parts(times: Vec<Duration>, parts: usize) -> Self {
        let length = times.len().div_ceil(parts).max(1);
        Self { rounds: times.chunks(length).map(<[Duration]>::to_vec).collect() }
    }

    /// Adds the times of one round.
    pub(crate) fn add(&mut self, round: Vec<Duration>) {
        self.rounds.push(round);
    }

    /// Adds a round with one time.
    pub(crate) fn push(&mut self, time: Duration) {
        self.rounds.push(vec![time]);
    }

    /// The median, in microseconds.
    pub(crate) fn median(&self) -> Figure {
        self.percentile(50.0)
    }

    /// The time, in microseconds, within which so many per cent of the operations ended.
    pub(crate) fn percentile(&self, percent: f64) -> Figure {
        let rounds: Vec<f64> =
            self.rounds.iter().map(|round| percentile(round.clone(), percent)).collect();
        Figure::with_rounds(percentile(self.rounds.concat(), percent), &rounds)
    }
}

/// In microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn percentile(mut times: Vec<Duration>, percent: f64) -> f64 {
    times.sort_unstable();
    let rank = (times.len() as f64 * percent / 100.0) as usize;
    times.get(rank.min(times.len().saturating_sub(1))).copied().map_or(0.0, micros)
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rounds: &[&[u64]]) -> Samples {
        let mut samples = Samples::default();
        for round in rounds {
            samples.add(round.iter().copied().map(Duration::from_micros).collect());
        }
        samples
    }

    #[test]
    fn a_percentile_is_that_of_all_rounds_and_its_spread_that_of_their_own() {
        let samples = samples(&[&[1, 2, 3], &[4, 5, 6], &[7, 8, 30]]);
        assert_eq!(samples.median(), Figure { value: 5.0, spread: Some(6.0 / 5.0) });
        assert_eq!(samples.percentile(100.0), Figure { value: 30.0, spread: Some(27.0 / 30.0) });
    }

    #[test]
    fn one_round_has_no_spread() {
        assert_eq!(samples(&[&[3, 1, 2]]).median(), Figure::once(2.0));
        assert_eq!(Figure::of_rounds(vec![4.0]), Figure::once(4.0));
    }
}
