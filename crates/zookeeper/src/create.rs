//! The nodes of a claim come into being.

use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use tenure_core::Token;
use zookeeper_client::{CreateMode, Error as Fault, MultiWriteResult, Stat};

use crate::fault::is_refusal;
use crate::inner::{Inner, line};
use crate::line::{Line, names, number};
use crate::record::{Record, Stage};
use crate::tenants::Tenant;

/// A claim's nodes, as they were created or found.
pub(crate) struct Own {
    /// Their paths.
    pub(crate) nodes: Vec<String>,
    /// The number of the first.
    pub(crate) number: i32,
    pub(crate) stat: Stat,
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
    /// Whether its client has used this lock before.
    pub(crate) again: bool,
}

/// The transaction that created the node: they are numbered for the whole of ZooKeeper.
pub(crate) fn token(stat: &Stat) -> Option<Token> {
    u64::try_from(stat.czxid).ok().map(Token::new)
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Own, Fault>> + Send + 'a>>;

impl Inner {
    /// Creates the nodes of a claim, and the one above them if need be, and looks at the line, all in
    /// one go: a server handles the calls of a session in their order, so the new nodes are in the
    /// line. Where their number says that nobody else is there, that is enough.
    pub(crate) async fn create(&self, tenant: &Tenant) -> Result<Arrival, Fault> {
        let Tenant { claim, lock, session, .. } = tenant;
        let names = names(claim, self.config.neighbours);
        let paths: Vec<String> = names.iter().map(|name| format!("{lock}/{name}")).collect();
        let known = self.known.has(lock);
        let vigil = self.known.vigil(lock, session);
        // The server removes a container some time after its last child.
        let parent = self.config.neighbours.parent().with_acls(self.acls());
        let above = (!known).then(|| session.zk.create(lock, b"", &parent));
        let created = self.send(tenant, &paths);
        let list = || session.zk.list_children(lock);
        let listed = vigil.as_ref().is_none_or(|vigil| !vigil.is_quiet()).then(list);
        let answers = async {
            let above = match above {
                Some(above) => above.await.map(drop),
                None => Ok(()),
            };
            let own = match (created.await, above) {
                (Ok(own), _) => own,
                // Whoever may not make it may still use it, if it is there.
                (Err(Fault::NoNode), Err(error)) if error != Fault::NodeExists => {
                    return Err(error);
                }
                (Err(error), _) => return Err(error),
            };
            self.known.note(lock);
            let seen = match listed {
                _ if vigil.as_ref().is_some_and(|vigil| vigil.is_only(own.number)) => {
                    Ok(own.alone())
                }
                Some(listed) => line(listed.await),
                None => line(list().await),
            };
            match seen {
                Ok(line) => Ok(Arrival { own, line, again: known }),
                Err(error) => {
                    if is_refusal(&error) {
                        // Who may not look cannot stay: a refusal means that nothing is there.
                        self.delete(session, &own.nodes).await?;
                    }
                    Err(error)
                }
            }
        };
        session.answer(answers).await
    }

    /// Sends what creates the nodes, several of them together.
    fn send<'a>(&self, tenant: &'a Tenant, paths: &'a [String]) -> Sent<'a> {
        let zk = &tenant.session.zk;
        let data = Record::write(&tenant.claim, Stage::Came, Duration::ZERO);
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        if let [path] = paths {
            let created = zk.create(path, &data, &options);
            return Box::pin(async move {
                let (stat, sequence) = created.await?;
                let number = i32::try_from(sequence.into_i64()).unwrap_or(i32::MAX);
                Ok(Own { nodes: vec![format!("{path}{sequence}")], number, stat })
            });
        }
        let mut together = zk.new_multi_writer();
        for path in paths {
            if let Err(error) = together.add_create(path, &data, &options) {
                return Box::pin(ready(Err(error)));
            }
        }
        let created = together.commit();
        Box::pin(async move {
            let nodes = created.await?.into_iter().filter_map(|result| match result {
                MultiWriteResult::Create { path, .. } => Some(path),
                _ => None,
            });
            let nodes: Vec<String> = nodes.collect();
            let Some(first) = nodes.first() else { return Err(Fault::NoNode) };
            // Servers leave out what they know of nodes that are created together.
            // They are there by now: whatever is refused here, something has happened.
            let seen = zk.check_stat(first).await.map_err(|_| Fault::Timeout)?;
            let Some(stat) = seen else { return Err(Fault::NoNode) };
            let number = number(first).unwrap_or(i32::MAX);
            Ok(Own { nodes, number, stat })
        })
    }
}
