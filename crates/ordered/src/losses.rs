//! What a session's loss channel says: the entries that were taken from the session by force.

use tenure_core::store::Hold;
use tenure_core::{OwnerId, Token};

/// How many losses a channel keeps: more than are evicted between two reads.
const LINES: usize = 100;

/// A channel's content with one more loss in front.
pub fn with_loss(content: &[u8], owner: &str, token: Option<Token>) -> Vec<u8> {
    let known = String::from_utf8_lossy(content);
    let newest = format!("{owner} {}", token.map_or(0, Token::get));
    let lines = std::iter::once(newest.as_str()).chain(known.lines());
    lines.take(LINES).collect::<Vec<_>>().join("\n").into_bytes()
}

/// The losses in a channel's content, newest first. Lines that make no sense are left out.
pub fn losses(content: &[u8]) -> impl Iterator<Item = Hold> {
    let text = std::str::from_utf8(content).unwrap_or_default();
    text.lines().filter_map(|line| {
        let (owner, token) = line.split_once(' ')?;
        let owner: OwnerId = owner.parse().ok()?;
        Some(Hold::new(owner, Some(Token::new(token.parse().ok()?))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_keeps_the_newest_losses_and_ignores_lines_it_cannot_read() {
        let owners: Vec<OwnerId> = (0..LINES + 5).map(|_| OwnerId::random()).collect();
        let mut content = b"by hand".to_vec();
        for (token, owner) in (1..).zip(&owners) {
            content = with_loss(&content, &owner.to_string(), Some(Token::new(token)));
        }
        let read: Vec<Hold> = losses(&content).collect();
        assert_eq!(read.len(), LINES);
        let newest = Token::new(owners.len() as u64);
        assert_eq!(read[0], Hold::new(owners[LINES + 4], Some(newest)));
        assert_eq!(losses(&with_loss(b"", "not an owner", None)).count(), 0);
    }
}
