//! Very many locks held at once: what it costs to keep them.

use std::time::{Duration, Instant};

use tenure_core::Guard;
use tenure_testkit::RedisServer;

use crate::Outcome;
use crate::handoff::stay_on;
use crate::redis::{connect, runtime};
use crate::redis_many::cpu_of;
use crate::table::Row;

const LOCKS: usize = 100_000;
/// Three renewals of each at a TTL of 30 s.
const WATCHED: Duration = Duration::from_secs(30);

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    stay_on(0)?;
    let server = RedisServer::start(&[])?;
    stay_on(1)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, server.port(), true)?;
    let guards = runtime.block_on(async {
        let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
        let mut tasks = tokio::task::JoinSet::new();
        for lock in 0..LOCKS {
            let mutex = client.mutex(&format!("held-{lock}"))?;
            tasks.spawn(async move { mutex.acquire().await });
            if tasks.len() == 1_000 {
                while let Some(guard) = tasks.join_next().await {
                    guards.push(guard??);
                }
            }
        }
        Ok::<_, Box<dyn std::error::Error>>(guards)
    })?;
    // The first renewals come together, as the locks did; from then on they are watched.
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    let me = std::process::id();
    let (start, mine, servers) = (Instant::now(), cpu_of(me)?, cpu_of(server.pid())?);
    runtime.block_on(async { tokio::time::sleep(WATCHED).await });
    let elapsed = start.elapsed().as_secs_f64();
    let (mine, servers) = (cpu_of(me)? - mine, cpu_of(server.pid())? - servers);
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    if lost > 0 || guards.len() != LOCKS {
        return Err(format!("{lost} of {} locks were lost", guards.len()).into());
    }
    let row = |what: &str, cpu: Duration| Row {
        what: format!("redis: 100,000 locks held, TTL 30 s, none lost, {what}"),
        ours: cpu.as_secs_f64() / elapsed * 100.0,
        against: "a tenth of a core".into(),
        theirs: 10.0,
        unit: "%",
        bound: Some(1.0),
    };
    let rows = vec![row("the client's CPU", mine), row("the server's CPU", servers)];
    // They end with the server: nobody waits for a hundred thousand releases.
    guards.into_iter().for_each(std::mem::forget);
    Ok(rows)
}
