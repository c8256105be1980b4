//! One of several processes is the leader. When it resigns, dies or is cut off, the next one takes over.
//!
//! ```text
//! cargo run --example leader        # in several terminals; end the leader with ^C or kill -9
//! ```

use std::time::Duration;

use tenure::{ErrorKind, Options};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let client = tenure::connect("local").await?;
    let me = format!("process {}", std::process::id());
    // The TTL bounds how long there is no leader after a machine has died.
    let options = Options::new().ttl(Duration::from_secs(5)).label(me.as_str());
    let leadership = client.mutex("leader")?.with(options).fenced()?;

    loop {
        println!("{me}: standing by");
        let term = leadership.run(async |guard| {
            println!("{me}: leading, term {}", guard.token());
            lead().await;
        });
        match term.await {
            Ok(()) => break,
            // Another process leads by now, or soon will. `lead` was stopped before that.
            Err(error) if error.kind() == ErrorKind::Lost => println!("{me}: {error}"),
            Err(error) => return Err(error),
        }
    }
    println!("{me}: resigned");
    client.close().await;
    Ok(())
}

/// What only the leader does. This one resigns after a while; yours may run for ever.
async fn lead() {
    for beat in 1..=5 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        println!("  beat {beat}");
    }
}
