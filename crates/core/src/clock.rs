//! The clocks that leases are measured by, and an alarm on them.

pub(crate) use os::Alarm;

use crate::Moment;

/// The clock that a store's terms run on. Moments on different clocks must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// Runs on while this machine sleeps (`CLOCK_BOOTTIME`). For stores that other machines use:
    /// a machine that slept wakes up knowing that its leases have ended.
    #[default]
    Boot,
    /// Stands still while this machine sleeps (`CLOCK_MONOTONIC`). For stores that this machine
    /// alone uses, and that judge terms by the same clock: while it sleeps, no other claim can be
    /// granted, so a hold survives a suspend of any length.
    Monotonic,
}

impl Clock {
    /// The present moment on this clock.
    pub fn now(self) -> Moment {
        os::now(self)
    }
}

/// The present moment on the clock that runs through suspend, [`Clock::Boot`].
pub fn now() -> Moment {
    Clock::Boot.now()
}

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

    use super::Clock;
    use crate::Moment;

    pub(super) fn now(clock: Clock) -> Moment {
        let time = clock_gettime(match clock {
            Clock::Boot => ClockId::Boottime,
            Clock::Monotonic => ClockId::Monotonic,
        });
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        let nanos = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
        let now = Moment::default() + seconds + nanos;
        #[cfg(test)]
        if clock == Clock::Boot {
            return now + super::tests::SUSPENDED.get();
        }
        now
    }

    /// A timer on one of the clocks. The runtime's own timers stand still while the machine sleeps.
    pub(crate) struct Alarm {
        clock: Clock,
        timer: AsyncFd<OwnedFd>,
    }

    impl Alarm {
        #[allow(unsafe_code)]
        pub(crate) fn new(clock: Clock) -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let id = match clock {
                Clock::Boot => TimerfdClockId::Boottime,
                Clock::Monotonic => TimerfdClockId::Monotonic,
            };
            let timer = timerfd_create(id, flags)?;
            // SAFETY: the OwnedFd is open, moves into the AsyncFd, and always answers with the
            // same descriptor until it is dropped with it.
            let timer = unsafe { AsyncFd::register(timer) }?;
            Ok(Self { clock, timer })
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
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
            while self.clock.now() < moment {
                self.timer.readable().await?.clear_ready();
            }
            Ok(())
        }

        #[cfg(test)]
        fn raw(&self) -> i32 {
            use std::os::fd::AsRawFd;
            self.timer.as_raw_fd()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// In a time namespace the clocks can be set apart, as a suspend would.
        #[test]
        fn one_clock_runs_through_suspend_and_the_other_stands_still() {
            const ASLEEP: &str = "86400";
            const INSIDE: &str = "TENURE_TEST_INSIDE_TIME_NAMESPACE";
            let monotonic = clock_gettime(ClockId::Monotonic).tv_sec as u64;
            if std::env::var_os(INSIDE).is_some() {
                let seconds = |clock: Clock| clock.now().since(Moment::default()).as_secs();
                let (boot, still) = (seconds(Clock::Boot), seconds(Clock::Monotonic));
                assert!(boot >= monotonic + 86_000, "{boot} against {monotonic}");
                assert!(still < monotonic + 43_000, "{still} against {monotonic}");
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
        async fn the_alarm_is_set_on_the_clock_it_was_made_for() {
            // CLOCK_BOOTTIME and CLOCK_MONOTONIC.
            for (clock, shown) in [(Clock::Boot, "clockid: 7"), (Clock::Monotonic, "clockid: 1")] {
                let alarm = Alarm::new(clock).unwrap();
                let info = format!("/proc/self/fdinfo/{}", alarm.raw());
                let info = std::fs::read_to_string(info).unwrap();
                assert!(info.lines().any(|line| line == shown), "{info}");
            }
        }

        #[tokio::test]
        async fn the_alarm_rings_at_its_moment_and_can_be_set_again() {
            for clock in [Clock::Boot, Clock::Monotonic] {
                let alarm = Alarm::new(clock).unwrap();
                for _ in 0..3 {
                    let moment = clock.now() + Duration::from_millis(5);
                    alarm.sleep_until(moment).await.unwrap();
                    assert!(clock.now() >= moment);
                }
                alarm.sleep_until(Moment::default()).await.unwrap();
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        /// How long the machine has slept, as far as this thread's test is concerned.
        pub(crate) static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }
}

/// Elsewhere: a clock that may stand still while the machine sleeps, so a lock lost in a sleep is
/// noticed later than on Linux.
#[cfg(not(target_os = "linux"))]
mod os {
    use std::io;
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::Clock;
    use crate::Moment;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn now(_clock: Clock) -> Moment {
        Moment::default() + START.elapsed()
    }

    pub(crate) struct Alarm(());

    impl Alarm {
        pub(crate) fn new(_clock: Clock) -> io::Result<Self> {
            Ok(Self(()))
        }

        pub(crate) async fn sleep_until(&self, moment: Moment) -> io::Result<()> {
            tokio::time::sleep(moment.since(now(Clock::Monotonic))).await;
            Ok(())
        }
    }
}
