//! A future that is given up after so many polls.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Polls `future` at most `count` times, as often as it asks to be polled, and drops it: at a
/// different await for each count. `Some` if it was ready by then.
///
/// A future that does not ask to be polled again waits for something that may never come; it is
/// dropped after a while.
pub(crate) async fn drop_after_polls<F: Future>(future: F, count: u32) -> Option<F::Output> {
    let polls = Polls { future: Box::pin(future), left: count };
    let idle = Duration::from_millis(50);
    tokio::time::timeout(idle, polls).await.ok().flatten()
}

struct Polls<F> {
    future: Pin<Box<F>>,
    left: u32,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
