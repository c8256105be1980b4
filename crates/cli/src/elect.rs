//! `tenure elect`: keeps a command running in one of many processes.

use std::fmt;
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use tenure::{Holder, LossReason, Revocation};
use tokio::time::{Instant, sleep};

use crate::args::{self, OnExit, OnLost};
use crate::child::{Guardian, check_program};
use crate::command_lock::CommandLock;
use crate::connection::Connection;
use crate::exit::{self, Failure, Outcome};
use crate::lock::{self, Held};
use crate::output::{self, Output};
use crate::run::{self, FORWARDED};
use crate::show;
use crate::signals::Signals;
use crate::supervise::{CommandEnd, Terms};

pub(crate) async fn execute(store: &str, arguments: &args::Elect, output: &Output) -> Outcome {
    let lock = arguments.lock();
    lock::check_name(&lock.name)?;
    check_program(&run::command_line(&arguments.program)[0])?;
    let mut signals = Signals::listen()?;
    let opening = Connection::open_with(store, lock.ttl);
    let connection = match signals.unless_interrupted(opening).await {
        Ok(connection) => connection?,
        Err(signal) => return Ok(exit::with_signal(signal)),
    };
    signals.add(&FORWARDED)?;
    let label = run::label(&arguments.program);
    let mut candidate = Candidate {
        connection: &connection,
        arguments,
        messages: Messages { election: &lock.name, json: output.is_json() },
        pauses: Pauses::default(),
        signals,
        lock: &lock,
        label: &label,
    };
    let outcome = candidate.stand().await;
    connection.close(&outcome).await;
    outcome
}

/// A process that leads, or would.
struct Candidate<'a> {
    connection: &'a Connection,
    arguments: &'a args::Elect,
    lock: &'a args::Lock,
    label: &'a str,
    messages: Messages<'a>,
    pauses: Pauses,
    signals: Signals,
}

/// What comes after a term.
enum Next {
    Stand,
    Exit(u8),
}

/// How an attempt to run the command ended.
enum Run {
    Ended(CommandEnd),
    /// The leadership was lost, or another process asked for it, before the command was started.
    NotStarted,
    /// A termination signal came before the command was started.
    Interrupted(Signal),
}

/// Why a leader does not start its command.
enum Stop {
    Lost(LossReason),
    Asked(Revocation),
}

impl Candidate<'_> {
    /// Stands for election and leads, again and again.
    async fn stand(&mut self) -> Outcome {
        loop {
            let electing = elected(self.connection, self.lock, self.label, &self.messages);
            let guard = match self.signals.unless_interrupted(electing).await {
                Ok(guard) => guard?,
                Err(signal) => return Ok(exit::with_signal(signal)),
            };
            self.messages.say(Event::Leading { token: guard.token().map(|token| token.get()) });
            if let Next::Exit(code) = self.lead(guard).await? {
                return Ok(code);
            }
        }
    }

    /// Keeps the command running until the leadership ends.
    async fn lead(&mut self, guard: Held) -> Result<Next, Failure> {
        let mut again = false;
        loop {
            let started = Instant::now();
            let end = match self.run_command(&guard, again).await {
                Ok(Run::Ended(end)) => end,
                Ok(Run::NotStarted) => return Ok(self.resign(guard, None).await),
                Ok(Run::Interrupted(signal)) => {
                    self.resign(guard, None).await;
                    return Ok(Next::Exit(exit::with_signal(signal)));
                }
                Err(failure) => {
                    run::release(guard).await;
                    return Err(failure);
                }
            };
            let Some(code) = end.code else {
                // The command may still run, so the lock is not released: it stays held until its TTL
                // ends.
                std::mem::forget(guard);
                return Ok(Next::Exit(exit::LOST));
            };
            if end.terminated || end.own_signal.is_some() {
                self.resign(guard, None).await;
                return Ok(Next::Exit(end.exit_code(code)));
            }
            // A stopped tenure may see the end of its command first.
            if end.lost || !guard.is_valid() {
                return Ok(self.resign(guard, None).await);
            }
            let (pause, on_exit) = (self.pauses.after(started.elapsed()), self.arguments.on_exit);
            self.messages.say(Event::Exited { code, then: on_exit.into(), pause: pause.into() });
            match on_exit {
                OnExit::Exit => {
                    self.resign(guard, None).await;
                    return Ok(Next::Exit(code));
                }
                OnExit::Resign => return Ok(self.resign(guard, Some(pause)).await),
                OnExit::Restart => {
                    let paused = async {
                        tokio::select! {
                            biased;
                            stop = stopped(&guard) => Some(stop),
                            () = sleep(pause) => None,
                        }
                    };
                    match self.signals.unless_interrupted(paused).await {
                        Ok(None) => again = true,
                        Ok(Some(stop)) => {
                            stop.report(&guard);
                            return Ok(self.resign(guard, None).await);
                        }
                        Err(signal) => {
                            self.resign(guard, None).await;
                            return Ok(Next::Exit(exit::with_signal(signal)));
                        }
                    }
                }
            }
        }
    }

    /// Runs the command once, after that of an earlier leader has ended. If it runs `again`, the store
    /// confirms first that this process still leads: an eviction is noticed only by the next renewal.
    async fn run_command(&mut self, guard: &Held, again: bool) -> Result<Run, Failure> {
        let (connection, lock) = (self.connection, self.lock);
        let ready = async {
            let kept = CommandLock::take(connection, lock, guard).await?;
            let leads = !again || still_held(connection, guard).await?;
            Ok::<_, Failure>(leads.then_some(kept))
        };
        let waiting = async {
            tokio::select! {
                biased;
                reason = guard.lost() => Err(Stop::Lost(reason)),
                ready = ready => match ready {
                    Ok(Some(kept)) => Ok(Ok(kept)),
                    Ok(None) => Err(Stop::Lost(LossReason::NotHeld)),
                    Err(failure) => Ok(Err(failure)),
                },
                // After the others, because it asks the store.
                request = guard.revoked() => Err(Stop::Asked(request)),
            }
        };
        let kept = match self.signals.unless_interrupted(waiting).await {
            Ok(Ok(kept)) => kept?,
            Ok(Err(stop)) => {
                stop.report(guard);
                return Ok(Run::NotStarted);
            }
            Err(signal) => return Ok(Run::Interrupted(signal)),
        };
        let guardian = Guardian::start(kept.into_stdio())
            .map_err(|error| Failure::system("start the guardian", &error))?;
        let program = &self.arguments.program;
        let terms =
            Terms { on_lost: OnLost::Term, grace: program.grace, max_hold: None, at_least: None };
        let (connection, signals) = (self.connection, &mut self.signals);
        run::run_under(connection, guard, program, terms, signals, guardian).await.map(Run::Ended)
    }

    /// Gives up the leadership, and pauses before the next candidacy.
    async fn resign(&mut self, guard: Held, pause: Option<Duration>) -> Next {
        let event = match run::release(guard).await {
            true => Event::Resigned,
            false => Event::Lost,
        };
        self.messages.say(event);
        if let Some(pause) = pause
            && let Err(signal) = self.signals.unless_interrupted(sleep(pause)).await
        {
            return Next::Exit(exit::with_signal(signal));
        }
        Next::Stand
    }
}

impl Stop {
    fn report(&self, guard: &Held) {
        let name = guard.name();
        output::report(&match self {
            Self::Lost(reason) => lock::describe_loss(name, *reason),
            Self::Asked(request) => lock::describe_revocation(name, request),
        });
    }
}

/// Waits until the leadership is lost or another process asks for it.
async fn stopped(guard: &Held) -> Stop {
    tokio::select! {
        biased;
        reason = guard.lost() => Stop::Lost(reason),
        request = guard.revoked() => Stop::Asked(request),
    }
}

/// Whether the store shows this hold. Asks again through an outage, in which the lock may be lost.
async fn still_held(connection: &Connection, guard: &Held) -> Result<bool, Failure> {
    const PAUSE: Duration = Duration::from_millis(200);
    let owner = guard.owner().to_string();
    loop {
        match connection.client.inspect(guard.name().as_str()).await {
            Ok(state) => return Ok(state.holders.iter().any(|holder| holder.owner == owner)),
            Err(error) if error.is_transient() => sleep(PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits to lead, through outages of the store.
async fn elected(
    connection: &Connection,
    lock: &args::Lock,
    label: &str,
    messages: &Messages<'_>,
) -> Result<Held, Failure> {
    let mut pauses = Pauses::default();
    loop {
        let elected = tokio::select! {
            biased;
            elected = lock::acquire_silently(connection, lock, label) => elected,
            never = follow(connection, messages) => match never {},
        };
        match elected {
            Err(failure) if failure.code == exit::UNAVAILABLE => {
                output::report(&format!("{}; trying again", failure.message));
                sleep(pauses.after(Duration::ZERO)).await;
            }
            elected => return elected,
        }
    }
}

/// Says which process leads, each time that another one does.
async fn follow(connection: &Connection, messages: &Messages<'_>) -> std::convert::Infallible {
    const LONGEST: Duration = Duration::from_secs(10);
    // They grow because each look reads the whole queue from the store.
    let mut pause = Duration::from_millis(200);
    let mut last = None;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
        let state = match connection.client.inspect(messages.election).await {
            Ok(state) => state,
            Err(error) => {
                // The candidacy goes on through an outage of any length.
                if pause == LONGEST && error.is_transient() {
                    output::report(&format!("still standing by: {}", exit::line(&error)));
                }
                continue;
            }
        };
        let Some(leader) = state.holders.into_iter().next() else { continue };
        if last.as_ref() != Some(&leader.owner) {
            last = Some(leader.owner.clone());
            messages.say(Event::following(&leader));
        }
    }
}

/// The pauses between two runs of a command.
#[derive(Debug, Default)]
struct Pauses {
    last: Duration,
}

impl Pauses {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);

    /// The pause after a run of this length.
    fn after(&mut self, run: Duration) -> Duration {
        if run >= Self::LONGEST {
            self.last = Duration::ZERO;
        }
        self.last = (self.last * 2).clamp(Self::FIRST, Self::LONGEST);
        self.last
    }
}

/// What this process says about the election on standard error.
struct Messages<'a> {
    election: &'a str,
    json: bool,
}

impl Messages<'_> {
    fn say(&self, event: Event) {
        let message = Message { election: self.election, event };
        match self.json.then(|| serde_json::to_string(&message)) {
            Some(Ok(object)) if !output::is_quiet() => output::report_line(&object),
            Some(_) => {}
            None => output::note(&message.to_string()),
        }
    }
}

#[derive(Serialize)]
struct Message<'a> {
    election: &'a str,
    #[serde(flatten)]
    event: Event,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    /// Another process leads.
    Following {
        owner: String,
        token: Option<u64>,
        host: Option<String>,
        pid: Option<u32>,
        label: String,
    },
    /// This process leads.
    Leading {
        token: Option<u64>,
    },
    Exited {
        code: u8,
        then: Then,
        #[serde(rename = "pause_ms")]
        pause: Millis,
    },
    Resigned,
    Lost,
}

impl Event {
    fn following(leader: &Holder) -> Self {
        let Holder { owner, token, host, pid, label, .. } = leader.clone();
        Self::Following { owner, token: token.map(|token| token.get()), host, pid, label }
    }
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Then {
    Restart,
    Resign,
    Exit,
}

impl From<OnExit> for Then {
    fn from(action: OnExit) -> Self {
        match action {
            OnExit::Restart => Self::Restart,
            OnExit::Resign => Self::Resign,
            OnExit::Exit => Self::Exit,
        }
    }
}

#[derive(Clone, Copy, Serialize)]
struct Millis(u64);

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.election;
        let with =
            |token: &Option<u64>| token.map(|token| format!(", token {token}")).unwrap_or_default();
        match &self.event {
            Event::Following { host, pid, label, token, .. } => {
                let leader = show::process(host.as_deref(), *pid, label);
                write!(f, "standing by: {leader} leads {name:?}{}", with(token))
            }
            Event::Leading { token } => {
                write!(f, "leading {name:?}{}", with(token))
            }
            Event::Exited { code, then, pause } => {
                write!(f, "the command exited with {code}; ")?;
                let pause = Duration::from_millis(pause.0);
                match then {
                    Then::Restart => write!(f, "starting it again in {}", show::duration(pause)),
                    Then::Resign => write!(f, "letting the next process lead {name:?}"),
                    Then::Exit => write!(f, "leaving the election {name:?}"),
                }
            }
            Event::Resigned => write!(f, "resigned from {name:?}"),
            Event::Lost => write!(f, "no longer leading {name:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_until_a_run_lasted_that_long() {
        let mut pauses = Pauses::default();
        let short = Duration::from_secs(3);
        let seconds: Vec<u64> = (0..8).map(|_| pauses.after(short).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.after(Pauses::LONGEST).as_secs(), 1);
        assert_eq!(pauses.after(short).as_secs(), 2);
    }
}
