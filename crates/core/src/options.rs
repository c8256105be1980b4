//! How a lock is to be held.

use std::sync::Arc;
use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// How a lock is to be held: its term, its limits, and what others see of it.
///
/// ```
/// use std::time::Duration;
/// use tenure::Options;
///
/// let options = Options::new().ttl(Duration::from_secs(10)).label("nightly report");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    /// The TTL that was asked for. `None`: the default.
    ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    /// What these options are for, if locks cannot stay taken there.
    not_kept: Option<&'static str>,
    pub(crate) label: Arc<str>,
    pub(crate) poll_cap: Duration,
}

impl Options {
    /// The shortest term a lock can have.
    pub const MIN_TTL: Duration = Duration::from_millis(100);
    /// The term of a lock for which none is asked, unless the store allows only a shorter one.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// The longest term a lock can have.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
    /// The longest label, in bytes. What is beyond is cut off.
    pub const MAX_LABEL_BYTES: usize = 200;

    /// The defaults: a term of 30 seconds, no limit on holding, no label, a poll cap of a second.
    pub fn new() -> Self {
        let (label, poll_cap) = ("".into(), Duration::from_secs(1));
        Self { ttl: None, max_hold: None, at_least: None, not_kept: None, label, poll_cap }
    }

    /// How long a grant is good without a renewal: the time other claims wait when the holder vanishes.
    /// The client renews it after a third of that. Between 100 ms and 24 h.
    ///
    /// The default is 30 s, or the longest term that the store allows if that is shorter
    /// ([`Guard::ttl`](crate::Guard::ttl) returns it). A TTL that is set here is never changed: a store
    /// that does not allow it refuses the claim.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Ends the lease after this time even if it is renewed, so that work which hangs does not
    /// hold the lock for ever. The default is no limit.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the lock taken for this long after it was acquired, even if the guard is released or dropped
    /// sooner. Use it for a job that several machines start at about the same time: a clock that is
    /// behind by less than this does not start it again.
    ///
    /// A release before that time returns at once, and the client renews the lock in the background until
    /// the time has passed, or the lock is [revoked](crate::Client::revoke).
    /// [`Client::close`](crate::Client::close) waits for that. If the process ends without `close`, the
    /// lock is free at once on a store that detects deaths, and otherwise when its TTL has passed.
    /// Multi-locks, elections, latches, barriers and work that is done once refuse this option.
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = Some(time);
        self
    }

    /// What the lock is held for, shown when the lock is inspected. At most 200 bytes are kept; line breaks
    /// and other control characters are escaped (`\n`), because stores keep it in one line.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        let label = escaped(label.into());
        let end = label.floor_char_boundary(Self::MAX_LABEL_BYTES);
        self.label = if end < label.len() { label[..end].into() } else { label };
        self
    }

    /// The longest delay after a lost wake-up: a waiter polls after this time even if it was not woken.
    /// Between 1 ms and 1 h; the default is a second.
    ///
    /// A waiter that dies keeps its position in the queue for a little more than three times as long, but
    /// no longer than its TTL, or 30 s if the TTL is shorter. So where the poll cap is above a quarter of
    /// that, the waiter polls after that quarter instead.
    pub fn poll_cap(mut self, cap: Duration) -> Self {
        self.poll_cap = cap;
        self
    }

    /// The TTL of a claim on a store with this limit ([`Store::longest_ttl`](crate::Store)).
    pub(crate) fn ttl_within(&self, longest: Option<Duration>) -> Duration {
        let default =
            || longest.map_or(Self::DEFAULT_TTL, |longest| longest.min(Self::DEFAULT_TTL));
        // A store that allows less than the shortest TTL refuses every claim, with its reason.
        self.ttl.unwrap_or_else(|| default().max(Self::MIN_TTL))
    }

    /// The same options for something that must be able to give its locks back at once.
    pub(crate) const fn without_keeping(mut self, what: &'static str) -> Self {
        self.not_kept = Some(what);
        self
    }

    /// Refuses options that make no sense, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        let fault = |why: String| Err(Error::new(ErrorKind::Invalid, "use these options", why));
        if let Some(ttl) = self.ttl
            && !(Self::MIN_TTL..=Self::MAX_TTL).contains(&ttl)
        {
            return fault(format!("the TTL is {ttl:?}: choose between 100ms and 24h"));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return fault("max-hold is zero: choose a longer time, or none".into());
        }
        if let (Some(most), Some(least)) = (self.max_hold, self.at_least)
            && most < least
        {
            return fault(format!("max-hold ({most:?}) is shorter than at-least ({least:?})"));
        }
        if let (Some(_), Some(what)) = (self.at_least, self.not_kept) {
            return fault(format!("at-least is for single locks, not for {what}: remove it"));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.poll_cap) {
            return fault(format!("the poll cap is {:?}: choose 1ms to 1h", self.poll_cap));
        }
        Ok(())
    }
}

/// How long to wait for a lock that is not free.
///
/// [`Mutex::acquire`](crate::Mutex::acquire), [`try_acquire`](crate::Mutex::try_acquire) and
/// [`acquire_within`](crate::Mutex::acquire_within) say the same with their names. This is for a program
/// that decides at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// As long as it takes.
    Forever,
    /// At most this long.
    AtMost(Duration),
    /// Not at all: the store is asked once.
    NoWait,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// The text with control characters and line separators escaped.
fn escaped(text: Arc<str>) -> Arc<str> {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if !text.contains(breaks) {
        return text;
    }
    let mut line = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match breaks(character) {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_of_zero_or_over_a_day_is_refused_with_the_bounds() {
        for ttl in [Duration::ZERO, Duration::from_secs(86_401), Duration::from_millis(99)] {
            let error = Options::new().ttl(ttl).check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("between 100ms and 24h"), "{error}");
        }
        assert!(Options::new().ttl(Duration::from_secs(86_400)).check().is_ok());
    }

    #[test]
    fn primitives_that_must_release_at_once_refuse_at_least() {
        let options = Options::new().without_keeping("an election");
        assert!(options.check().is_ok());
        let refused = options.at_least(Duration::from_secs(1)).check().unwrap_err();
        assert!(refused.to_string().contains("an election"), "{refused}");
    }

    #[test]
    fn a_max_hold_shorter_than_at_least_is_refused() {
        let options = |most| {
            let least = Duration::from_secs(10);
            Options::new().at_least(least).max_hold(Duration::from_secs(most)).check()
        };
        assert_eq!(options(9).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(options(10).is_ok());
    }

    #[test]
    fn a_default_ttl_is_within_the_limit_of_the_store_and_a_chosen_one_stays() {
        let seconds = Duration::from_secs;
        let (default, chosen) = (Options::new(), Options::new().ttl(seconds(30)));
        for (longest, ttl) in [(None, 30), (Some(seconds(8)), 8), (Some(seconds(60)), 30)] {
            assert_eq!(default.ttl_within(longest), seconds(ttl), "{longest:?}");
            assert_eq!(chosen.ttl_within(longest), seconds(30), "{longest:?}");
        }
        assert_eq!(default.ttl_within(Some(Duration::ZERO)), Options::MIN_TTL);
    }

    #[test]
    fn a_label_is_one_line_of_text_that_can_be_shown() {
        let label = |text: &str| Options::new().label(text).label.to_string();
        assert_eq!(label("a\r\nb\u{1b}[2J\u{85}\u{2029}"), r"a\r\nb\u{1b}[2J\u{85}\u{2029}");
        assert_eq!(label(r"C:\new é"), r"C:\new é");
    }

    #[test]
    fn a_long_label_is_cut_between_characters() {
        assert_eq!(Options::new().label("é".repeat(150)).label.len(), 200);
        assert_eq!(Options::new().label("x".to_owned() + &"é".repeat(150)).label.len(), 199);
    }
}
