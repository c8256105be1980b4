//! One of several processes is the leader. When it resigns, dies or is cut off, the next one takes over.
//!
//! ```text
//! cargo run --example leader              # in several terminals; end the leader with ^C or kill -9
//! cargo run --example leader observe      # in another one
//! ```

use std::time::Duration;

use tenure::{Election, ErrorKind, Options};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let client = tenure::connect("local").await?;
    // The TTL bounds how long there is no leader after a machine has died.
    let options = Options::new().ttl(Duration::from_secs(5));
    let election = client.election("leader")?.with(options);
    if std::env::args().any(|argument| argument == "observe") {
        return observe(&election).await;
    }

    let me = format!("process {}", std::process::id());
    loop {
        println!("{me}: standing by");
        let leadership = election.campaign(&me).await?;
        println!("{me}: leading, term {}", leadership.token());
        // Dropped as soon as the leadership is lost.
        let work = leadership.run(async |leadership| {
            for beat in 1..=5 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                leadership.proclaim(&format!("{me}, beat {beat}")).await?;
            }
            Ok(())
        });
        match work.await.flatten() {
            Ok(()) => {
                // Elects the next one. Yours may lead for ever.
                leadership.resign().await?;
                break;
            }
            // Another process leads by now, or soon will. The work was stopped before that.
            Err(error) if error.kind() == ErrorKind::Lost => println!("{me}: {error}"),
            Err(error) => return Err(error),
        }
    }
    println!("{me}: resigned");
    client.close().await;
    Ok(())
}

/// Says which process leads, without being a candidate.
async fn observe(election: &Election<String>) -> tenure::Result<()> {
    let mut observer = election.observe();
    loop {
        match observer.next().await? {
            Some(leader) => println!("{} leads, term {}", leader.value, leader.token),
            None => println!("no leader"),
        }
    }
}
