//! A client under measurement, as a process of its own: ours, and those of others that are written in Rust.
//! The drivers in `interop` speak the same language, see its README.

use std::future::Future;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tokio::task::JoinSet;

use crate::machine::runtime;
use crate::{Fault, Outcome};

/// A client library. A clone shares its connections.
pub(crate) trait Subject: Clone + Send + Sync + Sized + 'static {
    type Held: Send;

    /// Connects to a URL, port or folder.
    fn connect(target: &str) -> impl Future<Output = Outcome<Self>>;

    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, Fault>> + Send;

    /// As a reader, where the library has readers.
    fn read(&self, name: &str) -> impl Future<Output = Result<Self::Held, Fault>> + Send {
        self.acquire(name)
    }

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Answers each line of the standard input with a line, until it ends.
pub(crate) fn serve<S: Subject>(target: &str, key: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let (holder, waiter): (S, S) = runtime
        .block_on(async { Outcome::Ok((S::connect(target).await?, S::connect(target).await?)) })?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["free", rounds] => {
                runtime.block_on(spawned(free(holder.clone(), key.into(), rounds.parse()?)))?
            }
            ["handoff", rounds, wait] => {
                let wait = Duration::from_millis(wait.parse()?);
                runtime.block_on(handoff(&holder, &waiter, key, rounds.parse()?, wait))?
            }
            ["crowd", workers, names, skew, readers, work, time] => {
                let crowd = Crowd {
                    workers: workers.parse()?,
                    choice: Zipf::named(names.parse()?, skew)?,
                    readers: readers.parse()?,
                    work: Duration::from_micros(work.parse()?),
                    time: Duration::from_millis(time.parse()?),
                };
                runtime.block_on(crowd.run(&holder, key))?
            }
            _ => return Err(format!("no request {line:?}").into()),
        };
        let answer: Vec<String> = answer.iter().map(|time| time.as_nanos().to_string()).collect();
        println!("{}", answer.join(" "));
        std::io::stdout().flush()?;
    }
    // Connections and threads of the libraries end with the process.
    std::process::exit(0);
}

async fn spawned<T: Send + 'static>(
    work: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Outcome<T> {
    tokio::spawn(work).await?
}

/// The time of each acquire and release.
async fn free<S: Subject>(subject: S, key: String, rounds: usize) -> Result<Vec<Duration>, Fault> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        let held = subject.acquire(&key).await?;
        subject.release(held).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// The time from each release to the moment in which a waiter on other connections holds.
async fn handoff<S: Subject>(
    holder: &S,
    waiter: &S,
    key: &str,
    rounds: usize,
    wait: Duration,
) -> Outcome<Vec<Duration>> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let held = holder.acquire(key).await?;
        let (subject, name) = (waiter.clone(), key.to_owned());
        let waiting = tokio::spawn(async move {
            let held = subject.acquire(&name).await?;
            let granted = Instant::now();
            subject.release(held).await?;
            Ok::<_, Fault>(granted)
        });
        tokio::time::sleep(wait).await;
        let start = Instant::now();
        holder.release(held).await?;
        times.push(waiting.await??.saturating_duration_since(start));
    }
    Ok(times)
}

/// Workers that take locks for a while, one after the other.
struct Crowd {
    workers: usize,
    choice: Zipf,
    /// How many of a hundred holds are those of readers.
    readers: u64,
    /// How long each hold lasts, beyond the calls themselves.
    work: Duration,
    time: Duration,
}

/// A hold that is waited for longer is late, as for a program with a deadline.
const PROMPT: Duration = Duration::from_millis(10);

impl Crowd {
    /// The time of one hold of all together; the mean, 95th and 99th percentile of the waits; the longest; and the
    /// time of one hold that did not wait longer than [`PROMPT`].
    /// Waits that are not over when the time is up count, with the time until they are over.
    ///
    /// # Errors
    /// If a call fails, or a lock has two holders: a client that does not exclude is not measured.
    async fn run<S: Subject>(self, subject: &S, key: &str) -> Outcome<Vec<Duration>> {
        let held: Vec<AtomicBool> =
            self.choice.sums.iter().map(|_| AtomicBool::new(false)).collect();
        let (crowd, held, start) = (Arc::new(self), Arc::new(held), Instant::now());
        let mut workers = JoinSet::new();
        for worker in 0..crowd.workers {
            let (crowd, subject, key) = (Arc::clone(&crowd), subject.clone(), key.to_owned());
            let held = Arc::clone(&held);
            workers.spawn(async move {
                let mut random = Random(worker as u64 + 1);
                let mut waits = Vec::new();
                while start.elapsed() < crowd.time {
                    let choice = crowd.choice.pick(&mut random);
                    let name = format!("{key}-{choice}");
                    let reads = random.next() % 100 < crowd.readers;
                    let began = Instant::now();
                    let lock = match reads {
                        true => subject.read(&name).await?,
                        false => subject.acquire(&name).await?,
                    };
                    waits.push(began.elapsed());
                    if !reads && held[choice].swap(true, Ordering::Relaxed) {
                        return Err(format!("{name} has two holders").into());
                    }
                    if !crowd.work.is_zero() {
                        tokio::time::sleep(crowd.work).await;
                    }
                    if !reads {
                        held[choice].store(false, Ordering::Relaxed);
                    }
                    subject.release(lock).await?;
                }
                Ok::<_, Fault>(waits)
            });
        }
        let mut waits = Vec::new();
        while let Some(worker) = workers.join_next().await {
            waits.extend(worker??);
        }
        let elapsed = start.elapsed();
        waits.sort_unstable();
        let longest = *waits.last().ok_or("no worker got a lock")?;
        let count = waits.len() as f64;
        let mean = waits.iter().sum::<Duration>().div_f64(count);
        let percentile = |share: f64| waits[(count * share) as usize];
        let prompt = waits.partition_point(|wait| *wait <= PROMPT).max(1) as f64;
        let each = |count: f64| elapsed.div_f64(count);
        Ok(vec![each(count), mean, percentile(0.95), percentile(0.99), longest, each(prompt)])
    }
}

/// Chooses among names so that the nth is as likely as the inverse of n to the power of `skew`.
struct Zipf {
    /// The probability of a name or of one before it.
    sums: Vec<f64>,
}

impl Zipf {
    /// The choice for a word of a request: a skew; or `half:COUNT`, where half of the holds are those of the first
    /// names.
    fn named(names: usize, word: &str) -> Outcome<Self> {
        let Some(hot) = word.strip_prefix("half:") else {
            return Ok(Self::new(names, word.parse()?));
        };
        let hot: usize = hot.parse()?;
        let share = |rank: usize| match rank.checked_sub(hot) {
            None => (rank + 1) as f64 / hot as f64 / 2.0,
            Some(cold) => 0.5 + (cold + 1) as f64 / (names - hot) as f64 / 2.0,
        };
        Ok(Self { sums: (0..names).map(share).collect() })
    }

    fn new(names: usize, skew: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=names).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        let mut sums: Vec<f64> = sums.collect();
        sums.iter_mut().for_each(|share| *share /= sum);
        Self { sums }
    }

    fn pick(&self, random: &mut Random) -> usize {
        let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        self.sums.partition_point(|sum| *sum <= share).min(self.sums.len() - 1)
    }
}

/// A sequence that is the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// tenure, with tokens.
#[derive(Clone)]
pub(crate) struct Tenure(tenure::Client);

impl Subject for Tenure {
    type Held = tenure::Guard;

    async fn connect(url: &str) -> Outcome<Self> {
        Ok(Self(tenure::connect(url).await?))
    }

    async fn acquire(&self, name: &str) -> Result<tenure::Guard, Fault> {
        Ok(self.0.mutex(name)?.acquire().await?)
    }

    async fn read(&self, name: &str) -> Result<tenure::Guard, Fault> {
        Ok(self.0.rw_lock(name)?.read().await?.into())
    }

    async fn release(&self, held: tenure::Guard) -> Result<(), Fault> {
        Ok(held.release().await?)
    }
}

/// rslock, with its own delay between two tries, and without an end of the tries.
#[derive(Clone)]
pub(crate) struct Rslock(rslock::LockManager);

impl Subject for Rslock {
    type Held = rslock::Lock;

    async fn connect(port: &str) -> Outcome<Self> {
        Ok(Self(rslock::LockManager::new(vec![format!("redis://127.0.0.1:{port}/")])))
    }

    async fn acquire(&self, name: &str) -> Result<rslock::Lock, Fault> {
        Ok(self.0.acquire_no_guard(name.as_bytes(), Duration::from_secs(30)).await?)
    }

    async fn release(&self, held: rslock::Lock) -> Result<(), Fault> {
        self.0.unlock(&held).await;
        Ok(())
    }
}

/// `flock` on a file for each lock. A wait takes a thread.
#[derive(Clone)]
pub(crate) struct Flock(Arc<std::path::PathBuf>);

impl Subject for Flock {
    type Held = std::fs::File;

    async fn connect(folder: &str) -> Outcome<Self> {
        Ok(Self(Arc::new(folder.into())))
    }

    async fn acquire(&self, name: &str) -> Result<std::fs::File, Fault> {
        let file = std::fs::File::create(self.0.join(name))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        let wait = move || flock(&file, FlockOperation::LockExclusive).map(|()| file);
        Ok(tokio::task::spawn_blocking(wait).await??)
    }

    async fn release(&self, held: std::fs::File) -> Result<(), Fault> {
        drop(held);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that excludes nothing.
    #[derive(Clone)]
    struct Open;

    impl Subject for Open {
        type Held = ();

        async fn connect(_: &str) -> Outcome<Self> {
            Ok(Self)
        }

        async fn acquire(&self, _: &str) -> Result<(), Fault> {
            Ok(())
        }

        async fn release(&self, (): ()) -> Result<(), Fault> {
            Ok(())
        }
    }

    #[test]
    fn a_client_that_does_not_exclude_is_not_measured() {
        let runtime = runtime(1).unwrap();
        let crowd = |workers, time| Crowd {
            workers,
            choice: Zipf::new(1, 0.0),
            readers: 0,
            work: Duration::from_millis(1),
            time,
        };
        let two = runtime.block_on(crowd(2, Duration::from_secs(60)).run(&Open, "x"));
        assert!(two.unwrap_err().to_string().contains("x-0 has two holders"));
        let one = runtime.block_on(crowd(1, Duration::from_millis(3)).run(&Open, "x"));
        assert_eq!(one.unwrap().len(), 6);
    }

    #[test]
    fn the_first_of_many_names_is_the_likeliest_and_all_are_chosen() {
        let (zipf, mut random) = (Zipf::new(100, 0.99), Random(7));
        let mut counts = [0_u32; 100];
        (0..100_000).for_each(|_| counts[zipf.pick(&mut random)] += 1);
        assert!(counts.iter().all(|count| *count > 0));
        // One over the sum of the inverse powers: about 0.19.
        assert!((17_000..21_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[9] * 7);
    }

    #[test]
    fn half_of_the_holds_are_those_of_the_hot_names() {
        let (choice, mut random) = (Zipf::named(100, "half:4").unwrap(), Random(7));
        let mut counts = [0_u32; 100];
        (0..100_000).for_each(|_| counts[choice.pick(&mut random)] += 1);
        assert!(counts[..4].iter().all(|count| (12_000..13_000).contains(count)), "{counts:?}");
        assert!(counts[4..].iter().all(|count| (350..700).contains(count)), "{counts:?}");
    }

    #[test]
    fn without_skew_all_names_are_equally_likely() {
        let (even, mut random) = (Zipf::new(4, 0.0), Random(7));
        let mut counts = [0_u32; 4];
        (0..40_000).for_each(|_| counts[even.pick(&mut random)] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
