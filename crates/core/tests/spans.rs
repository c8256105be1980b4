//! The spans and warnings of the `tracing` crate, with what they say of a lock.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{Chaos, Client, Faults, MemoryStore, Options};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes a line for each span that begins, gets another field or ends, and for each event.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    names: Arc<Mutex<Vec<(u64, &'static str)>>>,
    last: Arc<AtomicU64>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn name(&self, id: &Id) -> &'static str {
        let names = self.names.lock().unwrap();
        names.iter().find(|(known, _)| *known == id.into_u64()).unwrap().1
    }

    fn has(&self, line: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|one| one == line)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure_core")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let name = span.metadata().name();
        self.names.lock().unwrap().push((id, name));
        let mut fields = Fields(format!("begin {name}"));
        span.record(&mut fields);
        self.add(fields.0);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut fields = Fields(self.name(id).into());
        values.record(&mut fields);
        self.add(fields.0);
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields("event".into());
        event.record(&mut fields);
        self.add(fields.0);
    }

    fn try_close(&self, id: Id) -> bool {
        self.add(format!("drop {}", self.name(&id)));
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_wait_and_a_hold_are_spans_with_the_token_and_danger_names_it_too() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    let lock = client.mutex("a").unwrap();
    let first = lock.acquire().await.unwrap();
    let token = first.token().unwrap();
    assert!(log.has(&format!("begin holding lock=a token={token}")), "{:?}", log.lines);
    assert!(!log.has("begin waiting lock=a"), "a free lock is not waited for");
    let waiting = tokio::spawn({
        let lock = lock.clone().with(Options::new().ttl(Duration::from_millis(400)));
        async move { lock.acquire().await.unwrap() }
    });
    while !log.has("begin waiting lock=a") {
        assert!(!waiting.is_finished());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    let token = second.token().unwrap();
    assert!(log.has(&format!("waiting token={token}")), "{:?}", log.lines);
    assert!(log.has("drop waiting"));
    assert!(log.has(&format!("begin holding lock=a token={token}")));
    assert!(log.has("drop holding"), "the first hold is over");

    chaos.pause();
    let warned = |line: &String| {
        line.contains("lease in danger") && line.contains(&format!(" token={token} "))
    };
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while !log.lines.lock().unwrap().iter().any(warned) {
        assert!(tokio::time::Instant::now() < until, "{:?}", log.lines);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    chaos.resume();
    drop(second);
}
