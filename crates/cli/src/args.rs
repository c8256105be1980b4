//! The command line: what can be said, and nothing about what is then done.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tenure::{Options, OwnerId, parse_duration};

use crate::{exit, stores};

/// Locks shared by processes and machines, each held for a term and with a fencing token
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = exit::TABLE, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line with what only the engines know: the help on store URLs.
pub(crate) fn command() -> clap::Command {
    let texts = [stores::help(), exit::TABLE.to_owned()];
    let command = Arguments::command().after_long_help(texts.join("\n"));
    command.mut_arg("store", |store| store.help(stores::summary()))
}

/// What every command understands.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    // Its help comes from the engines: see `command`.
    // Not parsed here: clap would repeat a malformed URL, with its password, in its message.
    #[arg(long, value_name = "URL", env = "TENURE_STORE", default_value = "local")]
    #[arg(global = true, hide_env_values = true)]
    pub(crate) store: String,
    /// Whether the store's URL is in the command line, where `ps` shows it.
    #[arg(skip)]
    pub(crate) store_is_visible: bool,
    /// One JSON object a line on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing of a lock that is busy or waited for, and give no advice; faults are told
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Tell on standard error what tenure does and waits for; -vv tells more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Hold(Hold),
    Ls(Ls),
    Status(Status),
    Watch(Watch),
    Release(Release),
    Doctor(Doctor),
    Completions(Completions),
    Man(Man),
}

/// Run a command while holding a lock
///
/// The command gets tenure's standard input and output, its signals and its terminal, and finds
/// TENURE_LOCK, TENURE_TOKEN, TENURE_OWNER, TENURE_STORE and, where the store has a password,
/// TENURE_STORE_PASSWORD in its environment. When tenure dies, by whatever signal, the command and
/// the processes of its group are killed, and the lock is given back. A tenure that is stopped (^Z)
/// does not renew the lock, and loses it when the TTL has passed.
///
/// Under another tenure run that holds the same lock, found in TENURE_HELD and checked in the store,
/// the command runs under that hold: the mode must be the same, and --ttl and --label have no effect.
///
/// When the store does not confirm the lock for half the TTL, the command is stopped before the lease
/// ends and another can hold the lock: SIGTERM comes --grace before SIGKILL, and SIGKILL half a second
/// (or a tenth of a shorter TTL) before the end of the lease. Where the TTL leaves less time than
/// --grace, the grace is shorter. A command that got SIGTERM is not called back when the store
/// answers again: it keeps the lock and its grace, and tenure exits with 76. If the loss comes
/// without warning, the command gets SIGKILL at once (tenure itself, or the machine, stood still
/// past the end of the lease), or SIGTERM and after --grace SIGKILL (the lock was taken by force, or
/// the store has lost it): meanwhile another may hold the lock, and only the token protects what
/// both write to. Processes that have left the command's group, or have another user's rights, are
/// not stopped; the latter are reported.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true), after_help = exit::TABLE)]
#[command(override_usage = "tenure run [OPTIONS] NAME -- COMMAND [ARGS...]\n       \
                            tenure run [OPTIONS] NAME -c 'SHELL LINE'")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// What happens to the command when the lock is about to be lost
    #[arg(long, value_name = "WHAT", env = "TENURE_ON_LOST", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// How long before SIGKILL the command gets SIGTERM, if the TTL leaves time for it
    #[arg(long, value_name = "DURATION", env = "TENURE_GRACE", default_value = "5s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// Do not pass the store's password on to the command: `tenure` and other programs in it then
    /// have to find a password of their own
    #[arg(long)]
    pub(crate) withhold_password: bool,
    /// Run this line with /bin/sh
    #[arg(short = 'c', value_name = "SHELL LINE", group = "what")]
    pub(crate) shell_line: Option<OsString>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", group = "what")]
    pub(crate) command: Vec<OsString>,
}

/// Hold a lock until told to let go
///
/// Prints NAME TOKEN OWNER when the lock is held (TOKEN is `-` where the store gives none), then
/// holds it until SIGINT, SIGTERM, SIGHUP or SIGQUIT, or with --stdin until standard input closes.
/// If the line cannot be written, the lock is given back, and tenure dies of SIGPIPE.
///
/// With --fd, for a part of a script, it returns when the lock is held, and a process in the
/// background holds it until the descriptor is closed, also by the end of the script:
/// `exec 9>"$(mktemp)"; tenure hold --fd 9 NAME || exit; ...; exec 9>&-`.
/// Every process that the script starts meanwhile has the descriptor, too, and the lock is held until
/// the last of them has closed it. When the lock is lost, --on-lost says what happens to the script.
#[derive(Args, Debug)]
#[command(after_help = exit::TABLE)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// Let go when standard input closes, too
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Hold the lock in the background, as long as this descriptor of the caller is open; it must be
    /// open for writing, to a file that other users cannot open
    #[arg(long, value_name = "N", conflicts_with = "stdin")]
    #[arg(value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) fd: Option<i32>,
    /// With --fd: what happens to the process that called tenure, and to its descendants, when the
    /// lock is lost
    #[arg(long, value_name = "WHAT", env = "TENURE_ON_LOST", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// How long --on-lost term waits before it kills
    #[arg(long, value_name = "DURATION", env = "TENURE_GRACE", default_value = "5s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) grace: Duration,
}

/// What lock, and how it is to be held.
#[derive(Args, Debug)]
pub(crate) struct Lock {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Do not wait: exit with 75 if the lock is busy, without a word unless on a terminal or with -v
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most so long, then exit with 75, or with the code of what kept the store from
    /// answering [default: wait for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Hold it alone (the default)
    #[arg(short = 'x', long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) exclusive: bool,
    /// Hold it together with other shared holders
    #[arg(short, long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// A semaphore of N permits: take one of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Take K permits at once
    #[arg(long, value_name = "K", requires = "permits", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) take: u32,
    /// The lease: how long others wait when the holder vanishes; renewed at a third of it
    /// [default: 30s, or less if the store allows only less]
    #[arg(long, value_name = "DURATION", env = "TENURE_TTL", value_parser = parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// Give up the lock after this time, whatever the command does [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// The exit code for a lock that is busy or not free in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::BUSY)]
    pub(crate) busy_exit_code: u8,
    /// What ls and status show of this holder [default: the command's name, without arguments]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM, and SIGKILL before the lease ends
    Term,
    /// SIGKILL before the lease ends
    Kill,
    /// A warning only: it goes on without the lock
    Nothing,
}

/// List the locks that are held or waited for
///
/// One row per holder: NAME MODE HOLDER TOKEN AGE TTL WAITERS.
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Show who holds a lock, and who waits for it, in order
///
/// Exits with 0 if the lock is held and with 1 if it is free.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The lock
    pub(crate) name: String,
}

/// Print a line for every change, until interrupted
///
/// Begins with what is held and waited for. The store is looked at in intervals and compared with
/// the time before: what comes and goes between two looks is not seen.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Only locks whose name begins with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// The interval
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = parse_duration)]
    pub(crate) every: Duration,
}

/// Undo a claim
///
/// With --owner: releases the lock in the name of that owner, as it would itself; one that waits
/// loses its place, and goes to the end of the line if it still wants the lock. With --force: takes
/// the lock away from everybody who holds it now; the token advances, and the store keeps a record
/// with the reason. Exits with 1 if nobody held it.
///
/// Another can have the lock at once. Whoever lost it hears of it at the latest when it next renews,
/// within a third of its TTL: until then only the token protects what both write to.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whose").required(true))]
pub(crate) struct Release {
    /// The lock
    pub(crate) name: String,
    /// The owner, as `tenure status` shows it
    #[arg(long, value_name = "ID", group = "whose")]
    pub(crate) owner: Option<OwnerId>,
    /// Take it from whoever holds it; asks for a --reason
    #[arg(long, group = "whose", requires = "reason")]
    pub(crate) force: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", requires = "force")]
    pub(crate) reason: Option<String>,
}

/// Say whether this store is fit to lock on
///
/// Prints what was looked at, the worst first: `unsafe` where locks can be lost or given to two,
/// `advice` where something could be better or could not be looked at, and `fine`; and with each
/// what to do about it. Takes and releases a lock of its own, with a name that nobody uses. Exits
/// with 1 if something is unsafe.
#[derive(Args, Debug)]
pub(crate) struct Doctor {}

/// Print a shell's completion script
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page
#[derive(Args, Debug)]
pub(crate) struct Man {}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text).map_err(|error| error.to_string())?;
    match (Options::MIN_TTL..=Options::MAX_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err("choose a TTL between 100ms and 24h".into()),
    }
}
