//! The hazards: what each is, which algorithms it can befall, and how it is played.

mod clients;
mod groups;
mod messages;
mod servers;
mod waiting;

use std::io;
use std::pin::Pin;

use crate::algorithms::{Family, Info, Waiting};
use crate::servers::Setup;
use crate::stage::Stage;

/// A hazard.
#[derive(Debug)]
pub struct Hazard {
    /// Its name on the command line.
    pub id: &'static str,
    /// What it is.
    pub title: &'static str,
    /// What happens, in a sentence or two.
    pub story: &'static str,
    pub(crate) setup: Setup,
    /// Why an algorithm is not concerned; `None` if it is.
    pub(crate) spares: fn(&Info) -> Option<&'static str>,
    pub(crate) play: Play,
}

pub(crate) type Play =
    for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// Makes a [`Play`] of an async function.
macro_rules! play {
    ($function:path) => {
        |stage| Box::pin($function(stage))
    };
}
pub(crate) use play;

/// All hazards.
pub fn all() -> impl Iterator<Item = &'static Hazard> {
    [clients::HAZARDS, messages::HAZARDS, servers::HAZARDS, waiting::HAZARDS].into_iter().flatten()
}

/// The hazard of this name.
pub fn find(id: &str) -> Option<&'static Hazard> {
    all().find(|hazard| hazard.id == id)
}

impl Hazard {
    /// Why the hazard does not concern an algorithm; `None` if it does.
    pub fn spares(&self, info: &Info) -> Option<&'static str> {
        (self.spares)(info)
    }

    /// Which program the experiment lacks beside its servers, and which Debian package has it.
    pub(crate) fn missing(&self) -> Option<String> {
        let needs_clock = self.setup.clock || self.setup.client_clock;
        (needs_clock && !tenure_testkit::is_installed("cc"))
            .then(|| "cc is not installed: Debian has it in gcc".into())
    }
}

pub(crate) const SETUP: Setup = Setup {
    clock: false,
    client_clock: false,
    replicas: 0,
    log: false,
    alone: false,
    redlock_url: "",
    max_hold: None,
};

/// The hazard concerns every algorithm.
fn spares_none(_: &Info) -> Option<&'static str> {
    None
}

/// Servers that only their own addresses reach: clients learn them from the servers.
fn needs_ways(info: &Info) -> Option<&'static str> {
    match info.family {
        Family::Cluster | Family::Sentinel => {
            Some("its clients learn the servers' addresses: played on one server")
        }
        Family::Local => Some("there is no network"),
        _ => None,
    }
}

fn needs_news(info: &Info) -> Option<&'static str> {
    match info.waiting {
        Waiting::Polls | Waiting::Line => Some("its waiters ask again and again"),
        _ => needs_ways(info),
    }
}

/// One Redis server, or a group that replaces its master by itself.
fn has_master(info: &Info) -> Option<&'static str> {
    if is_group(info) { None } else { is_one_redis(info) }
}

fn is_group(info: &Info) -> bool {
    matches!(info.family, Family::Cluster | Family::Sentinel)
}

fn is_one_redis(info: &Info) -> Option<&'static str> {
    match info.family {
        _ if info.family.is_one_redis() => None,
        Family::Redlock => Some("see the hazards of its servers' restarts"),
        Family::Cluster | Family::Sentinel => Some("played on one server"),
        _ => Some("it does not keep its locks in Redis"),
    }
}

fn is_redlock(info: &Info) -> Option<&'static str> {
    match info.family {
        Family::Redlock => None,
        _ => Some("it does not count votes of independent servers"),
    }
}
