//! What is known of the locks of a store while it is watched: what `tenure top` and the page show.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tenure::{
    Change, ChangeKind, ChangedClaim, Finding, Holder, LockName, LockState, Mode, Token,
    WatchEvent, WatchSource,
};

use crate::show;

/// How many changes of one lock are kept.
const EVENTS: usize = 32;
/// How many waits and holds of one lock are kept.
const WAITS: usize = 256;
const LANES: usize = 48;
/// Of how many locks that are free by now the activity is kept.
const FREE_LOCKS: usize = 2_000;
/// The time over which hand-offs are counted.
const RATE_OVER: Duration = Duration::from_secs(10);

/// All locks, as they were seen last, and what happened to them.
#[derive(Default)]
pub(crate) struct Board {
    locks: BTreeMap<LockName, Shown>,
    activity: HashMap<LockName, Activity>,
    pub(crate) outage: Option<Outage>,
    /// What the doctor found last. Empty until it has answered.
    pub(crate) findings: Vec<Finding>,
    /// When the doctor answered last.
    pub(crate) diagnosed: Option<Instant>,
    pub(crate) source: Option<WatchSource>,
    /// Whether the store has been read.
    pub(crate) is_ready: bool,
}

/// The store cannot be read.
pub(crate) struct Outage {
    pub(crate) since: Instant,
    pub(crate) error: String,
    /// It answers, and refuses: it lacks a right, for example.
    pub(crate) is_refusal: bool,
}

/// A lock as it was seen at some moment.
struct Shown {
    state: LockState,
    seen: Instant,
    /// The longest time that each holder was seen to have left.
    terms: Vec<(String, Duration)>,
}

/// What happened to one lock.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) events: VecDeque<Change>,
    /// The holds, oldest first.
    pub(crate) lanes: VecDeque<Lane>,
    /// How long waits took that are over.
    waits: VecDeque<Duration>,
    hand_offs: VecDeque<Instant>,
    last: Option<Instant>,
}

/// One hold of a lock.
pub(crate) struct Lane {
    owner: String,
    pub(crate) holder: String,
    pub(crate) token: Option<Token>,
    pub(crate) from: Instant,
    /// When it ended, and how. `None`: it lasts.
    pub(crate) to: Option<(Instant, ChangeKind)>,
}

/// The order of the locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Worst,
    Name,
    Age,
    Waiters,
    HandOffs,
}

impl Sort {
    pub(crate) const ALL: [Self; 5] =
        [Self::Worst, Self::Name, Self::Age, Self::Waiters, Self::HandOffs];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Worst => "worst",
            Self::Name => "name",
            Self::Age => "age",
            Self::Waiters => "waiters",
            Self::HandOffs => "hand-offs",
        }
    }

    #[cfg(feature = "top")]
    pub(crate) fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }
}

/// Which locks to show, and in what order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// A part of the lock's name, or of a holder's host, process or label; in any case.
    pub(crate) filter: String,
    pub(crate) contended: bool,
    pub(crate) sort: Sort,
}

/// A lock on one line.
pub(crate) struct Row {
    pub(crate) name: String,
    /// `exclusive`, `shared` or the permits that are taken of all.
    pub(crate) mode: String,
    pub(crate) holder: String,
    pub(crate) token: Option<Token>,
    pub(crate) age: Option<Duration>,
    pub(crate) term: Option<Term>,
    pub(crate) waiters: usize,
    pub(crate) oldest_wait: Option<Duration>,
    /// A second.
    pub(crate) hand_offs: f64,
    pub(crate) p99_wait: Option<Duration>,
}

/// How much of its lease a holder had left when it was looked at. Not brought up to the present: where there are
/// too many locks to read each in every sample, a holder may have renewed since.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    pub(crate) left: Duration,
    /// The longest time that it was seen to have left.
    pub(crate) of: Duration,
}

impl Term {
    pub(crate) fn share(self) -> f64 {
        if self.of.is_zero() {
            0.0
        } else {
            (self.left.as_secs_f64() / self.of.as_secs_f64()).min(1.0)
        }
    }

    /// A healthy holder renews when two thirds are left.
    pub(crate) fn is_in_danger(self) -> bool {
        self.share() < 0.5
    }
}

impl Board {
    /// Takes in what a watch saw.
    pub(crate) fn update<'a>(
        &mut self,
        events: Vec<WatchEvent>,
        locks: impl Iterator<Item = (&'a LockState, Duration)>,
    ) {
        let now = Instant::now();
        self.outage = None;
        self.is_ready = true;
        for event in events {
            match event {
                WatchEvent::Snapshot(states) => {
                    states.iter().for_each(|state| self.begin(state, now))
                }
                WatchEvent::Change(change) => self.note(change, now),
                _ => {}
            }
        }
        let mut present = HashSet::new();
        for (state, ago) in locks {
            present.insert(state.name.clone());
            let seen = now.checked_sub(ago).unwrap_or(now);
            let known = self.locks.get(&state.name);
            // The same look is dated alike, but for the time between two readings of the clock.
            if known.is_none_or(|known| seen > known.seen + Duration::from_micros(500)) {
                let terms = known.map_or(&[][..], |known| &known.terms[..]);
                let terms = terms_of(state, terms);
                self.locks.insert(state.name.clone(), Shown { state: state.clone(), seen, terms });
            }
        }
        self.locks.retain(|name, _| present.contains(name));
        self.forget();
    }

    /// The store could not be read.
    pub(crate) fn fail(&mut self, error: String, is_refusal: bool) {
        let since = self.outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
        self.outage = Some(Outage { since, error, is_refusal });
    }

    fn begin(&mut self, state: &LockState, now: Instant) {
        let activity = self.activity.entry(state.name.clone()).or_default();
        for holder in &state.holders {
            let age = holder.age.unwrap_or_default();
            activity.begin(&holder.into(), now.checked_sub(age).unwrap_or(now));
        }
    }

    fn note(&mut self, change: Change, now: Instant) {
        let waited = self.locks.get(&change.lock).and_then(|shown| {
            let waiter = shown.state.waiters.iter().find(|one| one.owner == change.claim.owner)?;
            Some(waiter.age + now.saturating_duration_since(shown.seen))
        });
        let activity = self.activity.entry(change.lock.clone()).or_default();
        activity.last = Some(now);
        match change.kind {
            ChangeKind::Acquired | ChangeKind::HandedOver => {
                if let Some(from) = &change.from {
                    push(&mut activity.hand_offs, now, WAITS);
                    activity.end(&from.owner, ChangeKind::Released, now);
                }
                activity.begin(&change.claim, now);
            }
            ChangeKind::Waiting | ChangeKind::RenewedLate => {}
            kind => activity.end(&change.claim.owner, kind, now),
        }
        let is_over = !matches!(change.kind, ChangeKind::Waiting);
        if let Some(waited) = waited.filter(|_| is_over) {
            push(&mut activity.waits, waited, WAITS);
        }
        push(&mut activity.events, change, EVENTS);
    }

    /// Forgets locks that have been free for the longest time.
    fn forget(&mut self) {
        let free = self.activity.len().saturating_sub(self.locks.len());
        if free > 2 * FREE_LOCKS {
            let (locks, activity) = (&self.locks, &mut self.activity);
            let gone = activity.iter().filter(|(name, _)| !locks.contains_key(*name));
            let mut times: Vec<_> = gone.map(|(_, activity)| activity.last).collect();
            times.sort_unstable_by_key(|last| Reverse(*last));
            let oldest = times.get(FREE_LOCKS).copied().flatten();
            activity.retain(|name, activity| locks.contains_key(name) || activity.last > oldest);
        }
    }

    /// How many locks there are, and how many of them are waited for.
    pub(crate) fn count(&self) -> (usize, usize) {
        let contended = self.locks.values().filter(|shown| !shown.state.waiters.is_empty());
        (self.locks.len(), contended.count())
    }

    /// The locks that the query chooses, in its order.
    pub(crate) fn select(&self, query: &Query) -> Vec<LockName> {
        let wanted = query.filter.to_lowercase();
        let matches = |shown: &&Shown| {
            (!query.contended || !shown.state.waiters.is_empty())
                && (wanted.is_empty() || shown.matches(&wanted))
        };
        let mut chosen: Vec<&Shown> = self.locks.values().filter(matches).collect();
        let now = Instant::now();
        let oldest = |shown: &Shown| shown.oldest_wait(now);
        let waiters = |shown: &Shown| shown.state.waiters.len();
        match query.sort {
            Sort::Name => {}
            Sort::Worst => chosen.sort_by_cached_key(|shown| {
                let danger = shown.term().is_some_and(Term::is_in_danger);
                Reverse((oldest(shown), waiters(shown), danger))
            }),
            Sort::Age => chosen.sort_by_cached_key(|shown| Reverse(shown.age(now))),
            Sort::Waiters => chosen.sort_by_key(|shown| Reverse(waiters(shown))),
            Sort::HandOffs => chosen.sort_by_cached_key(|shown| {
                let activity = self.activity.get(&shown.state.name);
                Reverse(activity.map_or(0, |activity| activity.recent_hand_offs(now)))
            }),
        }
        chosen.into_iter().map(|shown| shown.state.name.clone()).collect()
    }

    /// A lock on one line. `None`: it is free by now.
    pub(crate) fn row(&self, name: &LockName) -> Option<Row> {
        let (shown, now) = (self.locks.get(name)?, Instant::now());
        let activity = self.activity.get(name);
        let first = shown.state.holders.first();
        let process =
            |holder: &Holder| show::process(holder.host.as_deref(), holder.pid, &holder.label);
        let holder = match (first, shown.state.holders.len()) {
            (None, _) => "-".into(),
            (Some(holder), 1) => process(holder),
            (Some(holder), count) => format!("{} +{}", process(holder), count - 1),
        };
        let over = RATE_OVER.as_secs_f64();
        let hand_offs = activity.map_or(0, |activity| activity.recent_hand_offs(now));
        Some(Row {
            name: name.to_string(),
            mode: mode(&shown.state),
            holder,
            token: first.and_then(|holder| holder.token),
            age: shown.age(now),
            term: shown.term(),
            waiters: shown.state.waiters.len(),
            oldest_wait: shown.oldest_wait(now),
            hand_offs: hand_offs as f64 / over,
            p99_wait: shown.p99_wait(activity, now),
        })
    }

    /// The owners that hold a lock.
    pub(crate) fn owners(&self, name: &LockName) -> Vec<String> {
        let holders = self.locks.get(name).map_or(&[][..], |shown| &shown.state.holders);
        holders.iter().map(|holder| holder.owner.clone()).collect()
    }

    /// The lock as it was seen last, its times brought up to the present.
    pub(crate) fn lock(&self, name: &LockName) -> Option<LockState> {
        let shown = self.locks.get(name)?;
        let passed = shown.seen.elapsed();
        let mut state = shown.state.clone();
        for holder in &mut state.holders {
            holder.age = holder.age.map(|age| age + passed);
            holder.expires_in = holder.expires_in.map(|left| left.saturating_sub(passed));
        }
        state.waiters.iter_mut().for_each(|waiter| waiter.age += passed);
        Some(state)
    }

    /// What happened to a lock. `None`: nothing that was seen.
    pub(crate) fn activity(&self, name: &LockName) -> Option<&Activity> {
        self.activity.get(name)
    }
}

impl Activity {
    fn begin(&mut self, claim: &ChangedClaim, from: Instant) {
        let ChangedClaim { owner, host, pid, label, token, .. } = claim;
        let holder = show::process(host.as_deref(), *pid, label);
        let lane = Lane { owner: owner.clone(), holder, token: *token, from, to: None };
        push(&mut self.lanes, lane, LANES);
    }

    fn end(&mut self, owner: &str, how: ChangeKind, now: Instant) {
        let lasts = |lane: &&mut Lane| lane.owner == owner && lane.to.is_none();
        if let Some(lane) = self.lanes.iter_mut().rev().find(lasts) {
            lane.to = Some((now, how));
        }
    }

    fn recent_hand_offs(&self, now: Instant) -> usize {
        let is_recent = |at: &&Instant| now.saturating_duration_since(**at) <= RATE_OVER;
        self.hand_offs.iter().rev().take_while(is_recent).count()
    }
}

impl Shown {
    fn matches(&self, wanted: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(wanted);
        has(self.state.name.as_str())
            || self.state.holders.iter().any(|holder| {
                has(&show::process(holder.host.as_deref(), holder.pid, &holder.label))
            })
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let oldest = self.state.holders.iter().filter_map(|holder| holder.age).max();
        oldest.map(|age| age + now.saturating_duration_since(self.seen))
    }

    fn oldest_wait(&self, now: Instant) -> Option<Duration> {
        let oldest = self.state.waiters.iter().map(|waiter| waiter.age).max();
        oldest.map(|age| age + now.saturating_duration_since(self.seen))
    }

    /// Of the holder with the smallest share of its term left.
    fn term(&self) -> Option<Term> {
        let term = |holder: &Holder| {
            let left = holder.expires_in?;
            let known = self.terms.iter().find(|(owner, _)| *owner == holder.owner);
            Some(Term { left, of: known.map_or(left, |(_, of)| *of) })
        };
        let terms = self.state.holders.iter().filter_map(term);
        terms.min_by(|a, b| a.share().total_cmp(&b.share()))
    }

    /// Of the waits that are over, and of the present ones.
    fn p99_wait(&self, activity: Option<&Activity>, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.seen);
        let over = activity.iter().flat_map(|activity| activity.waits.iter().copied());
        let present = self.state.waiters.iter().map(|waiter| waiter.age + passed);
        let mut waits: Vec<Duration> = over.chain(present).collect();
        let place = (waits.len() * 99).div_ceil(100).checked_sub(1)?;
        let (_, p99, _) = waits.select_nth_unstable(place);
        Some(*p99)
    }
}

fn terms_of(state: &LockState, before: &[(String, Duration)]) -> Vec<(String, Duration)> {
    let term = |holder: &Holder| {
        let left = holder.expires_in?;
        let known = before.iter().find(|(owner, _)| *owner == holder.owner);
        Some((holder.owner.clone(), known.map_or(left, |(_, known)| left.max(*known))))
    };
    state.holders.iter().filter_map(term).collect()
}

/// `exclusive`, `shared` or `3/5`.
fn mode(state: &LockState) -> String {
    let modes = state.holders.iter().map(|holder| holder.mode);
    let permits = modes.clone().filter_map(|mode| match mode {
        Mode::Permits { take, of } => Some((take, of)),
        _ => None,
    });
    match permits.clone().map(|(_, of)| of).max() {
        Some(of) => format!("{}/{of}", permits.map(|(take, _)| u64::from(take)).sum::<u64>()),
        None => modes.clone().next().map_or_else(|| "-".into(), show::mode),
    }
}

fn push<T>(ring: &mut VecDeque<T>, item: T, longest: usize) {
    while ring.len() >= longest {
        ring.pop_front();
    }
    ring.push_back(item);
}
