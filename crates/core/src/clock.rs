//! The one clock that leases are measured by, and an alarm on it.

pub(crate) use os::Alarm;
pub use os::now;

#[cfg(target_os = "linux")]
mod os {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    use crate::Moment;

    /// The present moment on the clock that runs through suspend (`CLOCK_BOOTTIME`): a machine
    /// that slept wakes up knowing that its leases have ended.
    pub fn now() -> Moment {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        Moment::default() + seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// A timer on the same clock. The runtime's own timers stand still while the machine sleeps.
    pub(crate) struct Alarm(AsyncFd<OwnedFd>);

    impl Alarm {
        #[allow(unsafe_code)]
        pub(crate) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            // SAFETY: the OwnedFd is open, moves into the AsyncFd, and always answers with the
            // same descriptor until it is dropped with it.
            Ok(Self(unsafe { AsyncFd::register(timer) }?))
        }

        /// Sleeps until `moment`. Cancel safe: the next call sets the timer anew.
        pub(crate) async fn sleep_until(&self, moment: Moment) -> io::Result<()> {
            // Zero would disarm the timer, and the far future does not fit a timespec.
            let nanos = moment.as_nanos().clamp(1, i64::MAX as u64);
            let it_value = Timespec {
                tv_sec: (nanos / 1_000_000_000) as i64,
                tv_nsec: (nanos % 1_000_000_000) as i64,
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
            while now() < moment {
                self.0.readable().await?.clear_ready();
            }
            Ok(())
        }

        #[cfg(test)]
        fn raw(&self) -> i32 {
            use std::os::fd::AsRawFd;
            self.0.as_raw_fd()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// In a time namespace that clock can be set apart from the one that stops with the
        /// machine, as a suspend would.
        #[test]
        fn the_clock_is_the_one_that_runs_through_suspend() {
            const ASLEEP: &str = "86400";
            const INSIDE: &str = "TENURE_TEST_INSIDE_TIME_NAMESPACE";
            let monotonic = clock_gettime(ClockId::Monotonic).tv_sec as u64;
            if std::env::var_os(INSIDE).is_some() {
                let ours = now().since(Moment::default()).as_secs();
                assert!(ours >= monotonic + 86_000, "{ours} against {monotonic}");
                return;
            }
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let mut again = std::process::Command::new("unshare");
            again.args(["--time", "--boottime", ASLEEP]).arg(std::env::current_exe().unwrap());
            let output = again.args(["--exact", &test]).env(INSIDE, "1").output();
            let said = output.map(|output| {
                let text = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&text).into_owned()
            });
            match said {
                Ok(said) if said.contains("running 1 test") => {
                    assert!(said.contains("1 passed"), "{said}");
                }
                _ => {
                    use std::io::Write;
                    let why = "skipped: the clock in a suspend: no time namespace to be had";
                    let _ = writeln!(std::io::stdout(), "{why}");
                }
            }
        }

        #[tokio::test]
        async fn the_alarm_is_set_on_the_clock_that_runs_through_suspend() {
            const CLOCK_BOOTTIME: &str = "clockid: 7";
            let alarm = Alarm::new().unwrap();
            let info = format!("/proc/self/fdinfo/{}", alarm.raw());
            let info = std::fs::read_to_string(info).unwrap();
            assert!(info.lines().any(|line| line == CLOCK_BOOTTIME), "{info}");
        }

        #[tokio::test]
        async fn the_alarm_rings_at_its_moment_and_can_be_set_again() {
            let alarm = Alarm::new().unwrap();
            for _ in 0..3 {
                let moment = now() + Duration::from_millis(5);
                alarm.sleep_until(moment).await.unwrap();
                assert!(now() >= moment);
            }
            alarm.sleep_until(Moment::default()).await.unwrap();
        }
    }
}

/// Elsewhere: a clock that may stand still while the machine sleeps, so a lock lost in a sleep is
/// noticed later than on Linux.
#[cfg(not(target_os = "linux"))]
mod os {
    use std::io;
    use std::sync::LazyLock;
    use std::time::Instant;

    use crate::Moment;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// The present moment.
    pub fn now() -> Moment {
        Moment::default() + START.elapsed()
    }

    pub(crate) struct Alarm(());

    impl Alarm {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(()))
        }

        pub(crate) async fn sleep_until(&self, moment: Moment) -> io::Result<()> {
            tokio::time::sleep(moment.since(now())).await;
            Ok(())
        }
    }
}
