//! What each call does to the tables. Each function is called inside a transaction.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::store::{
    Claim, ClaimOutcome, Eviction, Grant, Moment, QueueTicket, Released, Renewal, WaitPolicy,
    admitted, now,
};
use tenure_core::{Holder, LockName, LockState, Mode, OwnerId, Token, Waiter};

/// Times are nanoseconds of the clock that runs since the machine was started.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS claims (
        ticket  INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of arrival
        lock    TEXT NOT NULL,
        owner   TEXT NOT NULL,
        mode    TEXT NOT NULL,     -- exclusive, shared or permits
        take    INTEGER NOT NULL,  -- permits: take so many …
        permits INTEGER NOT NULL,  -- … of so many
        ttl     INTEGER NOT NULL,
        arrived INTEGER NOT NULL,
        ends    INTEGER NOT NULL,  -- when the term, or the place in the queue, ends
        token   INTEGER,           -- set while the claim holds the lock
        granted INTEGER,
        host    TEXT NOT NULL,
        pid     INTEGER NOT NULL,
        label   TEXT NOT NULL,
        UNIQUE (lock, owner)
    );
    CREATE TABLE IF NOT EXISTS evictions (lock TEXT NOT NULL, record TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS counter (token INTEGER NOT NULL, boot TEXT NOT NULL);
    INSERT INTO counter SELECT 0, '' WHERE NOT EXISTS (SELECT * FROM counter);
";

/// Creates missing tables. Claims of an earlier start of the machine end: their processes are gone, and
/// their times count from another beginning. The token goes on.
pub(crate) fn prepare(tables: &Connection, boot: &str) -> rusqlite::Result<()> {
    tables.execute_batch(TABLES)?;
    if tables.execute("UPDATE counter SET boot = ?1 WHERE boot <> ?1", [boot])? == 1 {
        tables.execute("DELETE FROM claims", [])?;
    }
    Ok(())
}

pub(crate) fn claim(
    tables: &Connection,
    claim: &Claim,
    policy: WaitPolicy,
) -> rusqlite::Result<ClaimOutcome> {
    let now = now();
    let name = claim.name.as_str();
    expire(tables, name, now)?;
    // A claim that holds starts its term anew, one that waits keeps its place.
    let lease = match policy {
        WaitPolicy::Queue { lease, .. } => lease,
        _ => claim.ttl,
    };
    let (mode, take, permits) = match claim.mode {
        Mode::Permits { take, of } => ("permits", take, of),
        Mode::Shared => ("shared", 0, 0),
        _ => ("exclusive", 0, 0),
    };
    tables
        .prepare_cached(
            "INSERT INTO claims (lock, owner, mode, take, permits, ttl, arrived, ends, host, pid, label)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT DO UPDATE SET ends = iif(token IS NULL, excluded.ends, ?7 + ?6)",
        )?
        .execute(params![
            name,
            claim.owner.to_string(),
            mode,
            take,
            permits,
            nanos(claim.ttl),
            time(now),
            time(now + lease),
            claim.origin.host,
            claim.origin.pid,
            &*claim.label,
        ])?;
    admit(tables, name, now)?;
    if let Some(token) = token_of(tables, name, &claim.owner.to_string())? {
        return Ok(ClaimOutcome::Granted(Grant::new(Some(token), None)));
    }
    if policy == WaitPolicy::NoWait {
        remove(tables, name, &claim.owner.to_string())?;
        return Ok(ClaimOutcome::Busy);
    }
    Ok(ClaimOutcome::Queued(ticket(tables, name, now)?))
}

pub(crate) fn renew(tables: &Connection, claim: &Claim) -> rusqlite::Result<Renewal> {
    let now = now();
    let mut renew = tables.prepare_cached(
        "UPDATE claims SET ends = ?3 + ttl
         WHERE lock = ?1 AND owner = ?2 AND token IS NOT NULL AND ends > ?3",
    )?;
    let owner = claim.owner.to_string();
    Ok(match renew.execute(params![claim.name.as_str(), owner, time(now)])? {
        0 => Renewal::Lost,
        _ => Renewal::Renewed,
    })
}

pub(crate) fn release(
    tables: &Connection,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<Released> {
    let (name, now) = (name.as_str(), now());
    expire(tables, name, now)?;
    let released = remove(tables, name, &owner.to_string())?;
    admit(tables, name, now)?;
    Ok(released)
}

pub(crate) fn evict(tables: &Connection, eviction: &Eviction) -> rusqlite::Result<Released> {
    let (name, now) = (eviction.name.as_str(), now());
    expire(tables, name, now)?;
    let released = remove(tables, name, &eviction.owner)?;
    if released == Released::Released {
        // A resource that has seen this token refuses what the evicted holder still writes.
        next_token(tables)?;
        let record = eviction.record().to_line();
        tables.execute("INSERT INTO evictions VALUES (?1, ?2)", [name, &record])?;
    }
    admit(tables, name, now)?;
    Ok(released)
}

/// Whether a waiting claim should ask: it holds now, or it is gone.
pub(crate) fn has_news(
    tables: &Connection,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<bool> {
    let mut look = tables
        .prepare_cached("SELECT token IS NOT NULL FROM claims WHERE lock = ?1 AND owner = ?2")?;
    let holds = look.query_row([name.as_str(), &owner.to_string()], |row| row.get(0)).optional()?;
    Ok(holds.unwrap_or(true))
}

pub(crate) fn inspect(tables: &Connection, name: &LockName) -> rusqlite::Result<LockState> {
    let now = now();
    let mut state = LockState::free(name.clone());
    let mut rows = tables
        .prepare_cached("SELECT * FROM claims WHERE lock = ?1 AND ends > ?2 ORDER BY ticket")?;
    let mut rows = rows.query(params![name.as_str(), time(now)])?;
    while let Some(row) = rows.next()? {
        let owner: String = row.get("owner")?;
        let (host, pid, label) = (row.get("host")?, row.get("pid")?, row.get("label")?);
        match row.get::<_, Option<u64>>("token")? {
            Some(token) => {
                let mut holder = Holder::new(owner, mode(row)?);
                holder.token = Some(Token::new(token));
                (holder.host, holder.pid, holder.label) = (host, pid, label);
                holder.age = Some(now.since(moment(row, "granted")?));
                holder.expires_in = Some(moment(row, "ends")?.since(now));
                state.holders.push(holder);
            }
            None => {
                let mut waiter = Waiter::new(owner, mode(row)?);
                (waiter.host, waiter.pid, waiter.label) = (host, pid, label);
                waiter.age = now.since(moment(row, "arrived")?);
                state.waiters.push(waiter);
            }
        }
    }
    Ok(state)
}

pub(crate) fn list(tables: &Connection, prefix: &str) -> rusqlite::Result<Vec<String>> {
    let mut names = tables.prepare_cached(
        "SELECT DISTINCT lock FROM claims
         WHERE ends > ?2 AND substr(lock, 1, length(?1)) = ?1 ORDER BY lock",
    )?;
    names.query_map(params![prefix, time(now())], |row| row.get(0))?.collect()
}

/// What SQLite says about the file: `ok`, or what is damaged.
pub(crate) fn check(tables: &Connection) -> rusqlite::Result<String> {
    tables.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

/// Removes the claims whose time has passed.
fn expire(tables: &Connection, name: &str, now: Moment) -> rusqlite::Result<()> {
    let mut expire = tables.prepare_cached("DELETE FROM claims WHERE lock = ?1 AND ends <= ?2")?;
    expire.execute(params![name, time(now)])?;
    Ok(())
}

fn remove(tables: &Connection, name: &str, owner: &str) -> rusqlite::Result<Released> {
    let mut remove = tables.prepare_cached(
        "DELETE FROM claims WHERE lock = ?1 AND owner = ?2 RETURNING token IS NOT NULL",
    )?;
    let held = remove.query_row([name, owner], |row| row.get(0)).optional()?;
    Ok(if held == Some(true) { Released::Released } else { Released::NotHeld })
}

/// Gives a token to each claim that has become a holder.
fn admit(tables: &Connection, name: &str, now: Moment) -> rusqlite::Result<()> {
    let mut queue = tables.prepare_cached(
        "SELECT ticket, mode, take, permits, token IS NOT NULL AS holds FROM claims
         WHERE lock = ?1 ORDER BY ticket",
    )?;
    let mut rows = queue.query([name])?;
    let mut modes = Vec::new();
    while let Some(row) = rows.next()? {
        modes.push(mode(row)?);
        // The queue is read as far as claims hold, and no further.
        if admitted(modes.iter().copied()) < modes.len() {
            break;
        }
        if !row.get::<_, bool>("holds")? {
            let token = next_token(tables)?;
            let mut grant = tables.prepare_cached(
                "UPDATE claims SET token = ?2, granted = ?3, ends = ?3 + ttl WHERE ticket = ?1",
            )?;
            grant.execute(params![row.get::<_, i64>("ticket")?, token, time(now)])?;
        }
    }
    Ok(())
}

fn next_token(tables: &Connection) -> rusqlite::Result<u64> {
    let mut next = tables.prepare_cached("UPDATE counter SET token = token + 1 RETURNING token")?;
    next.query_row([], |row| row.get(0))
}

fn token_of(tables: &Connection, name: &str, owner: &str) -> rusqlite::Result<Option<Token>> {
    let mut look =
        tables.prepare_cached("SELECT token FROM claims WHERE lock = ?1 AND owner = ?2")?;
    let token: Option<u64> = look.query_row([name, owner], |row| row.get(0))?;
    Ok(token.map(Token::new))
}

/// When a waiter should ask again at the latest: when the first claim in its way may have ended.
fn ticket(tables: &Connection, name: &str, now: Moment) -> rusqlite::Result<QueueTicket> {
    let mut first =
        tables.prepare_cached("SELECT min(ends) AS ends FROM claims WHERE lock = ?1")?;
    let ends = first.query_row([name], |row| moment(row, "ends"))?;
    Ok(QueueTicket::new(Some(ends.since(now))))
}

fn mode(row: &Row<'_>) -> rusqlite::Result<Mode> {
    Ok(match row.get_ref("mode")?.as_str()? {
        "permits" => Mode::Permits { take: row.get("take")?, of: row.get("permits")? },
        "shared" => Mode::Shared,
        _ => Mode::Exclusive,
    })
}

fn moment(row: &Row<'_>, column: &str) -> rusqlite::Result<Moment> {
    Ok(Moment::default() + Duration::from_nanos(row.get::<_, u64>(column)?))
}

/// SQLite's integers are signed; there are 292 years in them.
fn time(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
