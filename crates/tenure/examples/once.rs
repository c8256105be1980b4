//! Work that is done once, although the process that does it is killed or stopped in the middle.
//!
//! ```text
//! cargo run --example once
//! ```
//!
//! The program starts itself twice as a runner. The first runner is killed with -9, the second is stopped.
//! Both times the work is taken over when the runner's lease has ended. The second runner goes on later,
//! and its result is refused.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tenure::{Client, Error, Once, OnceOutcome, Options};

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let client = tenure::connect("local").await?;
    if let Some(key) = std::env::args().nth(1) {
        return run(&client, &key).await;
    }
    let run_id = std::process::id(); // so that the example can be run again
    let unfinished = async |_: &_| Ok::<_, Error>("done by the second".to_owned());

    let payment = format!("payment/{run_id}/killed");
    let (mut runner, _) = start_runner(&payment)?;
    let payment = once(&client, &payment)?;
    assert_eq!(payment.try_run(unfinished).await?, OnceOutcome::InProgress);
    runner.kill()?; // kill -9
    runner.wait()?;
    println!("killed:  {:?}", payment.run(unfinished).await?);
    println!("again:   {:?}", payment.run(unfinished).await?);

    let payment = format!("payment/{run_id}/stopped");
    let (mut runner, mut output) = start_runner(&payment)?;
    let payment = once(&client, &payment)?;
    signal(&runner, "STOP")?;
    println!("stopped: {:?}", payment.run(unfinished).await?);
    signal(&runner, "CONT")?;
    let mut said = String::new();
    output.read_to_string(&mut said)?;
    runner.wait()?;
    print!("{said}");
    assert_eq!(payment.get().await?.as_deref(), Some("done by the second"));
    client.close().await;
    Ok(())
}

fn once(client: &Client, key: &str) -> tenure::Result<Once<String>> {
    // The result is kept for a day. The lease bounds how long others wait for a runner that died.
    let lease = Options::new().ttl(Duration::from_secs(1));
    Ok(client.once(key)?.ttl(Duration::from_secs(24 * 3600)).with(lease))
}

/// What a runner does: work that takes long.
async fn run(client: &Client, key: &str) -> Result<(), Failure> {
    let payment = once(client, key)?;
    let work = payment.run(async |_guard| {
        // Send _guard.token() along with every write, so that a late one is refused.
        println!("running");
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok::<_, Error>("done by the first".to_owned())
    });
    match work.await {
        Ok(outcome) => println!("runner:  {outcome:?}"),
        Err(error) => println!("runner:  {error}"),
    }
    Ok(())
}

/// Starts a runner, and waits until it is in the middle of its work.
fn start_runner(key: &str) -> Result<(Child, BufReader<ChildStdout>), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut runner = command.arg(key).stdout(Stdio::piped()).spawn()?;
    let mut output = BufReader::new(runner.stdout.take().ok_or("the runner has no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    assert_eq!(line, "running\n");
    Ok((runner, output))
}

fn signal(process: &Child, name: &str) -> Result<(), Failure> {
    let pid = process.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill: {sent}").into()) }
}
