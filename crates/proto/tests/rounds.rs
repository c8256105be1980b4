//! What holds of every round, whatever the nodes answer and in whichever order.

use std::time::Duration;

use proptest::prelude::*;
use tenure_proto::quorum::{Defeat, Order, Raised, Round, Term, Verdict, Vote, majority};
use tenure_proto::{Moment, Token};

const NOW: Moment = Moment::from_nanos(0);

/// A client that sends what the round orders, and nodes that answer at random.
struct Play {
    round: Round,
    /// Requests under way: the node, and whether it is a raise.
    waiting: Vec<(usize, bool)>,
    counters: Vec<Option<u64>>,
    raised: Vec<bool>,
    asked: Vec<bool>,
    released: Vec<bool>,
}

impl Play {
    fn new(eligible: &[bool]) -> Self {
        let term = Term { sent: NOW, ttl: Duration::from_secs(30), minimum: Duration::ZERO };
        let nodes = eligible.len();
        let mut play = Self {
            round: Round::new(eligible, term),
            waiting: Vec::new(),
            counters: vec![None; nodes],
            raised: vec![false; nodes],
            asked: vec![false; nodes],
            released: vec![false; nodes],
        };
        play.send();
        play
    }

    fn send(&mut self) {
        while let Some(order) = self.round.poll_order() {
            match order {
                Order::Claim { node } => {
                    self.asked[node] = true;
                    self.waiting.push((node, false));
                }
                Order::Raise { node, to } => {
                    assert!(self.counters[node].is_some_and(|c| c < to.get()));
                    self.waiting.push((node, true));
                }
                Order::Release { node } => {
                    assert!(self.asked[node], "a node that was not asked needs no release");
                    let busy = self.waiting.iter().any(|&(other, _)| other == node);
                    assert!(!busy, "a release waits for the answer before it");
                    self.released[node] = true;
                }
            }
        }
    }

    fn answer(&mut self, which: usize, chance: u8, counter: u64) {
        let (node, raise) = self.waiting.swap_remove(which % self.waiting.len());
        let before = self.round.verdict();
        if raise {
            let raised = [Raised::Acknowledged, Raised::NotMine, Raised::Failed];
            let raised = raised[usize::from(chance % 3)];
            self.raised[node] = raised == Raised::Acknowledged;
            self.round.handle_raised(node, raised, NOW);
        } else {
            let vote = match chance % 6 {
                0 => Vote::Held,
                1 => Vote::Failed,
                2 => Vote::Unknown,
                _ => Vote::Granted(Token::new(counter)),
            };
            self.counters[node] = matches!(vote, Vote::Granted(_)).then_some(counter);
            self.round.handle_vote(node, vote, NOW);
        }
        if before != Verdict::Pending {
            assert_eq!(before, self.round.verdict(), "a verdict is final");
        }
        self.send();
    }

    /// What a win must rest on: a majority that voted the token, or less and was raised to it; and
    /// at least one vote for it.
    fn check_win(&self, token: Token) {
        let token = token.get();
        let counted: Vec<usize> =
            (0..self.asked.len()).filter(|&node| self.round.is_acknowledged(node)).collect();
        assert!(counted.len() >= majority(self.asked.len()));
        for node in counted {
            let vote = self.counters[node].expect("a node that did not grant is not counted");
            assert!(vote == token || (vote < token && self.raised[node]));
        }
        assert!(self.counters.contains(&Some(token)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn a_round_ends_with_a_sound_win_or_with_every_node_released(
        eligible in prop::sample::select(vec![3usize, 5, 7])
            .prop_flat_map(|nodes| prop::collection::vec(prop::bool::weighted(0.9), nodes)),
        answers in prop::collection::vec((any::<usize>(), any::<u8>(), 1u64..4), 14),
        give_up_after in 0usize..20,
    ) {
        let mut play = Play::new(&eligible);
        for (turn, (which, chance, counter)) in answers.into_iter().enumerate() {
            if turn == give_up_after {
                if let Verdict::Won(token) = play.round.verdict() {
                    play.check_win(token);
                }
                play.round.give_up();
                play.send();
            }
            if play.waiting.is_empty() {
                break;
            }
            play.answer(which, chance, counter);
        }
        prop_assert!(play.waiting.is_empty(), "two requests a node at the most");
        match play.round.verdict() {
            Verdict::Pending => prop_assert!(false, "all is answered, and nothing decided"),
            Verdict::Won(token) => {
                play.check_win(token);
                prop_assert!(!play.released.contains(&true), "a winner keeps the nodes that it holds");
            }
            Verdict::Lost(why) => {
                prop_assert_eq!(&play.asked, &play.released);
                prop_assert_ne!(why, Defeat::TooShort);
            }
        }
    }
}
