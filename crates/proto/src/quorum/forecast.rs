//! The floor that makes all nodes vote the same counter.

use std::time::Duration;

use crate::{Moment, Token};

/// Predicts the largest counter that any node would vote with by itself.
///
/// Counters follow the nodes' clocks, so that a node that lost its data does not count from one
/// again. No two clocks agree to the millisecond, so the nodes' own votes would differ, and every
/// claim would need its second phase. Hence a claim carries a floor: `c = max(last + 1, clock,
/// floor)`. With a floor that is just above all clocks every node votes the same, and the claim is
/// decided in one round trip. A floor that is too low costs the second phase and nothing else; one
/// that is high only advances counters.
///
/// The floor follows the clocks and not the last token, so it is never further ahead of the
/// fastest clock than the margin, however many claims there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    margin: Duration,
    anchors: Vec<Option<Anchor>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    sent: Moment,
    clock_us: u64,
}

impl Forecast {
    /// A forecast without readings. The margin is the time that a node has to answer: if its clock passes
    /// the floor before the claim arrives, the node is late anyway.
    pub fn new(nodes: usize, margin: Duration) -> Self {
        Self { margin, anchors: vec![None; nodes] }
    }

    /// A node has returned its clock, in the reply to a request sent at `sent`. It read the clock later than
    /// that, so the estimate is never too low.
    pub fn handle_clock(&mut self, node: usize, clock_us: u64, sent: Moment) {
        if let Some(anchor) = self.anchors.get_mut(node)
            && anchor.is_none_or(|old| old.sent <= sent)
        {
            *anchor = Some(Anchor { sent, clock_us });
        }
    }

    /// The floor for a claim that is sent now. Zero as long as no clock is known.
    pub fn floor(&self, now: Moment) -> Token {
        let elapsed = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let clocks = self.anchors.iter().flatten().map(|anchor| {
            let passed = elapsed(now.since(anchor.sent) + self.margin);
            anchor.clock_us.saturating_add(passed) / 1000 + 1
        });
        let sane =
            clocks.map(|ms| Token::after(None, ms)).filter(|&t| t <= super::round::LARGEST_COUNTER);
        sane.max().unwrap_or(Token::new(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_floor_is_above_what_every_clock_shows_when_the_claim_arrives() {
        let mut forecast = Forecast::new(3, MARGIN);
        assert_eq!(forecast.floor(ms(5)), Token::new(0));
        let ahead = [5_000_000, 5_003_700, 4_990_000];
        for (node, clock_us) in ahead.into_iter().enumerate() {
            forecast.handle_clock(node, clock_us, ms(100));
        }
        for clock_us in ahead {
            // The claim leaves 50 ms later and is under way for up to the margin.
            for under_way in 0..=10 {
                let own = Token::after(None, (clock_us + 50_000 + under_way * 1000) / 1000);
                let floor = forecast.floor(ms(150));
                assert!(floor > own, "{floor} {own}");
            }
        }
    }

    #[test]
    fn a_later_reading_replaces_that_of_a_clock_that_was_corrected() {
        let mut forecast = Forecast::new(3, MARGIN);
        forecast.handle_clock(0, 9_000_000, ms(1));
        forecast.handle_clock(1, 1_000_000, ms(1));
        let high = forecast.floor(ms(1));
        forecast.handle_clock(0, 1_000_000, ms(2));
        assert!(forecast.floor(ms(2)) < high);
        forecast.handle_clock(0, 9_000_000, ms(1));
        assert!(forecast.floor(ms(2)) < high, "an old reply does not bring it back");
    }

    #[test]
    fn an_implausible_clock_is_ignored() {
        let mut forecast = Forecast::new(3, MARGIN);
        forecast.handle_clock(0, u64::MAX, ms(1));
        assert_eq!(forecast.floor(ms(2)), Token::new(0));
    }
}
