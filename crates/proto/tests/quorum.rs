//! Runs the tables in `tests/quorum`.
//!
//! A line is `what happened -> everything that follows from it`: orders in the order of the nodes,
//! then the verdict, if it changed. A line without an arrow is one that nothing follows from.

use std::path::Path;
use std::time::Duration;

use tenure_proto::quorum::{
    Defeat, Majority, Order, Raised, Renewal, RenewalVote, Repair, Round, Term, Verdict, Vote,
};
use tenure_proto::{Moment, Token};

#[test]
fn every_line_of_every_table_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quorum");
    let mut lines = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let mut scene = None;
        for (number, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let place = format!("{}:{}: {line}", path.display(), number + 1);
            let (event, expected) = line.split_once("->").unwrap_or((line, ""));
            let words: Vec<&str> = event.split_whitespace().collect();
            let happened = Scene::play(&mut scene, &words).unwrap_or_else(|| panic!("{place}"));
            assert_eq!(happened, expected.trim(), "{place}");
            lines += 1;
        }
    }
    assert!(lines > 100, "only {lines} lines were found");
}

enum Scene {
    Claim { round: Round, told: Verdict, now: Moment },
    Renew { renewal: Renewal, told: Majority },
}

impl Scene {
    /// Plays one event, and tells what followed. `None` if the line makes no sense.
    fn play(scene: &mut Option<Self>, words: &[&str]) -> Option<String> {
        match words {
            ["claim", nodes, options @ ..] => *scene = Some(Self::claim(nodes, options)?),
            ["renew", nodes, "token", token, options @ ..] => {
                let token = Token::new(token.parse().ok()?);
                let renewal = Renewal::new(&eligible(nodes, options)?, token);
                *scene = Some(Self::Renew { renewal, told: Majority::Pending });
            }
            _ => scene.as_mut()?.event(words)?,
        }
        Some(scene.as_mut()?.what_followed())
    }

    fn claim(nodes: &str, options: &[&str]) -> Option<Self> {
        let mut minimum = Duration::ZERO;
        if let Some(at) = options.iter().position(|&word| word == "minimum") {
            minimum = Duration::from_secs(options.get(at + 1)?.parse().ok()?);
        }
        let now = Moment::from_nanos(0);
        let term = Term { sent: now, ttl: Duration::from_secs(30), minimum };
        let round = Round::new(&eligible(nodes, options)?, term);
        Some(Self::Claim { round, told: Verdict::Pending, now })
    }

    fn event(&mut self, words: &[&str]) -> Option<()> {
        match self {
            Self::Claim { round, now, .. } => {
                let mut raised = |node: &str, raised| {
                    round.handle_raised(node.parse().ok()?, raised, *now);
                    Some(())
                };
                match words {
                    ["at", ms] => {
                        *now = Moment::from_nanos(0) + Duration::from_millis(ms.parse().ok()?);
                        round.handle_timeout(*now);
                    }
                    ["give", "up"] => round.give_up(),
                    [node, "raised"] => raised(node, Raised::Acknowledged)?,
                    [node, "not", "mine"] => raised(node, Raised::NotMine)?,
                    [node, "not", "raised"] => raised(node, Raised::Failed)?,
                    [node, vote @ ..] => {
                        let vote = match vote {
                            ["granted", token] => Vote::Granted(Token::new(token.parse().ok()?)),
                            ["held"] => Vote::Held,
                            ["failed"] => Vote::Failed,
                            ["silent"] => Vote::Unknown,
                            _ => return None,
                        };
                        round.handle_vote(node.parse().ok()?, vote, *now);
                    }
                    [] => return None,
                }
            }
            Self::Renew { renewal, .. } => {
                let (node, vote) = match words {
                    [node, "renewed"] => (node, RenewalVote::Renewed),
                    [node, "not", "mine"] => (node, RenewalVote::NotMine),
                    [node, "silent"] => (node, RenewalVote::Silent),
                    _ => return None,
                };
                renewal.handle_vote(node.parse().ok()?, vote);
            }
        }
        Some(())
    }

    fn what_followed(&mut self) -> String {
        let mut said = Vec::new();
        match self {
            Self::Claim { round, told, .. } => {
                while let Some(order) = round.poll_order() {
                    said.push(match order {
                        Order::Claim { node } => format!("ask {node}"),
                        Order::Raise { node, to } => format!("raise {node} to {to}"),
                        Order::Release { node } => format!("release {node}"),
                    });
                }
                if *told != round.verdict() {
                    *told = round.verdict();
                    said.push(match told {
                        Verdict::Pending => "pending".into(),
                        Verdict::Won(token) => format!("won {token}"),
                        Verdict::Lost(Defeat::Contended) => "lost: contended".into(),
                        Verdict::Lost(Defeat::NoQuorum) => "lost: no quorum".into(),
                        Verdict::Lost(Defeat::TooShort) => "lost: too short".into(),
                        Verdict::Lost(Defeat::GivenUp) => "lost: given up".into(),
                    });
                }
            }
            Self::Renew { renewal, told } => {
                if *told != renewal.outcome() {
                    *told = renewal.outcome();
                    said.push(format!("{told:?}").to_lowercase());
                }
                while let Some(Repair { node, to }) = renewal.poll_repair() {
                    said.push(format!("repair {node} to {to}"));
                }
            }
        }
        said.join(", ")
    }
}

/// All nodes but those after `without`.
fn eligible(nodes: &str, options: &[&str]) -> Option<Vec<bool>> {
    let mut eligible = vec![true; nodes.parse().ok()?];
    let without = options.iter().skip_while(|&&word| word != "without").skip(1);
    for node in without.map_while(|word| word.parse::<usize>().ok()) {
        *eligible.get_mut(node)? = false;
    }
    Some(eligible)
}
