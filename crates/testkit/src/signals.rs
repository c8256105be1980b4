//! Signal dispositions of the processes that tests start.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// Gives the command's process the default action for every signal, and blocks none.
///
/// A new process inherits which signals are ignored and blocked. `nohup` ignores SIGHUP, and a
/// script's background job ignores SIGINT and SIGQUIT: a test must not depend on that.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec `restore` makes system calls and touches its own stack only; it
    // allocates nothing and takes no lock.
    #[allow(unsafe_code, reason = "the only way to do something in the child before it starts")]
    unsafe {
        command.pre_exec(restore)
    }
}

#[allow(unsafe_code, reason = "dispositions are changed by libc alone")]
fn restore() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: restoring the default action installs no code. SIGKILL, SIGSTOP and the signals
        // that the C library reserves are refused, which changes nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` makes a valid set of the memory, which `sigprocmask` reads.
    let set = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_and_blocked_signals_are_not_inherited() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' INT QUIT HUP; exec env --block-signal=USR1 \"$@\"", "sh"]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture"]);
        command.arg("signals::tests::shows_what_a_child_inherits").env("TENURE_TESTKIT_SHOW", "1");
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let masks = shown.lines().filter_map(|line| line.strip_prefix("Sig")?.split_once(":\t"));
        // The C library keeps the signals 32 and 33 to itself, whatever they are set to.
        let standard = |mask: &str| u64::from_str_radix(mask, 16).unwrap() & (u64::MAX >> 33);
        let masks: Vec<_> = masks.map(|(name, mask)| (name, standard(mask))).collect();
        assert_eq!(masks, [("Blk", 0), ("Ign", 0)], "{shown}");
    }

    /// Plays the test that was started with signals ignored.
    #[test]
    fn shows_what_a_child_inherits() {
        if std::env::var_os("TENURE_TESTKIT_SHOW").is_some() {
            let mut command = Command::new("grep");
            command.args(["-E", "Sig(Ign|Blk)", "/proc/self/status"]);
            assert!(with_default_signals(&mut command).status().unwrap().success());
        }
    }
}
