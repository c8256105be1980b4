//! The nodes of a claim come into being.

use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use tenure_core::Token;
use zookeeper_client::{
    CreateMode, CreateOptions, Error as Fault, MultiWriteError, MultiWriteResult, MultiWriter, Stat,
};

use crate::fault::is_refusal;
use crate::inner::{Inner, line};
use crate::known::Above;
use crate::line::{Line, names, number};
use crate::record::{Record, Stage};
use crate::tenants::Tenant;

/// A claim's nodes, as they were created or found.
pub(crate) struct Own {
    /// Their paths.
    pub(crate) nodes: Vec<String>,
    /// The number of the first.
    pub(crate) number: i32,
    pub(crate) token: Option<Token>,
}

impl Own {
    /// The line that nobody else is in.
    fn alone(&self) -> Line {
        let names = self.nodes.iter().filter_map(|node| node.rsplit('/').next());
        Line::read(&names.map(str::to_owned).collect::<Vec<_>>())
    }
}

/// A claim that has come into line.
pub(crate) struct Arrival {
    pub(crate) own: Own,
    pub(crate) line: Line,
}

/// The transaction that created the node: they are numbered for the whole of ZooKeeper.
pub(crate) fn token(stat: &Stat) -> Option<Token> {
    numbered(stat.czxid)
}

fn numbered(transaction: i64) -> Option<Token> {
    u64::try_from(transaction).ok().map(Token::new)
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Own, Fault>> + Send + 'a>>;

impl Inner {
    /// Creates the nodes of a claim, and the one above them if need be, and looks who else is there.
    pub(crate) async fn create(&self, tenant: &Tenant) -> Result<Arrival, Fault> {
        let Tenant { claim, lock, session, .. } = tenant;
        let names = names(claim, self.config.neighbours);
        let paths: Vec<String> = names.iter().map(|name| format!("{lock}/{name}")).collect();
        let arrival = async {
            let counted = match self.known.get(lock) {
                Some(Above::Quiet) => self.create_and_count(tenant, &paths).await?,
                _ => None,
            };
            match counted {
                Some(arrival) => Ok(arrival),
                None => self.create_and_list(tenant, &paths).await,
            }
        };
        session.answer(arrival).await
    }

    /// All in one go: a server handles the calls of a session in their order, so the new nodes are in
    /// the line that is listed after them.
    async fn create_and_list(&self, tenant: &Tenant, paths: &[String]) -> Result<Arrival, Fault> {
        let Tenant { lock, session, .. } = tenant;
        // The server removes a container some time after its last child.
        let parent = self.config.neighbours.parent().with_acls(self.acls());
        let known = self.known.get(lock).is_some();
        let above = (!known).then(|| session.zk.create(lock, b"", &parent));
        let created = self.send(tenant, paths);
        let listed = session.zk.get_children(lock);
        let above = match above {
            Some(above) => above.await.map(drop),
            None => Ok(()),
        };
        let own = match (created.await, above) {
            (Ok(own), _) => own,
            // Whoever may not make it may still use it, if it is there.
            (Err(Fault::NoNode), Err(error)) if error != Fault::NodeExists => return Err(error),
            (Err(error), _) => return Err(error),
        };
        self.come(tenant, own, listed.await).await
    }

    /// Creates the nodes together with a write to the one above, whose answer says how many are below
    /// it now. If there are no others, nothing need be listed. `None`: it may not be written to, and
    /// nothing was created.
    async fn create_and_count(
        &self,
        tenant: &Tenant,
        paths: &[String],
    ) -> Result<Option<Arrival>, Fault> {
        let Tenant { lock, session, .. } = tenant;
        let mut together = self.together(tenant, paths)?;
        together.add_set_data(lock, b"", None)?;
        let results = match together.commit().await {
            Ok(results) => results,
            Err(MultiWriteError::OperationFailed { index, source: Fault::NoAuth })
                if index == paths.len() =>
            {
                self.known.note(lock, Above::Closed);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let above = results.iter().find_map(|result| match result {
            MultiWriteResult::SetData { stat } => Some(*stat),
            _ => None,
        });
        let nodes = created(results);
        let (Some(above), Some(number)) = (above, nodes.first().and_then(|node| number(node)))
        else {
            return Err(Fault::UnexpectedError("a part of the answer is missing".into()));
        };
        // It was written to by the transaction that created them.
        let own = Own { number, token: numbered(above.mzxid), nodes };
        if usize::try_from(above.num_children) == Ok(own.nodes.len()) {
            return Ok(Some(Arrival { line: own.alone(), own }));
        }
        let listed = session.zk.get_children(lock).await;
        self.come(tenant, own, listed).await.map(Some)
    }

    /// The line that a claim has come into, as it was listed.
    async fn come(
        &self,
        tenant: &Tenant,
        own: Own,
        listed: Result<(Vec<String>, Stat), Fault>,
    ) -> Result<Arrival, Fault> {
        if let Ok((children, above)) = &listed {
            let alone = children.len() == own.nodes.len();
            // What others keep there is not ours to overwrite.
            let quiet = alone && above.data_length == 0;
            self.known.note(&tenant.lock, if quiet { Above::Quiet } else { Above::Busy });
        }
        match line(listed.map(|(children, _)| children)) {
            Ok(line) => Ok(Arrival { own, line }),
            Err(error) => {
                if is_refusal(&error) {
                    // Who may not look cannot stay: a refusal means that nothing is there.
                    self.delete(&tenant.session, &own.nodes).await?;
                }
                Err(error)
            }
        }
    }

    /// Sends what creates the nodes, several of them together.
    fn send<'a>(&self, tenant: &'a Tenant, paths: &'a [String]) -> Sent<'a> {
        let zk = &tenant.session.zk;
        if let [path] = paths {
            let created = zk.create(path, &came(tenant), &self.options());
            return Box::pin(async move {
                let (stat, sequence) = created.await?;
                let number = i32::try_from(sequence.into_i64()).unwrap_or(i32::MAX);
                Ok(Own { nodes: vec![format!("{path}{sequence}")], number, token: token(&stat) })
            });
        }
        let mut together = match self.together(tenant, paths) {
            Ok(together) => together,
            Err(error) => return Box::pin(ready(Err(error))),
        };
        let committed = together.commit();
        Box::pin(async move {
            let nodes = created(committed.await?);
            let Some(first) = nodes.first() else { return Err(Fault::NoNode) };
            // Servers leave out what they know of nodes that are created together.
            // They are there by now: whatever is refused here, something has happened.
            let seen = zk.check_stat(first).await.map_err(|_| Fault::Timeout)?;
            let Some(stat) = seen else { return Err(Fault::NoNode) };
            let number = number(first).unwrap_or(i32::MAX);
            Ok(Own { nodes, number, token: token(&stat) })
        })
    }

    /// What creates the nodes, not sent yet.
    fn together<'a>(&self, tenant: &'a Tenant, paths: &[String]) -> Result<MultiWriter<'a>, Fault> {
        let mut together = tenant.session.zk.new_multi_writer();
        for path in paths {
            together.add_create(path, &came(tenant), &self.options())?;
        }
        Ok(together)
    }

    fn options(&self) -> CreateOptions<'static> {
        CreateMode::EphemeralSequential.with_acls(self.acls())
    }
}

/// What a node says of a claim that has just come.
fn came(tenant: &Tenant) -> Vec<u8> {
    Record::write(&tenant.claim, Stage::Came, Duration::ZERO)
}

/// The paths of the nodes that were created.
fn created(results: Vec<MultiWriteResult>) -> Vec<String> {
    let paths = results.into_iter().filter_map(|result| match result {
        MultiWriteResult::Create { path, .. } => Some(path),
        _ => None,
    });
    paths.collect()
}
