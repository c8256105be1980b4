//! What all scenarios need of the machine: pinning to cores, CPU times and runtimes.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::runtime::Runtime;

use crate::Outcome;

/// Pins this thread, and the threads and processes that it starts from now on, to one core.
pub(crate) fn pin_to_core(core: usize) -> Outcome<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Undoes [`pin_to_core`].
pub(crate) fn unpin() -> Outcome<()> {
    let mut cores = CpuSet::new();
    // The kernel ignores cores that do not exist.
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    Ok(sched_setaffinity(None, &cores)?)
}

/// The CPU time that a process has used, that of its ended threads included.
#[allow(unsafe_code, reason = "rustix reads no clocks of other processes")]
pub(crate) fn cpu_of(pid: u32) -> Outcome<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let pid = libc::pid_t::try_from(pid)?;
    // SAFETY: the kernel writes to a variable of this function.
    let failed = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(failed).into());
    }
    // SAFETY: as above.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(Duration::new(time.tv_sec.try_into()?, time.tv_nsec.try_into()?))
}

/// The memory that a process occupies, in bytes.
pub(crate) fn memory_of(pid: u32) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or("no size in /proc/…/statm")? * rustix::param::page_size() as u64)
}

/// A runtime with one thread, or a multi-threaded one.
pub(crate) fn runtime(threads: usize) -> Outcome<Runtime> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    Ok(builder.enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_includes_threads_that_have_ended() {
        const BUSY: Duration = Duration::from_millis(60);
        let this = std::process::id();
        let before = cpu_of(this).unwrap();
        let busy = std::thread::spawn(move || {
            let own = || clock_gettime(ClockId::ThreadCPUTime);
            let start = own();
            while Duration::try_from(own() - start).is_ok_and(|used| used < BUSY) {}
        });
        busy.join().unwrap();
        assert!(cpu_of(this).unwrap() - before >= BUSY);
    }

    #[test]
    fn the_cpu_time_of_a_process_that_does_not_exist_is_an_error() {
        // Above the highest number that Linux gives.
        assert!(cpu_of((1 << 22) + 1).is_err());
    }
}
