//! Who of a line holds, where the line itself is all there is: nobody is told that it holds, it can
//! be seen.

use crate::{Mode, admitted};

/// What keeps a claim of `mode` out, behind these in the order of their creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// This one, until it is deleted.
    Leaves(usize),
    /// This one waits too: until it goes in, or is deleted.
    Moves(usize),
    /// Any of those who hold.
    Holders,
}

/// `None`: it may hold.
pub fn obstacle(before: &[Mode], mode: Mode) -> Option<Obstacle> {
    let last = before.len().checked_sub(1)?;
    match mode {
        Mode::Exclusive => Some(Obstacle::Leaves(last)),
        Mode::Shared => before.iter().rposition(|mode| *mode != Mode::Shared).map(Obstacle::Leaves),
        Mode::Permits { .. } => {
            let inside = admitted(before.iter().copied().chain([mode]));
            if inside > before.len() {
                None
            } else if inside == before.len() {
                Some(Obstacle::Holders)
            } else {
                Some(Obstacle::Moves(last))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take, of }
    }

    /// Whoever has no obstacle is admitted by the rule, and the other way round; and as long as the
    /// obstacle stays, so does the answer.
    #[test]
    fn an_obstacle_is_named_exactly_where_the_rule_keeps_one_out() {
        let modes = [Mode::Exclusive, Mode::Shared, permits(1, 2), permits(2, 3), permits(1, 3)];
        for number in 0..modes.len().pow(4) {
            let line: Vec<Mode> =
                (0..4).map(|place| modes[number / modes.len().pow(place) % modes.len()]).collect();
            let (before, mode) = (&line[..3], line[3]);
            let holds = |line: &[Mode]| admitted(line.iter().copied()) == line.len();
            let seen = obstacle(before, mode);
            assert_eq!(seen.is_none(), holds(&line), "{line:?}");
            let Some(Obstacle::Leaves(stays)) = seen else { continue };
            // Whoever else leaves, it is still kept out.
            for gone in 0..1 << 3 {
                if gone & (1 << stays) != 0 {
                    continue;
                }
                let left: Vec<Mode> = (0..4)
                    .filter(|place| *place == 3 || gone & (1 << place) == 0)
                    .map(|place| line[place])
                    .collect();
                assert!(!holds(&left), "{line:?} without {gone:b}");
            }
        }
    }
}
