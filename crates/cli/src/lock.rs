//! From lock options to a guard.

use tenure::{Error, ErrorKind, Guard, LockName, Options, Result, Wait};

use crate::connection::Connection;
use crate::exit::{self, Failure};
use crate::held::Held;
use crate::{args, nested, output, waiting};

/// Takes the lock as the options say, or enters it where the `tenure run` around us holds it.
pub(crate) async fn take(
    connection: &Connection,
    arguments: &args::Lock,
    label: &str,
) -> Result<Held, Failure> {
    if let Some(entered) = nested::enter(connection, arguments).await? {
        return Ok(Held::Entered(entered));
    }
    let acquiring = acquire(connection, arguments, options(arguments, label));
    let guard = match arguments.no_wait {
        true => acquiring.await,
        false => waiting::telling(&connection.client, &arguments.name, acquiring).await,
    };
    guard.map(Held::Own).map_err(|error| failure(&error, arguments))
}

/// The name, refused before anything is started for it.
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

async fn acquire(connection: &Connection, lock: &args::Lock, options: Options) -> Result<Guard> {
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

fn failure(error: &Error, arguments: &args::Lock) -> Failure {
    let line = exit::line(error);
    match error.kind() {
        // `-n` asks a question: where no person reads it, the code is the answer, as flock's is.
        ErrorKind::Busy | ErrorKind::TimedOut
            if output::is_quiet() || (arguments.no_wait && !output::is_watched()) =>
        {
            Failure::new(arguments.busy_exit_code, "")
        }
        ErrorKind::Busy | ErrorKind::TimedOut => {
            let name = &arguments.name;
            let line = format!("{line}; `tenure status {name:?}` shows who holds it");
            Failure::new(arguments.busy_exit_code, line)
        }
        kind => Failure::new(exit::code(kind), line),
    }
}
