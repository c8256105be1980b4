//! Tests code that takes a lock: against a lock that is lost, a store that does not answer, and a
//! network that loses messages. No server is needed.
//!
//! ```text
//! cargo run --example testing_with_chaos
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{Chaos, Client, Error, ErrorKind, Faults, MemoryStore, Options};

/// The code under test: imports ten rows under a lock.
async fn import(client: &Client, imported: &AtomicUsize) -> Result<(), Error> {
    let options = Options::new().ttl(Duration::from_millis(300));
    let rows = async || {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            imported.fetch_add(1, Ordering::Relaxed);
        }
    };
    client.mutex("import")?.with(options).run(async |_| rows().await).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    a_lost_lock_stops_the_import().await?;
    a_store_that_does_not_answer_stops_the_import().await?;
    lost_messages_do_not_disturb_the_import().await?;
    println!("all passed");
    Ok(())
}

async fn a_lost_lock_stops_the_import() -> Result<(), Error> {
    let (chaos, client) = store(Faults::new(1))?;
    let imported = AtomicUsize::new(0);
    let lose = async {
        while imported.load(Ordering::Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
        chaos.lose("import").await
    };
    let (outcome, lost) = tokio::join!(import(&client, &imported), lose);
    lost?;
    assert_eq!(outcome.expect_err("the work went on").kind(), ErrorKind::Lost);
    assert!(imported.load(Ordering::Relaxed) < 10, "the import went on without its lock");
    println!("ok: a lost lock stops the import");
    Ok(())
}

async fn a_store_that_does_not_answer_stops_the_import() -> Result<(), Error> {
    let (chaos, client) = store(Faults::new(2))?;
    let options = Options::new().ttl(Duration::from_millis(300));
    let guard = client.mutex("import")?.with(options).acquire().await?;
    chaos.pause(); // renewals get no answer
    let outcome = guard.run(std::future::pending::<()>()).await;
    assert_eq!(outcome.expect_err("the work went on").kind(), ErrorKind::Lost);
    chaos.resume();
    println!("ok: a store that does not answer stops the import");
    Ok(())
}

async fn lost_messages_do_not_disturb_the_import() -> Result<(), Error> {
    let faults = Faults::new(3).lose_requests(0.2).lose_replies(0.2).duplicate(0.2);
    let (_, client) = store(faults)?;
    let imported = AtomicUsize::new(0);
    import(&client, &imported).await?;
    assert_eq!(imported.load(Ordering::Relaxed), 10);
    println!("ok: lost messages do not disturb the import");
    Ok(())
}

/// A store with faults, and a client of it.
fn store(faults: Faults) -> Result<(Arc<Chaos>, Client), Error> {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), faults));
    let client = Client::new(chaos.clone())?;
    Ok((chaos, client))
}
