//! The watches of a session. They outlive its connections.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::messages::{Event, SetWatches, WatchKind};

/// Resolves with what happened first to a watched node. It survives reconnects, and ends with
/// [`Event::SessionOver`]. Dropping it gives the watch up.
#[derive(Debug)]
#[must_use = "dropping it gives the watch up"]
pub(crate) struct Watch(oneshot::Receiver<Event>);

impl Future for Watch {
    type Output = Event;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        Pin::new(&mut self.0).poll(context).map(|event| event.unwrap_or(Event::SessionOver))
    }
}

/// The watches of a session, by node. All watches of one kind on one node share one watch on the
/// server.
#[derive(Default)]
pub(super) struct Watches(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    by_node: HashMap<(WatchKind, String), Vec<oneshot::Sender<Event>>>,
    /// The number of nodes at which those without a watch are removed.
    crowded: usize,
    over: bool,
}

impl Watches {
    /// Notes a watch that a reply has left on the server.
    pub(super) fn add(&self, kind: WatchKind, path: String) -> Watch {
        let (sender, receiver) = oneshot::channel();
        let mut registry = self.0.lock();
        if !registry.over {
            let watches = registry.by_node.entry((kind, path)).or_default();
            watches.retain(|watch| !watch.is_closed());
            watches.push(sender);
            registry.prune_if_crowded();
        }
        Watch(receiver)
    }

    /// Resolves the watches that an event ends, as a server ends them.
    pub(super) fn fire(&self, event: Event, path: &str) {
        let kinds: &[WatchKind] = match event {
            Event::Created | Event::DataChanged => &[WatchKind::Data, WatchKind::Exist],
            Event::ChildrenChanged => &[WatchKind::Children],
            Event::Deleted => &[WatchKind::Data, WatchKind::Exist, WatchKind::Children],
            Event::SessionOver => &[],
        };
        let mut registry = self.0.lock();
        let ended: Vec<_> = kinds
            .iter()
            .filter_map(|kind| registry.by_node.remove(&(*kind, path.to_owned())))
            .flatten()
            .collect();
        drop(registry);
        for watch in ended {
            let _dropped = watch.send(event);
        }
    }

    /// The requests that restore the watches on a new server, each short enough for it.
    pub(super) fn restore(&self, zxid: i64) -> Vec<SetWatches> {
        // Servers accept requests of up to 1 MiB by default.
        const BATCH: usize = 128 << 10;
        let empty = || SetWatches { zxid, ..SetWatches::default() };
        let mut registry = self.0.lock();
        registry.prune();
        let (mut requests, mut batch, mut length) = (Vec::new(), empty(), 0);
        for (kind, path) in registry.by_node.keys() {
            length += path.len() + size_of::<i32>();
            let paths = match kind {
                WatchKind::Data => &mut batch.data,
                WatchKind::Exist => &mut batch.exist,
                WatchKind::Children => &mut batch.children,
            };
            paths.push(path.clone());
            if length >= BATCH {
                requests.push(std::mem::replace(&mut batch, empty()));
                length = 0;
            }
        }
        if batch != empty() {
            requests.push(batch);
        }
        requests
    }

    /// Ends all watches, now and later: the session is over.
    pub(super) fn end(&self) {
        let mut registry = self.0.lock();
        registry.over = true;
        let ended = std::mem::take(&mut registry.by_node);
        drop(registry);
        // A watch whose sender is dropped resolves with `SessionOver`.
        drop(ended);
    }

    /// For how many nodes there are watches.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().by_node.len()
    }
}

impl Registry {
    /// Forgets the nodes of which every watch was dropped, each time their number has doubled.
    fn prune_if_crowded(&mut self) {
        const FEW: usize = 64;
        if self.by_node.len() >= self.crowded.max(FEW) {
            self.prune();
            self.crowded = self.by_node.len() * 2;
        }
    }

    fn prune(&mut self) {
        self.by_node.retain(|_, watches| {
            watches.retain(|watch| !watch.is_closed());
            !watches.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_event_ends_the_watches_that_it_ends_on_the_server() {
        use WatchKind::{Children, Data, Exist};
        let cases = [
            (Event::Created, vec![Data, Exist]),
            (Event::DataChanged, vec![Data, Exist]),
            (Event::ChildrenChanged, vec![Children]),
            (Event::Deleted, vec![Data, Exist, Children]),
        ];
        for (event, ended) in cases {
            let watches = Watches::default();
            let other = watches.add(Data, "/b".into());
            let added =
                [Data, Data, Exist, Children].map(|kind| (kind, watches.add(kind, "/a".into())));
            watches.fire(event, "/a");
            for (kind, watch) in added {
                let expected = ended.contains(&kind).then_some(event);
                assert_eq!(watch.now_or_never(), expected, "{event:?} {kind:?}");
            }
            assert_eq!(other.now_or_never(), None);
        }
    }

    #[test]
    fn watches_end_with_the_session_and_later_ones_at_once() {
        let watches = Watches::default();
        let before = watches.add(WatchKind::Data, "/a".into());
        watches.end();
        let after = watches.add(WatchKind::Data, "/a".into());
        assert_eq!(before.now_or_never(), Some(Event::SessionOver));
        assert_eq!(after.now_or_never(), Some(Event::SessionOver));
    }

    #[test]
    fn dropped_watches_are_forgotten() {
        let watches = Watches::default();
        for number in 0..10_000 {
            drop(watches.add(WatchKind::Data, format!("/{number}")));
        }
        assert!(watches.len() < 200, "{}", watches.len());
        let kept: Vec<_> =
            (0..300).map(|number| watches.add(WatchKind::Exist, format!("/{number}"))).collect();
        let restored = watches.restore(7);
        assert_eq!(restored.iter().map(|batch| batch.exist.len()).sum::<usize>(), kept.len());
        assert!(restored.iter().all(|batch| batch.zxid == 7 && batch.data.is_empty()));
    }

    #[test]
    fn many_watches_are_restored_in_several_requests() {
        let watches = Watches::default();
        let long = "x".repeat(1000);
        let _kept: Vec<_> = (0..1000)
            .map(|number| watches.add(WatchKind::Children, format!("/{long}/{number}")))
            .collect();
        let restored = watches.restore(1);
        assert!(restored.len() > 5);
        assert_eq!(restored.iter().map(|batch| batch.children.len()).sum::<usize>(), 1000);
    }
}
