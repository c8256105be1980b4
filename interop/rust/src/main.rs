//! Drives rslock: see ../README.md.

use std::error::Error;
use std::io::BufRead;
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(port), Some(key)) = (arguments.next(), arguments.next()) else {
        return Err("a port and a key are needed".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut impatient = LockManager::new(vec![format!("redis://127.0.0.1:{port}")]);
    impatient.set_retry(1, Duration::from_millis(20));
    let mut patient = impatient.clone();
    patient.set_retry(10, Duration::from_millis(20));
    let mut held = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (command, ttl) = line.split_once(' ').unwrap_or((&line, "0"));
        if command == "release" {
            let lock: Lock = held.take().ok_or("there is no lock to release")?;
            runtime.block_on(lock.release());
            println!("sent");
            continue;
        }
        let ttl = Duration::from_millis(ttl.parse()?);
        let answer = match command {
            "wait" => runtime.block_on(patient.acquire_no_guard(key.as_str(), ttl)),
            _ => runtime.block_on(impatient.lock(key.as_str(), ttl)),
        };
        match answer {
            Ok(lock) => {
                held = Some(lock);
                println!("held");
            }
            Err(LockError::Unavailable) => println!("busy"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
