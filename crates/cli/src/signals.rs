//! The signals that this process receives.

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::child::{is_ignored, reap};
use crate::exit::Failure;

/// The signals that ask a process to terminate.
pub(crate) const TERMINATION: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// A stream of signals, which replaces their default actions.
#[derive(Debug)]
pub(crate) struct Signals {
    sender: mpsc::UnboundedSender<Signal>,
    receiver: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Listens to the termination signals and to SIGCHLD.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let signals = Self { sender, receiver };
        signals.add(&TERMINATION)?;
        signals.add(&[Signal::CHILD])?;
        Ok(signals)
    }

    /// Listens to further signals. A signal that the parent process ignored stays ignored.
    pub(crate) fn add(&self, signals: &[Signal]) -> Result<(), Failure> {
        for &added in signals {
            // SIGCHLD is needed to wait for the command, even if the parent ignored it.
            if added != Signal::CHILD && is_ignored(added.as_raw()) {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(added.as_raw()))
                .map_err(|error| Failure::system("listen to signals", &error))?;
            let sender = self.sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(added).is_ok() {}
            });
        }
        Ok(())
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// A dropped call loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // `self` has a sender, so the stream never ends.
            None => std::future::pending().await,
        }
    }

    /// The next termination signal. Other signals, which are for a command, are ignored. Meanwhile
    /// reaps children that exit: the first process of a container inherits all orphans.
    ///
    /// # Cancel safety
    /// A dropped call loses no signal.
    pub(crate) async fn termination(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::CHILD => reap(),
                signal if TERMINATION.contains(&signal) => return signal,
                // Its default action was replaced when a command ran.
                Signal::TSTP => drop(kill_process(getpid(), Signal::STOP)),
                _ => {}
            }
        }
    }

    /// Forgets the signals that have arrived.
    pub(crate) fn discard(&mut self) {
        while self.receiver.try_recv().is_ok() {}
    }

    /// Awaits `action` unless a termination signal arrives first. In that case `action` is dropped,
    /// and the caller must clean up after it.
    pub(crate) async fn unless_interrupted<T>(
        &mut self,
        action: impl Future<Output = T>,
    ) -> Result<T, Signal> {
        tokio::select! {
            biased;
            done = action => Ok(done),
            signal = self.termination() => Err(signal),
        }
    }
}
