//! A request to let go, as it is stored.

use std::fmt::Write as _;
use std::time::Duration;

use crate::cells::slot::Seen;
use crate::store::SwapId;
use crate::{AuditRecord, Hold, Holder, Origin, OwnerId, Token};

/// A request, as it is stored: a line about the asker, a line with the reason, and a line for each hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) id: u64,
    /// Since the Unix epoch, by the clock of the store's values.
    pub(super) asked: Duration,
    pub(super) grace: Option<Duration>,
    pub(super) by: Origin,
    pub(super) reason: String,
    pub(super) targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) hold: Hold,
    pub(super) heard: bool,
}

impl Request {
    const FORM: &str = "tenure1";

    pub(super) fn new(
        asked: Duration,
        grace: Option<Duration>,
        record: &AuditRecord,
        holders: &[Holder],
    ) -> Self {
        let targets = holders.iter().filter_map(|holder| {
            // A holder of another client does not listen.
            let owner: OwnerId = holder.owner.parse().ok()?;
            Some(Target { hold: Hold::new(owner, holder.token), heard: false })
        });
        Self {
            id: SwapId::random().get(),
            asked: Duration::from_millis(u64::try_from(asked.as_millis()).unwrap_or(u64::MAX)),
            grace,
            by: Origin::new(record.by.host.replace(' ', "_"), record.by.pid),
            reason: record.reason.clone(),
            targets: targets.collect(),
        }
    }

    /// Whether the request is for this hold, or for the write hold that it was before it was downgraded.
    pub(super) fn is_for(&self, hold: Hold) -> bool {
        let Hold { owner, token, .. } = hold;
        self.targets.iter().any(|target| target.hold.owner == owner && target.hold.token <= token)
    }

    pub(super) fn mark_heard(&mut self, owner: OwnerId) {
        for target in self.targets.iter_mut().filter(|target| target.hold.owner == owner) {
            target.heard = true;
        }
    }

    pub(super) fn copy_confirmations(&mut self, present: &Self) {
        for target in present.targets.iter().filter(|target| target.heard) {
            self.mark_heard(target.hold.owner);
        }
    }

    pub(super) fn write(&self) -> String {
        let Self { id, asked, grace, by, reason, targets } = self;
        let grace = grace.map_or_else(|| "-".into(), |grace| grace.as_millis().to_string());
        let (form, asked) = (Self::FORM, asked.as_millis());
        let mut text = format!("{form} {id} {asked} {grace} {} {}\n{reason}\n", by.pid, by.host);
        for Target { hold, heard } in targets {
            let token = hold.token.map_or_else(|| "-".into(), |token| token.get().to_string());
            let heard = if *heard { "heard" } else { "-" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} {token} {heard}", hold.owner);
        }
        text
    }

    /// The request in a cell. `None` if there is none, or it is of a later version of tenure.
    pub(super) fn read(seen: &Seen) -> Option<Self> {
        Self::parse(std::str::from_utf8(seen.value()?).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [Self::FORM, id, asked, grace, pid, host] = words[..] else { return None };
        let reason = lines.next()?.into();
        let target = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [owner, token, heard] = words[..] else { return None };
            let token = token.parse().ok().map(Token::new);
            Some(Target { hold: Hold::new(owner.parse().ok()?, token), heard: heard == "heard" })
        };
        Some(Self {
            id: id.parse().ok()?,
            asked: Duration::from_millis(asked.parse().ok()?),
            grace: grace.parse().ok().map(Duration::from_millis),
            by: Origin::new(host, pid.parse().ok()?),
            reason,
            targets: lines.filter_map(target).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written_and_damaged_text_is_none() {
        let hold = |token: Option<u64>| Hold::new(OwnerId::random(), token.map(Token::new));
        let targets = [hold(Some(7)), hold(None)];
        let request = Request {
            id: 5,
            asked: Duration::from_millis(1_763_000_000_123),
            grace: Some(Duration::from_millis(1_500)),
            by: Origin::new("host", 42),
            reason: "deploy of: é".into(),
            targets: targets.map(|hold| Target { hold, heard: false }).to_vec(),
        };
        let mut heard = request.clone();
        heard.mark_heard(targets[1].owner);
        for request in [Request { grace: None, ..request.clone() }, heard.clone(), request.clone()]
        {
            assert_eq!(Request::parse(&request.write()), Some(request));
        }
        let mut later = Request { id: 6, ..request.clone() };
        later.copy_confirmations(&heard);
        assert_eq!(later.targets.iter().map(|one| one.heard).collect::<Vec<_>>(), [false, true]);
        let stale = Hold::new(targets[0].owner, Some(Token::new(6)));
        assert!(
            request.is_for(targets[0]) && !request.is_for(stale),
            "an older grant is not meant"
        );
        let downgraded = Hold::new(targets[0].owner, Some(Token::new(9)));
        assert!(request.is_for(downgraded) && !request.is_for(hold(Some(7))));
        for bad in ["", "tenure1", "tenure2 5 1 - 1 h\nr\n", "tenure1 x 1 - 1 h\nr\n"] {
            assert_eq!(Request::parse(bad), None, "{bad:?}");
        }
    }
}
