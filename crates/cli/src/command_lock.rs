//! Keeps the commands of two processes apart on the local store.
//!
//! The local store frees the lock of a killed tenure at once, while the guardian may still have to kill
//! the command. So the guardian keeps a byte of a file of the store locked until it has: the next leader
//! starts its command only then. On the other stores the guardian itself frees the lock, or its lease ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::args;
use crate::child::lock_byte;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::lock::Held;
use crate::output;

/// That no command of an earlier leader runs, as far as the store does not ensure it.
#[derive(Debug)]
pub(crate) struct CommandLock(Option<File>);

/// The file of the local store whose bytes are locked. The store itself locks it as a whole, by `flock`,
/// which is independent of locks on bytes.
const FILE: &str = "init";

const POLL: Duration = Duration::from_millis(5);

/// After what time a wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

impl CommandLock {
    /// Waits until the command of the last leader has ended. Inside another `tenure elect`, the command
    /// of the leader is this process itself.
    pub(crate) async fn take(
        connection: &Connection,
        lock: &args::Lock,
        held: &Held,
    ) -> Result<Self, Failure> {
        if matches!(held, Held::Inherited(_)) {
            return Ok(Self(None));
        }
        let capabilities = connection.client.store().capabilities();
        let directory = connection.url.file();
        let (true, Some(directory)) = (capabilities.detects_death, directory) else {
            return Ok(Self(None));
        };
        let path = directory.join(FILE);
        let fault = |error| Failure::system(&format!("open {}", path.display()), &error);
        let file = File::options().write(true).open(&path).map_err(fault)?;
        let (byte, started) = (byte(&lock.name), Instant::now());
        let mut reported = false;
        while let Err(error) = lock_byte(file.as_raw_fd(), byte) {
            if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
                return Err(Failure::system(&format!("lock {}", path.display()), &error));
            }
            if !reported && started.elapsed() >= REPORT_AFTER {
                reported = true;
                let name = &lock.name;
                output::report(&format!(
                    "leading {name:?}, but the command of the last leader still runs: waiting for \
                     its end"
                ));
            }
            sleep(POLL).await;
        }
        Ok(Self(Some(file)))
    }

    /// For the guardian, which keeps it until the command has ended.
    pub(crate) fn into_stdio(self) -> Stdio {
        self.0.map_or_else(Stdio::null, Stdio::from)
    }
}

/// The byte for a name. If two names share one, their commands do not run at the same time.
fn byte(name: &str) -> i64 {
    // FNV-1a: every version of tenure must compute the same.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // At most half the largest offset, so that the end of the byte is in range as well.
    (hash >> 2) as i64
}
