//! What all scenarios need of the machine: pinning to cores, CPU times and runtimes.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::runtime::Runtime;

use crate::Outcome;

/// Pins this process, and the processes that it starts from now on, to one core.
pub(crate) fn pin_to_core(core: usize) -> Outcome<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Undoes [`pin_to_core`], which an earlier scenario may have called.
pub(crate) fn unpin() -> Outcome<()> {
    let mut cores = CpuSet::new();
    // The kernel ignores cores that do not exist.
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    Ok(sched_setaffinity(None, &cores)?)
}

/// The CPU time that a process has used.
pub(crate) fn cpu_of(pid: u32) -> Outcome<Duration> {
    // The first number of `schedstat` is the time on a core in nanoseconds.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut nanos = 0;
    for thread in threads {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
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
