//! One of several processes is the leader. When it resigns, dies or is cut off, the next one takes over.
//!
//! ```text
//! cargo run --example leader              # in several terminals; end the leader with ^C or kill -9
//! cargo run --example leader observe      # in another one
//! cargo run --example leader play         # starts three, kills the first leader and stops the second
//! ```

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tenure::{Election, ErrorKind, Options};

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let client = tenure::connect("local").await?;
    // The TTL bounds how long there is no leader after a machine has died.
    let options = Options::new().ttl(Duration::from_secs(2));
    let election = client.election("leader")?.with(options);
    match std::env::args().nth(1).as_deref() {
        Some("observe") => return Ok(observe(&election).await?),
        Some("play") => return play(&election).await,
        _ => {}
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
            Err(error) => return Err(error.into()),
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

/// Kills a leader with -9 and stops the next one. Each time another candidate takes over, and the stopped one
/// hears of it when it goes on, before it does anything else.
async fn play(election: &Election<String>) -> Result<(), Failure> {
    let mut killed = Candidate::start()?;
    let first = leader(election, 0).await?;
    let mut stopped = Candidate::start()?;
    killed.process.kill()?; // kill -9
    killed.process.wait()?;
    let second = leader(election, first).await?;
    println!("killed:  the next leader has a higher term: {}", second > first);

    let mut third = Candidate::start()?;
    stopped.signal("STOP")?;
    let last = leader(election, second).await?;
    println!("stopped: the next leader has a higher term: {}", last > second);
    stopped.signal("CONT")?;
    println!("it said: {}", if stopped.says("could not")? { "lost" } else { "nothing" });
    stopped.process.kill()?;
    stopped.process.wait()?;
    let mut rest = String::new();
    third.output.read_to_string(&mut rest)?;
    third.process.wait()?;
    println!("last:    {}", if rest.contains("resigned") { "led and resigned" } else { &rest });
    Ok(())
}

/// Waits for a leader with a term after this one.
async fn leader(election: &Election<String>, after: u64) -> tenure::Result<u64> {
    let mut observer = election.observe();
    loop {
        if let Some(leader) = observer.next().await?
            && leader.token.get() > after
        {
            return Ok(leader.token.get());
        }
    }
}

struct Candidate {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Candidate {
    /// Starts a candidate, and waits until it stands by.
    fn start() -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(process.stdout.take().ok_or("the candidate has no output")?);
        let mut candidate = Self { process, output };
        candidate.says("standing by")?;
        Ok(candidate)
    }

    /// Reads until a line has these words.
    fn says(&mut self, words: &str) -> Result<bool, Failure> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if line.contains(words) {
                return Ok(true);
            }
            line.clear();
        }
        Ok(false)
    }

    fn signal(&self, name: &str) -> Result<(), Failure> {
        let sent =
            Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(format!("kill: {sent}").into()) }
    }
}
