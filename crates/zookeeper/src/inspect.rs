//! What ZooKeeper holds of a lock, read into words.

use futures_util::{StreamExt, stream};
use tenure_core::{Holder, LockName, LockState, Result, Token, Waiter};
use zookeeper_client::Error as Fault;

use crate::create::token;
use crate::fault::fault;
use crate::inner::Inner;
use crate::line::Entry;
use crate::record::{Record, Stage};
use crate::session::Session;

/// How many nodes are read at once.
const AT_ONCE: usize = 64;

const INSPECT: &str = "inspect";

/// One of the line, and what its node says of it.
struct Seen {
    entry: Entry,
    record: Option<Record>,
    token: Option<Token>,
}

impl Inner {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let session = self.sessions.any(INSPECT).await?;
        let lock = self.keyring.lock(name);
        let line = self.see_now(INSPECT, &session, &lock).await?;
        let inside = line.inside();
        let (session, lock) = (&*session, &*lock);
        let read = |(at, entry)| async move { (at < inside, read(session, lock, entry).await) };
        let mut seen = stream::iter(line.0.into_iter().enumerate()).map(read).buffered(AT_ONCE);
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        while let Some((holds, seen)) = seen.next().await {
            match seen.map_err(|error| fault(INSPECT, error))? {
                Some(seen) if holds => holders.push(holder(seen)),
                Some(seen) => waiters.push(waiter(seen)),
                // It left between the looks. Who then holds is for the next look to say.
                None => {}
            }
        }
        Ok(LockState { name: name.clone(), holders, waiters })
    }
}

async fn read(session: &Session, lock: &str, entry: Entry) -> Result<Option<Seen>, Fault> {
    let path = format!("{lock}/{}", entry.nodes[0]);
    match session.answer(session.zk.get_data(&path)).await {
        Ok((data, stat)) => {
            let (record, token) = (Record::read(&data), token(&stat));
            Ok(Some(Seen { entry, record, token }))
        }
        Err(Fault::NoNode) => Ok(None),
        // Its name says the most of it, and whoever may list it may know that it is there.
        Err(Fault::NoAuth) => {
            let stat = session.answer(session.zk.check_stat(&path)).await?;
            Ok(stat.map(|stat| Seen { entry, record: None, token: token(&stat) }))
        }
        Err(error) => Err(error),
    }
}

fn holder(seen: Seen) -> Holder {
    let Seen { entry, record, token } = seen;
    let said = record.as_ref();
    Holder {
        owner: entry.spelled(),
        mode: entry.mode,
        token,
        host: said.map(|record| record.host.clone()),
        pid: said.map(|record| record.pid),
        // One that waited says since when it holds with its first renewal.
        age: said.filter(|record| record.stage != Stage::Waits).map(Record::age),
        // At the latest: how much of its session has passed, no server tells.
        expires_in: said.map(|record| record.ttl),
        label: record.map(|record| record.label).unwrap_or_default(),
    }
}

fn waiter(seen: Seen) -> Waiter {
    let Seen { entry, record, .. } = seen;
    let said = record.as_ref();
    Waiter {
        owner: entry.spelled(),
        mode: entry.mode,
        host: said.map(|record| record.host.clone()),
        pid: said.map(|record| record.pid),
        age: said.map(Record::age).unwrap_or_default(),
        label: record.map(|record| record.label).unwrap_or_default(),
    }
}
