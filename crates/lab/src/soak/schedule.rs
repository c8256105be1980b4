//! Which faults a soak injects, and when: a function of the seed alone.

use std::collections::HashMap;
use std::time::Duration;

use tenure_testkit::Dice;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A process is stopped for a moment.
    Hiccup,
    /// A process is stopped for longer than the TTL, in the middle of its work under a lock.
    Pause,
    /// A process is killed, and another one takes its place.
    Kill,
    /// A server is stopped.
    StopServer,
    /// A server is killed, and restarts with its data.
    KillServer,
    /// Nothing passes between a process and the servers, on connections that stay open.
    BlackHole,
    /// Requests of a process reach the servers, and the replies are lost.
    LoseReplies,
    /// What a process and the servers send to each other arrives late.
    Delay,
    /// The connections of a process are reset.
    Reset,
}

impl Kind {
    /// What happened, for a table of counts.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Hiccup => "process stopped for a moment",
            Self::Pause => "holder stopped past the TTL",
            Self::Kill => "process killed",
            Self::StopServer => "server stopped",
            Self::KillServer => "server killed and restarted",
            Self::BlackHole => "process cut off from the servers",
            Self::LoseReplies => "replies lost",
            Self::Delay => "messages delayed",
            Self::Reset => "connections reset",
        }
    }

    /// Whether it happens to a server, and not to a process or its connections.
    pub(crate) fn hits_server(self) -> bool {
        matches!(self, Self::StopServer | Self::KillServer)
    }
}

/// How often each kind is drawn, where there are private servers.
const WITH_SERVERS: &[Kind] = &[
    Kind::Hiccup,
    Kind::Pause,
    Kind::Pause,
    Kind::Kill,
    Kind::StopServer,
    Kind::StopServer,
    Kind::KillServer,
    Kind::KillServer,
    Kind::BlackHole,
    Kind::LoseReplies,
    Kind::Delay,
    Kind::Reset,
];

/// How often each kind is drawn, on servers that the soak did not start.
const PROCESSES_ONLY: &[Kind] = &[Kind::Hiccup, Kind::Pause, Kind::Pause, Kind::Kill];

/// A fault, and when it is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) kind: Kind,
    /// The number of a process or server.
    pub(crate) target: usize,
    pub(crate) lasts: Duration,
}

/// What faults are drawn for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) processes: usize,
    /// Servers that the soak has started.
    pub(crate) servers: usize,
    pub(crate) ttl: Duration,
    /// How long a server may stand still.
    pub(crate) longest_stall: Duration,
}

impl Scope {
    /// Faults of servers leave a majority, and the only server of a store is alone.
    fn servers_at_once(&self) -> usize {
        (self.servers.saturating_sub(1) / 2).max(1)
    }

    /// How long a server that is killed is down.
    pub(crate) fn longest_outage(&self) -> Duration {
        self.longest_stall.max(Duration::from_secs(3))
    }
}

/// The faults of a soak in order.
pub(crate) struct Schedule {
    dice: Dice,
    scope: Scope,
    now: Duration,
    /// Until when a target is in a fault or recovers from it, by whether it is a server and its number.
    busy: HashMap<(bool, usize), Duration>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, scope: Scope) -> Self {
        Self { dice: Dice::new(seed), scope, now: Duration::from_secs(1), busy: HashMap::new() }
    }

    fn lasts(&mut self, kind: Kind) -> Duration {
        let ttl = self.scope.ttl.as_millis() as u64;
        match kind {
            Kind::Hiccup => self.dice.millis(20, 320),
            Kind::Pause => self.dice.millis(ttl * 5 / 4, ttl * 3 / 2),
            Kind::Kill | Kind::Reset => Duration::ZERO,
            Kind::StopServer => self.dice.millis(100, self.scope.longest_stall.as_millis() as u64),
            Kind::KillServer => self.dice.millis(100, 3_000),
            Kind::BlackHole | Kind::LoseReplies | Kind::Delay => self.dice.millis(100, ttl * 3 / 2),
        }
    }

    /// A target that is in no fault. `None` if there is none.
    fn target(&mut self, is_server: bool) -> Option<usize> {
        let all = if is_server { self.scope.servers } else { self.scope.processes };
        let now = self.now;
        self.busy.retain(|_, until| *until > now);
        let free: Vec<usize> =
            (0..all).filter(|number| !self.busy.contains_key(&(is_server, *number))).collect();
        let draw = self.dice.below(free.len() as u64) as usize;
        let are_enough = !is_server || all - free.len() < self.scope.servers_at_once();
        free.get(draw).copied().filter(|_| are_enough)
    }
}

impl Iterator for Schedule {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let kinds = if self.scope.servers > 0 { WITH_SERVERS } else { PROCESSES_ONLY };
        loop {
            let at = self.now;
            let kind = kinds[self.dice.below(kinds.len() as u64) as usize];
            let lasts = self.lasts(kind);
            let target = self.target(kind.hits_server());
            self.now += self.dice.millis(1_500, 4_500);
            let Some(target) = target else { continue };
            // A server that restarts has to be found and trusted again; a process gets a lock before it is stopped.
            let recovery = if kind == Kind::KillServer { self.scope.ttl } else { Duration::ZERO };
            let until = at + lasts + recovery + Duration::from_millis(1_500);
            self.busy.insert((kind.hits_server(), target), until);
            return Some(Fault { at, kind, target, lasts });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope {
        processes: 8,
        servers: 3,
        ttl: Duration::from_secs(3),
        longest_stall: Duration::from_millis(4_500),
    };

    fn faults(seed: u64, scope: Scope) -> Vec<Fault> {
        let end = Duration::from_secs(1_800);
        Schedule::new(seed, scope).take_while(|fault| fault.at < end).collect()
    }

    #[test]
    fn a_seed_replays_its_faults_and_another_one_does_not() {
        assert_eq!(faults(1, SCOPE), faults(1, SCOPE));
        assert_ne!(faults(1, SCOPE), faults(2, SCOPE));
    }

    #[test]
    fn half_an_hour_has_hundreds_of_faults_of_every_kind_and_a_majority_of_servers_stays() {
        for (servers, at_once) in [(1, 1), (3, 1), (5, 2)] {
            let all = faults(1, Scope { servers, ..SCOPE });
            assert!(all.len() > 400, "{}", all.len());
            for kind in WITH_SERVERS {
                assert!(all.iter().filter(|fault| fault.kind == *kind).count() > 10, "{kind:?}");
            }
            for fault in all.iter().filter(|fault| fault.kind.hits_server()) {
                let begun = all.iter().filter(|it| it.kind.hits_server() && it.at <= fault.at);
                let down = begun.filter(|it| it.at + it.lasts >= fault.at);
                assert!(down.count() <= at_once, "{fault:?}");
            }
        }
    }

    #[test]
    fn no_process_is_hit_while_it_is_in_another_fault() {
        let all = faults(3, SCOPE);
        for (place, fault) in all.iter().enumerate().filter(|(_, it)| !it.kind.hits_server()) {
            let mut later = all[place + 1..].iter().filter(|it| !it.kind.hits_server());
            let next = later.find(|it| it.target == fault.target);
            assert!(next.is_none_or(|next| next.at > fault.at + fault.lasts), "{fault:?}");
        }
    }

    #[test]
    fn servers_of_others_are_left_alone() {
        let scope = Scope { servers: 0, ..SCOPE };
        assert!(faults(1, scope).iter().all(|fault| PROCESSES_ONLY.contains(&fault.kind)));
    }
}
