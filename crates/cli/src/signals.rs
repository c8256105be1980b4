//! Signals that are sent to us.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::child::is_ignored;
use crate::exit::Failure;

/// The signals that ask us to end.
pub(crate) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Signals as a stream, instead of what they do by default.
#[derive(Debug)]
pub(crate) struct Signals {
    sender: mpsc::UnboundedSender<Signal>,
    receiver: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Listens to these.
    pub(crate) fn listen(signals: &[Signal]) -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let listening = Self { sender, receiver };
        listening.also(signals)?;
        Ok(listening)
    }

    /// Listens to these, too. One that our starter had us ignore stays ignored.
    pub(crate) fn also(&self, signals: &[Signal]) -> Result<(), Failure> {
        for &one in signals {
            // To wait for a command takes SIGCHLD, whoever does not want to hear of it.
            if one != Signal::CHILD && is_ignored(one.as_raw()) {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(one.as_raw()))
                .map_err(|error| Failure::system("listen to signals", &error))?;
            let sender = self.sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(one).is_ok() {}
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
            // We hold a sender ourselves, so the stream never ends.
            None => std::future::pending().await,
        }
    }

    /// Does something unless a signal comes first. What is dropped then must be cleaned up after.
    pub(crate) async fn unless_interrupted<T>(
        &mut self,
        action: impl Future<Output = T>,
    ) -> Result<T, Signal> {
        tokio::select! {
            biased;
            done = action => Ok(done),
            signal = self.next() => Err(signal),
        }
    }
}
