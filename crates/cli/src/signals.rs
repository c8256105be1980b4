//! Signals that are sent to us.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::child::{is_ignored, reap};
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
    /// Listens to what asks us to end, and to the ends of our children.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let listening = Self { sender, receiver };
        listening.also(&ENDING)?;
        listening.also(&[Signal::CHILD])?;
        Ok(listening)
    }

    /// Listens to these, too. One that the parent process ignored stays ignored.
    pub(crate) fn also(&self, signals: &[Signal]) -> Result<(), Failure> {
        for &one in signals {
            // SIGCHLD is needed to wait for the command, even if the parent ignored it.
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

    /// The next signal that asks us to end. Waits for children that end meanwhile: the first process
    /// of a container inherits all that lose their parent.
    ///
    /// # Cancel safety
    /// A dropped call loses no signal.
    pub(crate) async fn request_to_end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::CHILD => reap(),
                signal => return signal,
            }
        }
    }

    /// Does something unless a signal asks us to end first. What is dropped then must be cleaned up
    /// after.
    pub(crate) async fn unless_interrupted<T>(
        &mut self,
        action: impl Future<Output = T>,
    ) -> Result<T, Signal> {
        tokio::select! {
            biased;
            done = action => Ok(done),
            signal = self.request_to_end() => Err(signal),
        }
    }
}
