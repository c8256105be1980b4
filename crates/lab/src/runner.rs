//! Plays experiments, several at a time, each on a stage of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::algorithms::Info;
use crate::hazards::Hazard;
use crate::history::History;
use crate::judge::{Judgement, Verdict, judge};
use crate::part::ClientProgram;
use crate::servers::Shared;
use crate::stage::Stage;

/// How often an experiment is repeated that shows nothing, as on a machine that is too busy.
const ATTEMPTS: u32 = 3;

/// How long one experiment may take.
const LIMIT: Duration = Duration::from_secs(120);

/// An experiment: a hazard, and an algorithm that it befalls.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The hazard.
    pub hazard: &'static Hazard,
    /// The algorithm.
    pub algorithm: &'static Info,
}

/// What came of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Result {
    /// The hazard's name.
    pub hazard: &'static str,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
}

/// What came of an experiment.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was played.
    Played {
        /// The verdict and its reasons.
        judgement: Judgement,
        /// What happened.
        history: History,
    },
    /// The hazard does not concern the algorithm.
    NotApplicable(String),
    /// Its servers are not installed here.
    Missing(String),
    /// It could not be played to its end.
    Void(String),
}

impl Outcome {
    /// The verdict in a word, as in the table of expected verdicts.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotApplicable(_) | Self::Missing(_) => "-",
            Self::Void(_) => "void",
            Self::Played { judgement, .. } => match judgement.verdict {
                Verdict::Safe => "safe",
                Verdict::Fenced => "fenced",
                Verdict::Broken => "broken",
                Verdict::Void => "void",
            },
        }
    }
}

/// A laboratory: how clients are started, and servers that experiments share.
#[derive(Debug)]
pub struct Lab {
    program: ClientProgram,
    shared: Shared,
    number: AtomicU64,
    seed: Option<u64>,
    ended: AtomicBool,
}

impl Lab {
    /// A laboratory whose clients are started so.
    pub fn new(program: ClientProgram) -> Self {
        Self {
            program,
            shared: Shared::default(),
            number: AtomicU64::new(0),
            seed: None,
            ended: AtomicBool::new(false),
        }
    }

    /// Gives each order of an experiment to a client up to 30 ms late, by times that this seed repeats. The verdict
    /// must not depend on it.
    #[must_use]
    pub fn with_seed(mut self, seed: Option<u64>) -> Self {
        self.seed = seed;
        self
    }

    /// Plays experiments, this many at a time. `report` hears of each one that has ended, on some thread.
    pub fn play_all(
        &self,
        experiments: impl IntoIterator<Item = Experiment>,
        at_once: usize,
        report: impl Fn(Result) + Sync,
    ) {
        let queue: Mutex<VecDeque<Experiment>> = Mutex::new(experiments.into_iter().collect());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        std::thread::scope(|scope| {
            for _ in 0..at_once.max(1) {
                scope.spawn(|| {
                    while let Some(experiment) = next()
                        && !self.ended.load(Ordering::SeqCst)
                    {
                        report(self.play(experiment));
                    }
                });
            }
        });
    }

    /// Begins no more experiments.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Plays one experiment, again if it shows nothing.
    pub fn play(&self, experiment: Experiment) -> Result {
        let start = Instant::now();
        let mut outcome = Outcome::Void(String::new());
        for _ in 0..ATTEMPTS {
            outcome = self.play_once(experiment);
            if outcome.word() != "void" || self.ended.load(Ordering::SeqCst) {
                break;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Result {
            hazard: experiment.hazard.id,
            algorithm: experiment.algorithm.id,
            outcome,
            seconds,
        }
    }

    fn play_once(&self, Experiment { hazard, algorithm }: Experiment) -> Outcome {
        if let Some(why) = hazard.spares(algorithm) {
            return Outcome::NotApplicable(why.into());
        }
        if let Some(why) = algorithm.family.missing().or_else(|| hazard.missing()) {
            return Outcome::Missing(why);
        }
        match self.record(hazard, algorithm) {
            Ok(history) => Outcome::Played { judgement: judge(&history), history },
            Err(error) => Outcome::Void(error.to_string()),
        }
    }

    fn record(&self, hazard: &'static Hazard, algorithm: &'static Info) -> io::Result<History> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (program, shared) = (&self.program, &self.shared);
        let mut stage = Stage::set(algorithm, hazard.setup, program, shared, number, self.seed)?;
        let played = runtime
            .block_on(async { tokio::time::timeout(LIMIT, (hazard.play)(&mut stage)).await });
        played.map_err(|_| io::Error::other("it does not end"))??;
        runtime.block_on(stage.end())
    }
}
