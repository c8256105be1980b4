//! The names of locks.

use futures_util::{StreamExt, stream};
use tenure_core::{LockName, Result};
use zookeeper_client::Error as Fault;

use crate::fault::fault;
use crate::inner::{Inner, line};

/// How many locks are looked at at once.
const AT_ONCE: usize = 256;

const LIST: &str = "list locks";

impl Inner {
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let session = self.sessions.any(LIST).await?;
        let zk = &session.zk;
        let folder = self.keyring.folder();
        let (synced, listed) = (zk.sync(folder), zk.list_children(folder));
        let answers = async {
            synced.await?;
            match listed.await {
                Err(Fault::NoNode) => Ok(Vec::new()),
                listed => listed,
            }
        };
        let children = session.answer(answers).await.map_err(|error| fault(LIST, error))?;
        let known = children.iter().filter_map(|child| self.keyring.lock_of(child));
        let asked: Vec<LockName> = known.filter(|name| name.as_str().starts_with(prefix)).collect();
        let look = |name: LockName| {
            let session = &session;
            async move {
                let lock = self.keyring.lock(&name);
                let listed = session.answer(zk.list_children(&lock)).await;
                // A node stays for a while after its last child.
                line(listed).map(|line| (!line.0.is_empty()).then_some(name))
            }
        };
        let mut looks = stream::iter(asked).map(look).buffer_unordered(AT_ONCE);
        let (mut names, mut refused, mut all) = (Vec::new(), None, true);
        while let Some(seen) = looks.next().await {
            match seen {
                // What others keep beside our locks must not hide those.
                Err(error @ Fault::NoAuth) => refused = Some(error),
                seen => {
                    names.extend(seen.map_err(|error| fault(LIST, error))?);
                    all = false;
                }
            }
        }
        if let Some(error) = refused.filter(|_| all) {
            return Err(fault(LIST, error));
        }
        names.sort();
        Ok(names)
    }
}
