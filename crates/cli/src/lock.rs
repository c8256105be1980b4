//! Takes the lock that the command line asks for.

use std::time::Duration;

use tenure::{
    Error, ErrorKind, Guard, LockName, LossReason, Options, OwnerId, Result, Revocation, Token,
    Wait,
};

use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::nested::{self, InheritedLock};
use crate::{args, output, wait_report};

/// Acquires the lock with the given options, or inherits it from a surrounding `tenure run` that
/// already holds it.
pub(crate) async fn acquire(
    connection: &Connection,
    arguments: &args::Lock,
    label: &str,
) -> Result<Held, Failure> {
    let acquiring = acquire_silently(connection, arguments, label);
    match arguments.no_wait {
        true => acquiring.await,
        false => wait_report::report_while(&connection.client, &arguments.name, acquiring).await,
    }
}

/// As [`acquire`], without reports of a long wait.
pub(crate) async fn acquire_silently(
    connection: &Connection,
    arguments: &args::Lock,
    label: &str,
) -> Result<Held, Failure> {
    if let Some(inherited) = nested::inherit(connection, arguments).await? {
        return Ok(Held::Inherited(inherited));
    }
    let guard = acquire_guard(connection, arguments, options(arguments, label)).await;
    guard.map(Held::Own).map_err(|error| failure(&error, arguments))
}

/// Fails if the lock's name is invalid. Called before anything is started or connected.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    Ok(LockName::new(name).map(drop)?)
}

fn options(arguments: &args::Lock, label: &str) -> Options {
    let label = arguments.label.as_deref().unwrap_or(label);
    let mut options = Options::new().label(label);
    if let Some(ttl) = arguments.ttl {
        options = options.ttl(ttl);
    }
    if let Some(limit) = arguments.max_hold {
        options = options.max_hold(limit);
    }
    options
}

async fn acquire_guard(
    connection: &Connection,
    lock: &args::Lock,
    options: Options,
) -> Result<Guard> {
    let (client, name) = (&connection.client, lock.name.as_str());
    let wait = match (lock.no_wait, lock.wait) {
        (true, _) => Wait::NoWait,
        (false, Some(limit)) => Wait::AtMost(limit),
        (false, None) => Wait::Forever,
    };
    if let Some(permits) = lock.permits {
        let semaphore = client.semaphore(name, permits)?.with(options);
        semaphore.acquire_many_with(lock.take, wait).await
    } else if lock.shared {
        client.rw_lock(name)?.with(options).read_with(wait).await.map(Guard::from)
    } else {
        client.mutex(name)?.with(options).acquire_with(wait).await
    }
}

/// The message about the loss of a lock.
pub(crate) fn describe_loss(name: &LockName, reason: LossReason) -> String {
    match reason {
        LossReason::MaxHold => format!("--max-hold has passed: giving up the lock {name:?}"),
        LossReason::NotHeld => {
            format!(
                "lost the lock {name:?}: the store reports that this process no longer holds it"
            )
        }
        _ => format!("lost the lock {name:?}: its lease ended without a renewal"),
    }
}

/// The message about a revocation.
pub(crate) fn describe_revocation(name: &LockName, request: &Revocation) -> String {
    let Revocation { reason, by, .. } = request;
    let (host, pid) = (&by.host, by.pid);
    let left = request
        .remaining()
        .map(|left| format!(" and evicts its holder in {:.1}s", left.as_secs_f64()));
    let left = left.unwrap_or_default();
    format!("{host}:{pid} asks for the lock {name:?}{left}: {reason}")
}

/// The failure for a lock that could not be acquired.
fn failure(error: &Error, arguments: &args::Lock) -> Failure {
    let busy = arguments.busy_exit_code.unwrap_or(exit::BUSY);
    let line = exit::line(error);
    match error.kind() {
        // Like flock, `-n` answers with its exit code alone unless stderr is a terminal or -v is given.
        ErrorKind::Busy | ErrorKind::TimedOut
            if output::is_quiet() || (arguments.no_wait && !output::shows_progress()) =>
        {
            Failure::new(busy, "")
        }
        ErrorKind::Busy | ErrorKind::TimedOut => {
            let name = &arguments.name;
            let line = format!("{line}; `tenure status {name:?}` shows the holder");
            Failure::new(busy, line)
        }
        kind => Failure::new(exit::code(kind), line),
    }
}

/// A lock that is held while a command runs.
#[derive(Debug)]
pub(crate) enum Held {
    /// Held by this process.
    Own(Guard),
    /// Held by a surrounding `tenure run`.
    Inherited(InheritedLock),
}

impl Held {
    pub(crate) fn name(&self) -> &LockName {
        match self {
            Self::Own(guard) => guard.name(),
            Self::Inherited(inherited) => inherited.name(),
        }
    }

    pub(crate) fn owner(&self) -> OwnerId {
        match self {
            Self::Own(guard) => guard.owner(),
            Self::Inherited(inherited) => inherited.owner(),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Own(guard) => guard.token(),
            Self::Inherited(inherited) => inherited.token(),
        }
    }

    /// See [`Guard::ttl`].
    pub(crate) fn ttl(&self) -> Duration {
        match self {
            Self::Own(guard) => guard.ttl(),
            Self::Inherited(inherited) => inherited.ttl(),
        }
    }

    /// See [`Guard::remaining`].
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Own(guard) => guard.remaining(),
            Self::Inherited(inherited) => inherited.remaining(),
        }
    }

    /// See [`Guard::is_valid`].
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Own(guard) => guard.is_valid(),
            Self::Inherited(inherited) => inherited.is_valid(),
        }
    }

    /// See [`Guard::danger`].
    pub(crate) async fn danger(&self) {
        match self {
            Self::Own(guard) => guard.danger().await,
            Self::Inherited(inherited) => inherited.danger().await,
        }
    }

    /// See [`Guard::lost`].
    pub(crate) async fn lost(&self) -> LossReason {
        match self {
            Self::Own(guard) => guard.lost().await,
            Self::Inherited(inherited) => inherited.lost().await,
        }
    }

    /// See [`Guard::revoked`]. Never resolves where requests cannot be heard, and for an inherited lock,
    /// whose holder hears them.
    pub(crate) async fn revoked(&self) -> Revocation {
        match self {
            Self::Own(guard) => match guard.revoked().await {
                Ok(request) => request,
                Err(_) => std::future::pending().await,
            },
            Self::Inherited(_) => std::future::pending().await,
        }
    }

    /// Releases the lock; an inherited one stays with its holder. Fails if it was no longer held.
    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Own(guard) => guard.release().await,
            Self::Inherited(inherited) => inherited.leave(),
        }
    }
}
