//! ZooKeeper servers for tests, on free ports of the loopback address.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis::free_port;
use crate::{Certificates, ChildProcess, Ensemble, GENEROUS, lacks, temp_dir};

/// Where Debian has the server. Its manifest names the jars that it needs without TLS.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// The server, and the jars that only TLS needs, which its manifest lacks.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:\
    /usr/share/java/netty-resolver.jar";

/// The environment variable that names a folder with the jars of another version.
const CHOICE: &str = "TENURE_TEST_ZOOKEEPER";

/// Options for a small Java virtual machine that starts quickly.
const MACHINE: &[&str] = &[
    "-Xms16m",
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
];

/// The default settings. Sessions expire soon after their timeout, and may be long. Writes are not
/// synced: they survive a kill all the same.
const SETTINGS: &[&str] = &[
    "tickTime=200",
    "maxSessionTimeout=600000",
    "initLimit=100",
    "syncLimit=25",
    "maxClientCnxns=0",
    "4lw.commands.whitelist=*",
    "admin.enableServer=false",
    "forceSync=no",
    // Otherwise each server writes files of 64 MB.
    "preAllocSize=64",
];

/// A member of a ZooKeeper ensemble, which may be the only one. Dropping it kills its process by its pid and
/// removes its files.
#[derive(Debug)]
pub struct ZooKeeperServer {
    child: ChildProcess,
    port: u16,
    tls_port: Option<u16>,
    options: Vec<String>,
    folder: TempDir,
}

impl ZooKeeperServer {
    /// Whether ZooKeeper is not installed. If so, reports the test as skipped.
    pub fn is_missing(test: &str) -> bool {
        lacks("java", test) || (std::env::var_os(CHOICE).is_none() && lacks(JAR, test))
    }

    /// Starts a standalone server, and waits until it serves. It is Debian's, or the one whose jars are in the
    /// folder that `TENURE_TEST_ZOOKEEPER` names. Settings are lines of its configuration
    /// (`tickTime=500`), or begin with `-` and are options of its virtual machine.
    ///
    /// # Errors
    /// If it cannot be started, or does not serve in time.
    pub fn start(settings: &[&str]) -> io::Result<Self> {
        Self::start_alone(settings, None)
    }

    /// As [`start`](Self::start), with an additional TLS port, which asks clients for a certificate of the
    /// same authority.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_tls(settings: &[&str], certificates: &Certificates) -> io::Result<Self> {
        Self::start_alone(settings, Some(certificates))
    }

    fn start_alone(settings: &[&str], certificates: Option<&Certificates>) -> io::Result<Self> {
        let mut last = io::Error::other("no port was free");
        // Another process may take a port before the server does: then try others.
        for _ in 0..5 {
            match Self::spawn(None, settings, certificates).and_then(Self::once_it_serves) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Starts a member of an ensemble by its number, or a standalone server.
    fn spawn(
        number: Option<usize>,
        settings: &[&str],
        certificates: Option<&Certificates>,
    ) -> io::Result<Self> {
        let folder = temp_dir();
        let data = folder.path().join("data");
        std::fs::create_dir(&data)?;
        if let Some(number) = number {
            std::fs::write(data.join("myid"), number.to_string())?;
        }
        let port = free_port()?;
        let mut lines: Vec<String> = SETTINGS.iter().map(ToString::to_string).collect();
        lines.push(format!("clientPort={port}\nclientPortAddress=127.0.0.1"));
        lines.push(format!("dataDir={}", data.display()));
        let mut tls_port = None;
        if let Some(certificates) = certificates {
            let port = free_port()?;
            lines.push(format!("secureClientPort={port}\nsecureClientPortAddress=127.0.0.1"));
            lines.extend(tls(folder.path(), certificates)?);
            tls_port = Some(port);
        }
        let (options, settings): (Vec<_>, Vec<_>) =
            settings.iter().map(ToString::to_string).partition(|setting| setting.starts_with('-'));
        // Later lines override earlier ones.
        lines.extend(settings);
        std::fs::write(folder.path().join("zoo.cfg"), lines.join("\n"))?;
        let child = run(folder.path(), &options)?;
        Ok(Self { child, port, tls_port, options, folder })
    }

    fn once_it_serves(mut self) -> io::Result<Self> {
        self.until_it_serves()?;
        Ok(self)
    }

    /// Waits until it serves, which means that there is a leader.
    ///
    /// # Errors
    /// If it has ended, or does not serve in time.
    pub fn until_it_serves(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < GENEROUS {
            if let Some(status) = self.child.status()? {
                return Err(io::Error::other(format!("zookeeper ended at once: {status}")));
            }
            // A server without permission for this command at least listens.
            let word = self.word("srvr").unwrap_or_default();
            let serves = word.contains("Mode: ") || word.contains("not in the whitelist");
            // The TLS port opens after the other one.
            let listens = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
            if serves && self.tls_port.is_none_or(listens) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Its port for clients on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its TLS port, if it was started with one.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    /// Restarts it with the data it has on disk. Does not wait until it serves, because it may need other
    /// members for that.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill9()?;
        self.child = run(self.folder.path(), &self.options)?;
        Ok(())
    }

    /// Whether it believes to be the leader.
    fn leads(&self) -> bool {
        self.word("srvr").is_ok_and(|state| state.contains("Mode: leader"))
    }

    fn requests(&self) -> io::Result<u64> {
        self.figure("zk_packets_received")
    }

    /// One of the figures that the command `mntr` lists. The request itself counts as a connection and a
    /// packet.
    ///
    /// # Errors
    /// If it does not answer, or has no such figure.
    pub fn figure(&self, name: &str) -> io::Result<u64> {
        let figures = self.word("mntr")?;
        let figure = figures.lines().find_map(|line| {
            let (found, figure) = line.split_once('\t')?;
            if found == name { figure.parse().ok() } else { None }
        });
        figure.ok_or_else(|| io::Error::other(format!("no figure {name} in: {figures}")))
    }

    /// Its state, the sessions it knows with their nodes, and its connections.
    fn account(&self) -> String {
        let said = ["srvr", "dump", "cons"]
            .map(|word| self.word(word).unwrap_or_else(|error| error.to_string()));
        said.join("\n")
    }

    /// Its reply to a four-letter command: its state, its figures, its connections.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn word(&self, word: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        // A stopped server still accepts connections.
        stream.set_read_timeout(Some(GENEROUS / 4))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

crate::child_process::deref_to_child!(ZooKeeperServer);
crate::ensemble::is_a_member!(ZooKeeperServer);

/// The settings for a TLS port. The server expects certificate and key in one file.
fn tls(folder: &Path, certificates: &Certificates) -> io::Result<Vec<String>> {
    let (certificate, key) = certificates.of("server");
    let both = folder.join("server.pem");
    std::fs::write(&both, std::fs::read_to_string(key)? + &std::fs::read_to_string(certificate)?)?;
    Ok(vec![
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".into(),
        format!("ssl.keyStore.type=PEM\nssl.keyStore.location={}", both.display()),
        format!("ssl.trustStore.type=PEM\nssl.trustStore.location={}", certificates.ca().display()),
        // Clients have no host name that a certificate could be for.
        "ssl.hostnameVerification=false".into(),
    ])
}

fn run(folder: &Path, options: &[String]) -> io::Result<ChildProcess> {
    let mut command = Command::new("java");
    let jars =
        std::env::var(CHOICE).map_or_else(|_| JARS.to_owned(), |folder| format!("{folder}/*"));
    command.args(MACHINE).args(options).args(["-cp", &jars]);
    command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(folder.join("zoo.cfg"));
    command.current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ChildProcess::spawn(command)
}

/// Three members of one ensemble.
pub type ZooKeeperEnsemble = Ensemble<ZooKeeperServer>;

impl ZooKeeperEnsemble {
    /// Starts an ensemble, each member with these settings, and waits until every member serves.
    ///
    /// # Errors
    /// If it cannot be started, or does not serve in time.
    pub fn start(settings: &[&str]) -> io::Result<Self> {
        Self::start_any(settings, None)
    }

    /// As [`start`](Self::start), each member with an additional TLS port.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_tls(settings: &[&str], certificates: &Certificates) -> io::Result<Self> {
        Self::start_any(settings, Some(certificates))
    }

    fn start_any(settings: &[&str], certificates: Option<&Certificates>) -> io::Result<Self> {
        Self::start_with(|| {
            let mut members = Vec::new();
            for number in 1..=3 {
                let (peer, election) = (free_port()?, free_port()?);
                members.push(format!("server.{number}=127.0.0.1:{peer}:{election}"));
            }
            let members = members.join("\n");
            let settings: Vec<&str> = settings.iter().copied().chain([&*members]).collect();
            let member = |number| ZooKeeperServer::spawn(Some(number), &settings, certificates);
            (1..=3).map(member).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a session, which the server logs before it answers.
    fn open_session(server: &ZooKeeperServer) {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        let mut hello = Vec::new();
        for word in [44_u32, 0, 0, 0, 30_000, 0, 0, 16, 0, 0, 0, 0] {
            hello.extend(word.to_be_bytes());
        }
        stream.write_all(&hello).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        stream.read_exact(&mut [0; 40]).unwrap();
    }

    fn last_write(server: &ZooKeeperServer) -> u64 {
        let state = server.word("srvr").unwrap();
        let (_, id) = state.split_once("Zxid: 0x").unwrap();
        u64::from_str_radix(id.lines().next().unwrap(), 16).unwrap()
    }

    #[test]
    fn a_server_keeps_its_data_over_a_restart() {
        if ZooKeeperServer::is_missing("a_server_keeps_its_data_over_a_restart") {
            return;
        }
        let mut server = ZooKeeperServer::start(&[]).unwrap();
        let (before, port) = (last_write(&server), server.port());
        open_session(&server);
        let written = last_write(&server);
        assert!(written > before);
        server.restart().unwrap();
        server.until_it_serves().unwrap();
        assert_eq!(server.port(), port);
        assert!(last_write(&server) >= written);
    }

    #[test]
    fn a_later_setting_counts_and_an_option_reaches_the_machine() {
        if ZooKeeperServer::is_missing("a_later_setting_counts") {
            return;
        }
        let settings = ["tickTime=500", "minSessionTimeout=700", "-Dof.a.test=yes"];
        let server = ZooKeeperServer::start(&settings).unwrap();
        let settings = server.word("conf").unwrap();
        assert!(settings.contains("tickTime=500\n"), "{settings}");
        assert!(settings.contains("minSessionTimeout=700\n"), "{settings}");
        let machine = server.word("envi").unwrap();
        assert!(machine.contains("java.version"), "{machine}");
        let command = std::fs::read(format!("/proc/{}/cmdline", server.pid())).unwrap();
        assert!(String::from_utf8_lossy(&command).contains("-Dof.a.test=yes"));
    }

    #[test]
    fn a_killed_leader_is_replaced_and_follows_when_it_comes_back() {
        if ZooKeeperServer::is_missing("a_killed_leader_is_replaced") {
            return;
        }
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let first = ensemble.leader().unwrap();
        ensemble.members()[first].kill9().unwrap();
        let start = Instant::now();
        while ensemble.leader().is_none() && start.elapsed() < GENEROUS {
            std::thread::sleep(Duration::from_millis(50));
        }
        let second = ensemble.leader().unwrap();
        assert_ne!(first, second);
        ensemble.members()[first].restart().unwrap();
        ensemble.until_all_serve().unwrap();
        let state = ensemble.members()[first].word("srvr").unwrap();
        assert!(state.contains("Mode: follower"), "{state}");
    }

    #[test]
    fn a_tls_port_exists_beside_the_plain_one() {
        if ZooKeeperServer::is_missing("a_tls_port_exists_beside_the_plain_one") {
            return;
        }
        let certificates = Certificates::make().unwrap();
        let server = ZooKeeperServer::start_with_tls(&[], &certificates).unwrap();
        let port = server.tls_port().unwrap();
        assert_ne!(port, server.port());
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        // A client without TLS is refused.
        stream.write_all(b"srvr").unwrap();
        stream.write_all(&[0; 64]).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("Mode: "));
    }
}
