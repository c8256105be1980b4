//! Whether a majority agrees.

use super::majority;

/// A node's answer to a question that a majority decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It did what was asked.
    Yes,
    /// It did not, and never will: the claim does not hold it.
    No,
    /// It failed, or did not answer in time: it may have done it.
    Silent,
}

/// What the answers amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Majority {
    /// Not known yet.
    Pending,
    /// A majority did what was asked.
    For,
    /// So many did not that the others are no majority: whatever the silent ones did, the claim
    /// does not hold the lock.
    Against,
    /// Neither can be known any more: too many nodes are silent.
    Unclear,
}

/// Counts the answers of all nodes. An answer after silence counts; one after an answer does not.
///
/// A release asks all nodes. [`Majority::For`] means that the claim held the lock and another can
/// take it now; [`Majority::Against`], that it did not hold it; [`Majority::Unclear`], that the
/// release must be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    replies: Vec<Option<Reply>>,
}

impl Tally {
    /// A tally of this many nodes, none of which has answered.
    pub fn new(nodes: usize) -> Self {
        Self { replies: vec![None; nodes] }
    }

    /// A node has answered, or is late. False if it had answered before.
    pub fn handle_reply(&mut self, node: usize, reply: Reply) -> bool {
        match self.replies.get_mut(node) {
            Some(place @ (None | Some(Reply::Silent))) => {
                *place = Some(reply);
                true
            }
            _ => false,
        }
    }

    /// What the answers so far amount to.
    pub fn outcome(&self) -> Majority {
        let nodes = self.replies.len();
        let quorum = majority(nodes);
        let count = |reply| self.replies.iter().filter(|&&r| r == reply).count();
        let (yes, no, open) = (count(Some(Reply::Yes)), count(Some(Reply::No)), count(None));
        if yes >= quorum {
            Majority::For
        } else if nodes - no < quorum {
            Majority::Against
        } else if yes + open >= quorum || nodes - no - open < quorum {
            Majority::Pending
        } else {
            Majority::Unclear
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of every answer of three and five nodes: an outcome never changes once it is
    /// known, and is known as early as it can be.
    #[test]
    fn an_outcome_is_reported_as_soon_as_no_answer_can_change_it() {
        for nodes in [3usize, 5] {
            for code in 0..4usize.pow(nodes as u32) {
                let mut tally = Tally::new(nodes);
                for node in 0..nodes {
                    let reply = match code / 4usize.pow(node as u32) % 4 {
                        0 => Reply::Yes,
                        1 => Reply::No,
                        2 => Reply::Silent,
                        _ => continue,
                    };
                    tally.handle_reply(node, reply);
                }
                let ends = completions(&tally);
                match tally.outcome() {
                    Majority::Pending => assert!(ends.windows(2).any(|w| w[0] != w[1])),
                    known => assert!(ends.iter().all(|&end| end == known), "{tally:?}"),
                }
            }
        }
    }

    fn completions(tally: &Tally) -> Vec<Majority> {
        let Some(node) = tally.replies.iter().position(Option::is_none) else {
            return vec![tally.outcome()];
        };
        let next = [Reply::Yes, Reply::No, Reply::Silent].map(|reply| {
            let mut tally = tally.clone();
            tally.handle_reply(node, reply);
            completions(&tally)
        });
        next.concat()
    }
}
