//! A session with ZooKeeper, over one connection at a time.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::{Background, Result};

use super::messages::{Event, Request, Watchable};
use super::{Fault, Target};

/// A session with ZooKeeper, over one connection at a time. Clones are handles on the same session,
/// which is closed when the last of them is dropped.
///
/// The sockets are served on a [`Background`], whatever becomes of the caller's runtime.
#[derive(Clone)]
pub(crate) struct Session(Arc<()>);

impl Session {
    /// Opens a session with a timeout of `wanted`, or what the servers make of it.
    ///
    /// # Errors
    /// `Unreachable` if no server opens a session within the target's timeout, `Denied` if the login
    /// is refused or one side does not trust the other.
    pub(crate) async fn open(
        _target: Arc<Target>,
        _wanted: Duration,
        _background: &Background,
    ) -> Result<Self> {
        todo!()
    }

    /// The session's number, which is the owner of its ephemeral nodes.
    pub(crate) fn id(&self) -> i64 {
        todo!()
    }

    /// The session timeout: how long the servers keep the session without a sign of life.
    pub(crate) fn life(&self) -> Duration {
        todo!()
    }

    /// The number of the latest connection. It rises with each.
    pub(crate) fn connection(&self) -> u64 {
        todo!()
    }

    pub(crate) fn is_connected(&self) -> bool {
        todo!()
    }

    /// Whether the session has expired, was closed, refused or shortened. It never comes back.
    pub(crate) fn is_over(&self) -> bool {
        todo!()
    }

    /// Resolves when the session is over.
    pub(crate) async fn ended(&self) {
        todo!()
    }

    /// Waits for a connection, for at most one call timeout.
    ///
    /// # Errors
    /// [`Fault::NotConnected`], or [`Fault::Over`].
    pub(crate) async fn ready(&self) -> Result<(), Fault> {
        todo!()
    }

    /// Sends a request on the current connection. Requests reach the server in the order of these
    /// calls. Without a connection nothing is sent, and the call fails with [`Fault::NotConnected`].
    ///
    /// # Cancel safety
    /// Dropping the call does not unsend the request.
    pub(crate) fn send<R: Request>(&self, _request: R) -> Call<R> {
        todo!()
    }

    /// As [`send`](Self::send), and leaves a watch, which comes with the reply.
    pub(crate) fn send_watched<R: Watchable>(&self, _request: R) -> WatchedCall<R> {
        todo!()
    }

    /// Closes the session, and with it deletes its ephemeral nodes. Takes at most one call timeout:
    /// servers that cannot be reached end the session when its own timeout has passed.
    pub(crate) async fn close(&self) {
        todo!()
    }
}

/// The reply to a request that was sent.
#[must_use = "the request is sent, but its outcome is lost"]
pub(crate) struct Call<R>(PhantomData<fn() -> R>);

impl<R: Request> Future for Call<R> {
    type Output = Result<R::Reply, Fault>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}

/// The reply to a request that was sent, and the watch that it left.
#[must_use = "the request is sent, but its outcome is lost"]
pub(crate) struct WatchedCall<R>(PhantomData<fn() -> R>);

impl<R: Watchable> Future for WatchedCall<R> {
    type Output = Result<(R::Reply, Watch), Fault>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}

/// Resolves with what happened first to a watched node. It survives reconnects, and ends with
/// [`Event::SessionOver`].
#[derive(Debug)]
pub(crate) struct Watch(());

impl Future for Watch {
    type Output = Event;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Event> {
        todo!()
    }
}
