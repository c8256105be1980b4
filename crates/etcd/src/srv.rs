//! Servers that DNS names: SRV records, as etcd's own clients look them up.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, QCLASS, QTYPE, Question, RCODE, TYPE};
use tenure_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const LOOK_UP: &str = "look up etcd's servers in DNS";
const DNS_PORT: u16 = 53;

/// A domain whose SRV records name the servers: `_etcd-client._tcp`, or `_etcd-client-ssl._tcp` for
/// those with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Srv {
    /// The domain.
    pub domain: String,
    /// The name server to ask. `None`: those of `/etc/resolv.conf`, one after the other.
    pub name_server: Option<SocketAddr>,
}

impl Srv {
    /// A domain that the name servers of `/etc/resolv.conf` know.
    pub fn new(domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), name_server: None }
    }

    /// The servers, the ones with the lowest priority first.
    pub(crate) async fn look_up(&self, tls: bool, limit: Duration) -> Result<Vec<(String, u16)>> {
        let service = if tls { "_etcd-client-ssl" } else { "_etcd-client" };
        let name = format!("{service}._tcp.{}", self.domain.trim_end_matches('.'));
        let name_servers = match self.name_server {
            Some(server) => vec![server],
            None => system_name_servers()?,
        };
        let mut failure = unreachable("/etc/resolv.conf names no name server");
        for server in name_servers {
            let asked = tokio::time::timeout(limit, ask(server, &name)).await;
            match asked.unwrap_or_else(|_| Err(unreachable(&format!("{server} is silent")))) {
                Ok(found) if found.is_empty() => {
                    let why = format!("{name} has no SRV record: check the domain");
                    return Err(unreachable(&why));
                }
                Ok(found) => return Ok(found),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn system_name_servers() -> Result<Vec<SocketAddr>> {
    let text = std::fs::read("/etc/resolv.conf");
    let text = text.map_err(|error| unreachable(&format!("/etc/resolv.conf: {error}")))?;
    let config = resolv_conf::Config::parse(text);
    let config = config.map_err(|error| unreachable(&format!("/etc/resolv.conf: {error}")))?;
    let address = |server: &resolv_conf::ScopedIp| (IpAddr::from(server), DNS_PORT).into();
    Ok(config.nameservers.iter().map(address).collect())
}

/// Asks over UDP, and again over TCP if the answer does not fit.
async fn ask(server: SocketAddr, name: &str) -> Result<Vec<(String, u16)>> {
    let failed = |error: std::io::Error| unreachable(&format!("{server}: {error}"));
    let chance = tenure_core::OwnerId::random();
    let id = u16::from_ne_bytes([chance.as_bytes()[0], chance.as_bytes()[1]]);
    let question = question(id, name)?;
    let local: SocketAddr =
        if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(local).await.map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    socket.send(&question).await.map_err(failed)?;
    let mut reply = vec![0; usize::from(u16::MAX)];
    let length = socket.recv(&mut reply).await.map_err(failed)?;
    if let Some(found) = read(id, &reply[..length])? {
        return Ok(found);
    }
    let mut stream = TcpStream::connect(server).await.map_err(failed)?;
    let length = u16::try_from(question.len()).unwrap_or(u16::MAX);
    stream.write_u16(length).await.map_err(failed)?;
    stream.write_all(&question).await.map_err(failed)?;
    let length = usize::from(stream.read_u16().await.map_err(failed)?);
    stream.read_exact(&mut reply[..length]).await.map_err(failed)?;
    read(id, &reply[..length])?.ok_or_else(|| unreachable("the answer is cut off"))
}

fn question(id: u16, name: &str) -> Result<Vec<u8>> {
    let malformed = |error: simple_dns::SimpleDnsError| {
        Error::new(ErrorKind::Invalid, LOOK_UP, format!("{name:?} is no name in DNS: {error}"))
    };
    let mut packet = Packet::new_query(id);
    packet.set_flags(simple_dns::PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(malformed)?;
    let (kind, class) = (QTYPE::TYPE(TYPE::SRV), QCLASS::CLASS(CLASS::IN));
    packet.questions.push(Question::new(name, kind, class, false));
    packet.build_bytes_vec().map_err(malformed)
}

/// The servers in a reply. `None`: it was cut off.
fn read(id: u16, reply: &[u8]) -> Result<Option<Vec<(String, u16)>>> {
    let packet = Packet::parse(reply).map_err(|_| unreachable("the answer makes no sense"))?;
    if packet.id() != id {
        return Err(unreachable("the answer is for another question"));
    }
    if packet.has_flags(simple_dns::PacketFlag::TRUNCATION) {
        return Ok(None);
    }
    // Only these two say that the domain was looked for: other codes are faults of the name server.
    if !matches!(packet.rcode(), RCODE::NoError | RCODE::NameError) {
        return Err(unreachable(&format!("the name server failed: {:?}", packet.rcode())));
    }
    let mut found: Vec<(u16, String, u16)> = Vec::new();
    for record in &packet.answers {
        if let RData::SRV(srv) = &record.rdata {
            let host = srv.target.to_string().trim_end_matches('.').to_owned();
            found.push((srv.priority, host, srv.port));
        }
    }
    found.sort();
    Ok(Some(found.into_iter().map(|(_, host, port)| (host, port)).collect()))
}

fn unreachable(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, LOOK_UP, why.to_owned())
}

#[cfg(test)]
mod tests {
    use simple_dns::rdata::SRV;
    use simple_dns::{PacketFlag, ResourceRecord};

    use super::*;

    /// A name server that answers one question with these servers.
    async fn name_server(servers: &'static [(u16, &'static str, u16)]) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut question = [0; 512];
            let (length, from) = socket.recv_from(&mut question).await.unwrap();
            let mut reply = Packet::parse(&question[..length]).unwrap().into_reply();
            let name = reply.questions[0].qname.clone();
            for (priority, target, port) in servers {
                let target = Name::new(target).unwrap();
                let srv = SRV { priority: *priority, weight: 0, port: *port, target };
                reply.answers.push(ResourceRecord::new(
                    name.clone(),
                    CLASS::IN,
                    60,
                    RData::SRV(srv),
                ));
            }
            let reply = reply.build_bytes_vec().unwrap();
            socket.send_to(&reply, from).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn servers_come_in_the_order_of_their_priority() {
        let address = name_server(&[(20, "b.example", 2380), (10, "a.example", 2379)]).await;
        let srv = Srv { domain: "example".into(), name_server: Some(address) };
        let found = srv.look_up(false, Duration::from_secs(20)).await.unwrap();
        assert_eq!(found, [("a.example".into(), 2379), ("b.example".into(), 2380)]);
    }

    #[tokio::test]
    async fn a_domain_without_servers_is_named() {
        let address = name_server(&[]).await;
        let srv = Srv { domain: "example.".into(), name_server: Some(address) };
        let error = srv.look_up(true, Duration::from_secs(20)).await.unwrap_err();
        // The records may come later: a claim that waits goes on waiting.
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("_etcd-client-ssl._tcp.example "), "{error}");
    }

    #[test]
    fn an_answer_that_is_cut_off_is_asked_for_again_and_nonsense_is_refused() {
        let mut reply = Packet::new_reply(7);
        reply.set_flags(PacketFlag::TRUNCATION);
        let reply = reply.build_bytes_vec().unwrap();
        assert!(read(7, &reply).unwrap().is_none());
        assert!(read(8, &reply).is_err(), "it is for another question");
        assert!(read(7, b"nonsense").is_err());
        let mut failed = Packet::new_reply(7);
        *failed.rcode_mut() = RCODE::ServerFailure;
        let failed = failed.build_bytes_vec().unwrap();
        assert!(read(7, &failed).is_err(), "the next name server is asked");
        assert!(question(1, &format!("{}.example", "x".repeat(64))).is_err());
    }
}
