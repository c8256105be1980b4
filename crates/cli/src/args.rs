//! The definition of the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tenure::{Options, OwnerId, parse_duration};

use crate::{exit, stores};

/// Distributed locks with leases and fencing tokens
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = exit::TABLE, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line, with the help on store URLs that the engines provide.
pub(crate) fn command() -> clap::Command {
    let texts = [stores::help(), exit::TABLE.to_owned()];
    let command = Arguments::command().after_long_help(texts.join("\n"));
    command.mut_arg("store", |store| store.help(stores::summary()))
}

/// The options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    // `command` sets its help.
    // Not parsed here, because clap would print a malformed URL, with its password, in its message.
    #[arg(long, value_name = "URL", env = "TENURE_STORE", default_value = "local")]
    #[arg(global = true, hide_env_values = true)]
    pub(crate) store: String,
    /// Whether the URL of the store was given on the command line, where `ps` shows it.
    #[arg(skip)]
    pub(crate) store_is_visible: bool,
    /// Print results as JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Do not report that a lock is busy or waited for, and print no advice; errors are still printed
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log to standard error what tenure does and waits for; -vv logs more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Elect(Elect),
    Hold(Hold),
    Ls(Ls),
    Status(Status),
    Watch(Watch),
    Release(Release),
    Revoke(Revoke),
    Audit(Audit),
    Blame(Blame),
    #[cfg(feature = "top")]
    Top(Top),
    #[cfg(feature = "ui")]
    Ui(Ui),
    Doctor(Doctor),
    Bench(Bench),
    Demo(Demo),
    #[cfg(feature = "lab")]
    Lab(Lab),
    Completions(Completions),
    Man(Man),
}

/// Run a command while holding a lock
///
/// The command inherits tenure's standard input, output and error, and its terminal; signals sent to
/// tenure are forwarded to it. Its environment has TENURE_LOCK, TENURE_TOKEN, TENURE_OWNER,
/// TENURE_STORE and, if the store has a password, TENURE_STORE_PASSWORD. If tenure dies, by whatever
/// signal, the command and the other processes of its process group are killed, and the lock is
/// released. While tenure is stopped (^Z) it does not renew the lock, and loses it when the TTL has
/// passed; its guardian process kills the command before that.
///
/// Inside another `tenure run` that holds the same lock, the command runs under that hold instead of
/// waiting for it (the hold is found through TENURE_HELD and checked in the store). The mode must be
/// the same, and --ttl and --label have no effect.
///
/// If the store does not confirm the lock for half the TTL, tenure stops the command before the lease
/// ends and another process can get the lock: it sends SIGKILL half a second (or a tenth of a shorter
/// TTL) before the end of the lease, and SIGTERM --grace before that, or less if the TTL leaves less
/// time. If the store answers again after SIGTERM, the lock stays held until the command has ended or
/// --grace has passed; tenure exits with 76 even so.
///
/// If the lock is lost without warning, another process may hold it before the command has ended, and
/// only the fencing token protects what both write to. The command gets SIGKILL at once if tenure or
/// the machine was suspended past the end of the lease, and SIGTERM, then SIGKILL after --grace, if
/// the lock was released by force or the store has lost it.
///
/// Processes that have left the command's process group are not stopped. Processes that tenure has no
/// permission to signal are reported.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("program").required(true), after_help = exit::TABLE)]
#[command(override_usage = "tenure run [OPTIONS] NAME -- COMMAND [ARGS...]\n       \
                            tenure run [OPTIONS] NAME -c 'SHELL LINE'")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// What to do with the command when the lock is lost or about to be lost
    #[arg(long, value_name = "ACTION", env = "TENURE_ON_LOST", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Keep the lock taken for this long after it was acquired, although the command ends sooner:
    /// tenure exits with the command, and a background process holds the lock
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) at_least: Option<Duration>,
    /// Run the command only if it has not succeeded in this period, counted from the start of that
    /// run; otherwise report that run and exit with 0, or with the code of -E
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    #[arg(conflicts_with_all = ["shared", "permits"])]
    pub(crate) once_per: Option<Duration>,
    #[command(flatten)]
    pub(crate) program: Program,
}

/// Keep a command running on one machine at a time
///
/// Run it with the same NAME on several machines: one of them leads, which means that it holds the lock
/// NAME, and runs the command. The others stand by. When the leader dies, is cut off from the store or
/// is asked to stop, the next one in the queue takes over. The command has the environment, terminal
/// and signals of `tenure run`, and TENURE_TOKEN is higher for every later leader.
///
/// If the command exits, --on-exit decides. If the leadership is about to be lost, the command is
/// stopped before the lease ends, as by `tenure run`, and tenure stands by again. SIGTERM, SIGINT,
/// SIGHUP and SIGQUIT are forwarded to the command; when it has
/// ended, tenure resigns, so that the next one leads, and exits as `tenure run` would.
///
/// The command does not run twice at a time: if tenure is killed or stopped, its guardian process kills
/// the command before another tenure can lead or, on the local store, before that one starts its
/// command. If the machine is frozen, only the fencing token protects what the command writes to.
///
/// Messages on standard error say which process leads; with --json they are objects, one per line.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("program").required(true), after_help = exit::TABLE)]
#[command(override_usage = "tenure elect [OPTIONS] NAME -- COMMAND [ARGS...]\n       \
                            tenure elect [OPTIONS] NAME -c 'SHELL LINE'")]
pub(crate) struct Elect {
    /// Name of the election, and of its lock
    #[arg(value_name = "NAME")]
    name: String,
    /// What to do when the command exits
    #[arg(long, value_name = "ACTION", default_value = "restart")]
    pub(crate) on_exit: OnExit,
    /// Lease duration: another process leads this long after the leader has disappeared. Renewed after
    /// a third of it [default: 30s, or the maximum of the store if that is shorter]
    #[arg(long, value_name = "DURATION", env = "TENURE_TTL", value_parser = parse_ttl)]
    ttl: Option<Duration>,
    /// Description of this process for ls and status [default: name of the command, without arguments]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    pub(crate) program: Program,
}

impl Elect {
    /// The lock that the leader holds.
    pub(crate) fn lock(&self) -> Lock {
        Lock {
            name: self.name.clone(),
            no_wait: false,
            wait: None,
            exclusive: true,
            shared: false,
            permits: None,
            take: 1,
            ttl: self.ttl,
            max_hold: None,
            busy_exit_code: None,
            label: self.label.clone(),
            #[cfg(feature = "metrics")]
            metrics: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Start it again here after a pause: a second, then twice as long each time up to a minute, until
    /// it has run for a minute
    Restart,
    /// Let the next process lead, and stand by again after such a pause
    Resign,
    /// Let the next process lead, and exit with the command's code
    Exit,
}

/// A command, and how it is ended.
#[derive(Args, Debug)]
pub(crate) struct Program {
    /// Time between SIGTERM and SIGKILL; less if the TTL leaves less
    #[arg(long, value_name = "DURATION", env = "TENURE_GRACE", default_value = "5s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// Do not pass the store's password to the command; programs in it that use the store need a
    /// password of their own
    #[arg(long)]
    pub(crate) withhold_password: bool,
    /// Run this line with /bin/sh
    #[arg(short = 'c', value_name = "SHELL LINE", group = "program")]
    pub(crate) shell_line: Option<OsString>,
    /// Command and arguments
    #[arg(last = true, value_name = "COMMAND", group = "program")]
    pub(crate) command: Vec<OsString>,
}

/// Hold a lock until interrupted
///
/// Prints NAME TOKEN OWNER when the lock is held (TOKEN is `-` if the store issues none), then holds
/// it until SIGINT, SIGTERM, SIGHUP or SIGQUIT, or with --stdin until standard input is closed. If
/// the line cannot be written, tenure releases the lock and ends by SIGPIPE.
///
/// With --fd, for a part of a script, tenure returns when the lock is held, and a background process
/// holds it until the descriptor is closed, at the latest by the end of the script:
///
/// `exec 9>"$(mktemp)"; tenure hold --fd 9 NAME || exit; ...; exec 9>&-`
///
/// Processes that the script starts meanwhile inherit the descriptor: the lock is held until the last
/// of them has closed it or exited. If the lock is lost, --on-lost says what happens to the script.
#[derive(Args, Debug)]
#[command(after_help = exit::TABLE)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// Release the lock when standard input is closed, too
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Hold the lock in the background while this descriptor of the caller is open; it must be open
    /// for writing, to a file that other users cannot open
    #[arg(long, value_name = "N", conflicts_with = "stdin")]
    #[arg(value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) fd: Option<i32>,
    /// With --fd: what to do with the calling process and its descendants when the lock is lost
    #[arg(long, value_name = "ACTION", env = "TENURE_ON_LOST", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// With --fd: time between SIGTERM and SIGKILL; less if the TTL leaves less
    #[arg(long, value_name = "DURATION", env = "TENURE_GRACE", default_value = "5s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) grace: Duration,
}

/// The lock, and how to acquire and hold it.
#[derive(Args, Debug)]
pub(crate) struct Lock {
    /// Name of the lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Do not wait: exit with 75 if the lock is busy, with a message only on a terminal or with -v
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most this long, then exit with 75, or with the code of the store's error if the store
    /// did not answer [default: wait forever]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Take the lock exclusively (the default)
    #[arg(short = 'x', long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) exclusive: bool,
    /// Take the lock in shared mode, together with other shared holders
    #[arg(short, long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Use the lock as a semaphore of N permits, and take one of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Take K permits of the semaphore
    #[arg(long, value_name = "K", requires = "permits", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) take: u32,
    /// Lease duration: the lock becomes free this long after its holder has disappeared. Renewed
    /// after a third of it [default: 30s, or the maximum of the store if that is shorter]
    #[arg(long, value_name = "DURATION", env = "TENURE_TTL", value_parser = parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// Hold the lock at most this long, then stop as if it were lost [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Exit code if the lock is busy or does not become free in time [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) busy_exit_code: Option<u8>,
    /// Description of this holder for ls and status [default: name of the command, without arguments]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Serve metrics for Prometheus on this address while the lock is waited for and held, such as
    /// 127.0.0.1:9464; without authentication. An address that is taken is a warning only
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<std::net::SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send SIGTERM, and SIGKILL before the lease ends
    Term,
    /// Send SIGKILL before the lease ends
    Kill,
    /// Print a warning only; the command continues without the lock
    Nothing,
}

/// List the locks that are held or waited for
///
/// Prints one row per holder: NAME MODE HOLDER TOKEN AGE TTL WAITERS. TTL is what remains of the
/// lease.
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Show the holders of a lock, and its waiters in queue order
///
/// Exits with 0 if the lock is held and with 1 if it is free.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Name of the lock
    pub(crate) name: String,
}

/// Show which process waited for which, longest first
///
/// Each `tenure` that waits longer than a second for a lock remembers in the store which process held it
/// meanwhile, for a day; so this works on any machine, and after the stall. Programs do so if they
/// switch it on (`Client::with_long_waits`). Waits that are not over are shown for all claims. A wait
/// that is ended by SIGKILL is not remembered. Times are by the clocks of the machines that waited.
///
/// Processes that wait for each other in a circle are shown as a deadlock.
#[derive(Args, Debug)]
pub(crate) struct Blame {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Only waits that ended within this time, or are not over
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) since: Duration,
}

/// Show the locks live in the terminal, the worst first
///
/// For each lock: mode, holder, token, age, how much of the holder's lease is left, waiters, the oldest
/// wait, hand-offs a second and the 99th percentile of the waits that were seen. `?` shows the keys.
/// Works in 80 columns and 24 rows, over ssh, and without colour (NO_COLOR). A store that does not answer
/// is shown as such.
#[cfg(feature = "top")]
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Polling interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) every: Duration,
}

/// Show the locks live on a page for the browser
///
/// Prints the URL to open, and serves the page until interrupted. Without options, only this machine can
/// reach it, and it releases nothing. At the start, the doctor takes and releases a lock of its own.
/// With --allow-release, or where --listen names an address that other
/// machines can reach, the page needs the token in the printed URL. Users who have that URL can see the locks
/// and, with --allow-release, release them by force. The connection is not encrypted.
#[cfg(feature = "ui")]
#[derive(Args, Debug)]
pub(crate) struct Ui {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Address and port to serve the page on; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7654")]
    pub(crate) listen: std::net::SocketAddr,
    /// Allow locks to be released by force from the page
    #[arg(long)]
    pub(crate) allow_release: bool,
    /// Polling interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) every: Duration,
}

/// Print a line for every change, until interrupted
///
/// Starts with the current holders and waiters. The store is polled at an interval: a change that is
/// undone between two polls is not reported. An eviction is shown as one, with its reason. Where there are
/// more than a thousand locks, each poll reads a thousand of them: the new ones, those with the most
/// waiters, and the others in turn.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Sampling interval; a store that pushes changes shows them at once
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) every: Duration,
}

/// Release a lock on behalf of its owner, or evict its holders by force
///
/// With --owner: releases the lock of this owner, as the owner itself would. If the owner is waiting,
/// it loses its queue position, and joins the queue again at the end if it still wants the lock.
/// With --force: evicts all current holders; the fencing token advances, and the store records the
/// eviction with its reason. Exits with 1 if the lock was not held.
///
/// Another process can get the lock at once. The previous holder learns of it at the latest with its
/// next renewal, within a third of its TTL; until then only the fencing token protects what both
/// write to.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("target").required(true))]
pub(crate) struct Release {
    /// Name of the lock
    pub(crate) name: String,
    /// Id of the owner, as `tenure status` shows it
    #[arg(long, value_name = "ID", group = "target")]
    pub(crate) owner: Option<OwnerId>,
    /// Evict all current holders; requires --reason
    #[arg(long, group = "target", requires = "reason")]
    pub(crate) force: bool,
    /// Reason of the eviction, recorded in the store
    #[arg(long, value_name = "TEXT", requires = "force")]
    pub(crate) reason: Option<String>,
}

/// Ask the holders of a lock to let go, and wait until they have
///
/// `tenure run` sends SIGTERM to its command when it is asked, as --on-lost says, and releases the lock
/// when the command has ended: SIGKILL follows shortly before the end of the asker's --grace, or after
/// its own --grace if the asker has none. `tenure hold` releases the lock. Both exit with 76. Programs
/// decide by themselves; holders of other projects' clients do not hear the request.
///
/// With --grace, holders that still have the lock after that time are evicted, as by `tenure release
/// --force`. The store records the request with its reason. Exits with 1 if the lock was not held.
#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Name of the lock
    pub(crate) name: String,
    /// Reason, which the holder is told, and which is recorded in the store
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Evict the holders after this time [default: never, wait until they let go]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) grace: Option<Duration>,
    /// Wait at most this long, then exit with 75 and evict nothing [default: wait forever]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration)]
    #[arg(conflicts_with = "grace")]
    pub(crate) wait: Option<Duration>,
}

/// List the evictions and revocations of a lock, newest first
///
/// Prints one row per record: EVENT AGO OWNER TOKEN BY REASON. The store keeps the last 100 at the
/// least. Times are those of the machine that evicted or revoked.
#[derive(Args, Debug)]
pub(crate) struct Audit {
    /// Name of the lock
    pub(crate) name: String,
}

/// Check whether the store is safe to lock on
///
/// Prints one finding per line, the most severe first: `unsafe` if locks can be lost or granted
/// twice, `advice` if something could be improved or could not be checked, or `fine`. A finding that
/// is not fine is followed by its remedy. Takes and releases a test lock with a random name. Exits
/// with 1 if something is unsafe.
#[derive(Args, Debug)]
pub(crate) struct Doctor {}

/// Measure how fast locks are on the store
///
/// Prints a row for each operation: a look at a free lock, which is the least that a call costs; an
/// acquire and a release of a free lock, by one task and by many on a lock each; and the time from a
/// release to the next holder, which waits in another connection. Each takes --time. The locks have
/// random names below bench/ and are free at the end.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// How long each operation is repeated
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// Number of tasks that take a lock each at the same time
    #[arg(long, value_name = "N", default_value = "64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,
}

/// Show on a store what locks are for
#[derive(Args, Debug)]
pub(crate) struct Demo {
    #[command(subcommand)]
    pub(crate) demo: Demos,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Demos {
    Oversell(Oversell),
}

/// Sell more than there is, and then no more than there is
///
/// First two buyers, step by step, then a crowd in several processes: without a lock, with a mutex,
/// with WATCH / MULTI / EXEC (on Redis), with compare and swap, and with a counter that has a floor.
/// Prints a table of what was sold, oversold, retried and waited for. The values that it writes have
/// names below demo/oversell/, and are removed at the end; what a killed demo leaves expires after
/// ten minutes.
#[derive(Args, Debug)]
pub(crate) struct Oversell {
    /// Number of buyers in the crowd; each orders one
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub(crate) buyers: u32,
    /// Number of processes that the buyers are in
    #[arg(long, value_name = "N", default_value = "4")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: u32,
    /// What is in stock for the crowd
    #[arg(long, value_name = "N", default_value = "100")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) stock: u64,
    /// Be one of the processes
    #[arg(long, hide = true)]
    pub(crate) as_buyers: bool,
}

/// Play the hazards of distributed locks on private servers
///
/// Starts servers of its own on the loopback address, in temporary directories, and plays scripted
/// hazards against lock algorithms with real processes: crashes, pauses, partitions, failovers, wrong
/// clocks. Each experiment ends with a verdict: `safe`, `fenced` (two clients believed that they held it,
/// and every stale write was rejected), `broken`, or `-` where it does not apply. Some algorithms are
/// specimens, known to be broken: they show that the experiments can tell. --store is not used.
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) lab: Labs,
}

#[cfg(feature = "lab")]
#[derive(Debug, Subcommand)]
pub(crate) enum Labs {
    Ls(LabLs),
    Run(LabRun),
    Matrix(LabMatrix),
    LockSet(LabLockSet),
    Soak(LabSoak),
    #[command(hide = true)]
    Client(LabClient),
}

/// List the hazards and the algorithms
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabLs {}

/// Play one hazard against one algorithm, and tell what happened
///
/// Exits with 0 whatever the verdict is, with 1 if the experiment showed nothing, and with 69 if a program is
/// missing.
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabRun {
    /// Name of the hazard
    #[arg(value_name = "HAZARD")]
    pub(crate) hazard: String,
    /// Name of the algorithm
    #[arg(short, long, value_name = "NAME")]
    pub(crate) algorithm: String,
    /// Give each order to a client up to 30 ms late, by random times that the seed repeats
    ///
    /// The verdict must not depend on it.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Write a page with the timeline to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<std::path::PathBuf>,
    /// Show the page in a browser
    #[arg(long)]
    pub(crate) open: bool,
}

/// Play every hazard against every algorithm
///
/// Prints a table, writes a page with a timeline for each experiment, and compares the verdicts with
/// those that are expected. Exits with 1 if any differs, in either direction.
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabMatrix {
    /// Leave out what starts slowly: Sentinel and Cluster
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these hazards; a comma between two
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) hazards: Vec<String>,
    /// Only these algorithms; a comma between two
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) algorithms: Vec<String>,
    /// Experiments at the same time
    #[arg(long, value_name = "N", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) at_once: u8,
    /// Write the page to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<std::path::PathBuf>,
    /// Show the page in a browser
    #[arg(long)]
    pub(crate) open: bool,
    /// Write the timelines of the documentation to this directory
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    pub(crate) pictures: Option<std::path::PathBuf>,
    /// Print the verdicts in the format of the expected ones
    #[arg(long, hide = true)]
    pub(crate) print_expected: bool,
}

/// Count the updates that paused holders destroy
///
/// Processes add to a set under a lock of --store. Every few seconds the holder is stopped in the middle of its
/// work, until its lock has expired and others have written; then it writes what it had read before. One set
/// accepts everything, the other one compares fencing tokens. Prints how many acknowledged updates each of them
/// has lost, and exits with 1 if the fenced one has lost any.
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabLockSet {
    /// How long it lasts
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Number of processes
    #[arg(long, value_name = "N", default_value = "5")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) processes: u8,
    /// Lease duration
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_ttl)]
    pub(crate) ttl: Duration,
    /// Time between two pauses
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) pause_every: Duration,
}

/// Take locks from many processes, while random faults happen
///
/// Processes are stopped for a moment, stopped for longer than the TTL, and killed; acquires are given up, and
/// some writes are sent without a look at the lease. With --algorithm, it starts private servers, which are
/// stopped, killed and restarted, and connections that lose, delay or end what they carry. Otherwise it takes
/// locks of --store, and leaves the servers alone. What happens is judged as by `tenure lab matrix`. Prints the
/// figures, and exits with 1 if beliefs overlapped, a stale write was accepted, a token did not rise, a lock
/// stayed without a holder for too long, or something was left behind.
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabSoak {
    /// Algorithm to soak on private servers: a name that `tenure lab ls` lists
    #[arg(short, long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// How long it lasts
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Number of processes
    #[arg(long, value_name = "N", default_value = "8")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) processes: u8,
    /// Lease duration
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_ttl)]
    pub(crate) ttl: Duration,
    /// Chooses the faults: the same seed replays them
    #[arg(long, value_name = "S", default_value = "1")]
    pub(crate) seed: u64,
    /// Acquires in a second, of all processes together, at most [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
}

/// Be a client process of the laboratory
#[cfg(feature = "lab")]
#[derive(Args, Debug)]
pub(crate) struct LabClient {}

/// Print a completion script for a shell
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Name of the shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page
#[derive(Args, Debug)]
pub(crate) struct Man {}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text).map_err(|error| error.to_string())?;
    match (Options::MIN_TTL..=Options::MAX_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err("the TTL must be between 100ms and 24h".into()),
    }
}
