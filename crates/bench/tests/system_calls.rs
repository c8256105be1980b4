//! System calls of a free local lock, as a count: unlike a time, it is the same on a busy machine.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use tenure_testkit::Process;

/// Traces the first thread of a process, from this thread.
struct Tracer(libc::pid_t);

impl Tracer {
    /// Stops the thread, in whatever call it is.
    fn of(pid: u32) -> io::Result<Self> {
        let tracer = Self(pid.try_into().map_err(io::Error::other)?);
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        tracer.request(libc::PTRACE_SEIZE, 0, options as usize)?;
        tracer.request(libc::PTRACE_INTERRUPT, 0, 0)?;
        tracer.stopped()?;
        Ok(tracer)
    }

    /// Lets the thread go on to the beginning or end of its next system call.
    fn go_on(&self) -> io::Result<()> {
        self.request(libc::PTRACE_SYSCALL, 0, 0).map(drop)
    }

    /// Waits until the thread stops. Whether it does so for a system call.
    fn stopped(&self) -> io::Result<bool> {
        let mut status = 0;
        // SAFETY: the kernel writes to a variable of this function.
        #[allow(unsafe_code, reason = "rustix does not wait for threads that are traced")]
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        match waited {
            -1 => Err(io::Error::last_os_error()),
            _ if !libc::WIFSTOPPED(status) => Err(io::Error::other("the traced process ended")),
            _ => Ok(libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80),
        }
    }

    /// The number and first argument of the system call that begins. `None`: one ends.
    fn beginning(&self) -> io::Result<Option<(u64, u64)>> {
        // The beginning of `struct ptrace_syscall_info`: what happens and where; number and arguments.
        let mut info = [0_u64; 11];
        let size = size_of_val(&info);
        self.request(libc::PTRACE_GET_SYSCALL_INFO, size, info.as_mut_ptr() as usize)?;
        let begins = info[0] as u8 == libc::PTRACE_SYSCALL_INFO_ENTRY;
        Ok(begins.then_some((info[3], info[4])))
    }

    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<i64> {
        // SAFETY: the only request that writes to memory is given an array and its size.
        #[allow(unsafe_code, reason = "rustix has no ptrace")]
        let outcome = unsafe { libc::ptrace(request, self.0, address, data) };
        if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
    }
}

/// The system calls of the process's first thread, by number, from a request until it reads the next one.
fn calls(process: &mut Process, tracer: &Tracer, request: &str) -> io::Result<BTreeMap<u64, u64>> {
    let (read, write) = (libc::SYS_read as u64, libc::SYS_write as u64);
    process.send(request)?;
    let (mut counts, mut has_replied) = (BTreeMap::new(), false);
    loop {
        tracer.go_on()?;
        if !tracer.stopped()? {
            continue;
        }
        match tracer.beginning()? {
            Some((number, 0)) if number == read && has_replied => return Ok(counts),
            Some((number, 0)) if number == read => {}
            Some((number, 1)) if number == write => has_replied = true,
            Some((number, _)) => *counts.entry(number).or_default() += 1,
            None => {}
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_free_local_lock_is_taken_and_released_without_a_system_call() {
    const PAIRS: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("local:{}", folder.path().display());
    let program = Path::new(env!("CARGO_BIN_EXE_tenure-bench"));
    let mut client =
        Process::start(program, &["peer", "drive-tenure", &url, "system-calls"]).unwrap();
    // The first locks set up what all later ones use.
    client.send("free 400").unwrap();
    client.line(Duration::from_secs(60)).await.unwrap();
    let tracer = match Tracer::of(client.pid()) {
        Ok(tracer) => tracer,
        Err(error) => return tenure_testkit::skip("system calls", &format!("no ptrace: {error}")),
    };
    let none = calls(&mut client, &tracer, "free 0").unwrap();
    let some = calls(&mut client, &tracer, &format!("free {PAIRS}")).unwrap();
    println!("by number: {some:?}; without a lock: {none:?}");
    let sum = |counts: &BTreeMap<u64, u64>| counts.values().sum::<u64>();
    let each = sum(&some).saturating_sub(sum(&none)) as f64 / PAIRS as f64;
    // Randomness for owner ids is drawn for 64 of them at a time.
    assert!(each <= 0.2, "{each} system calls for an acquire and release: {some:?}");
}
