//! A holder is stopped in the middle of its work, loses its lock, and writes too late. Each gate refuses it.
//!
//! ```text
//! cargo run -p tenure-gate --example late_write
//! ```
//!
//! The first holder is a process of its own. It is stopped (SIGSTOP) while it holds the lock, until its lease has
//! ended and a second holder has written; then it goes on (SIGCONT) and writes without a look at its guard,
//! as a program does that was stopped between the look and the write. The example starts the servers that it needs
//! (Redis, PostgreSQL, etcd, ZooKeeper) on free ports, and stops them.
//!
//! Redis, PostgreSQL, the file and the HTTP service compare the token of a lock on Redis. etcd and ZooKeeper
//! compare whether a lock of their own is still held, in the transaction that writes.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::future::{Ready, ready};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::{Client, Fence, FencedGuard, Guard, LockName, Options, Token};
use tenure_etcd::{EtcdConfig, EtcdStore, etcdctl};
use tenure_gate::http::{FENCING_TOKEN, FencingLayer, header_value};
use tenure_gate::{FileGate, MemoryRegister, postgres, redis};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{
    EtcdServer, GENEROUS, PostgresServer, Process, RedisServer, ZooKeeperServer, eventually,
    temp_dir,
};
use tenure_zookeeper::testing::{Bare, Kind, Rights};
use tenure_zookeeper::{ZooKeeperConfig, ZooKeeperStore};
use tokio_postgres::NoTls;
use tower_layer::Layer;
use tower_service::Service;

type Outcome<T> = Result<T, Box<dyn Error>>;

const LOCK: &str = "stock";

/// The shortest that Redis, etcd and ZooKeeper have here.
const TTLS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// How many of the resources have a gate.
const GATES: usize = 6;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => second_holder().await,
        [redis, etcd, zookeeper, postgres, folder, http] => {
            let ports = [redis.parse()?, etcd.parse()?, zookeeper.parse()?];
            first_holder(Resources::new(ports, postgres, Path::new(folder), http)?).await
        }
        _ => Err("this example takes no arguments".into()),
    }
}

/// The process that is stopped.
async fn first_holder(resources: Resources) -> Outcome<()> {
    let hold = resources.hold().await?;
    println!("{}", hold.token());
    // Here it is stopped. When it is told to go on, it has no time to look at its guards.
    io::stdin().read_line(&mut String::new())?;
    for line in resources.write(&hold, "the first holder's").await {
        println!("{line}");
    }
    println!("end");
    Ok(())
}

/// Starts the first holder, stops it, takes the lock over, and lets the first holder go on.
async fn second_holder() -> Outcome<()> {
    let (redis, etcd, zookeeper) =
        (RedisServer::start(&[])?, EtcdServer::start(&[])?, ZooKeeperServer::start(&[])?);
    let (postgres, folder) = (PostgresServer::start()?, temp_dir());
    let http = serve_http()?;
    let folder = folder.path();
    let ports = [redis.port(), etcd.port(), zookeeper.port()];
    let resources = Resources::new(ports, &postgres.settings(), folder, &http)?;
    resources.prepare().await?;

    let mut command = Command::new(std::env::current_exe()?);
    command.args(ports.map(|port| port.to_string()));
    command.arg(postgres.settings()).arg(folder).arg(&http);
    let mut first = Process::spawn(command)?;
    let token = first.line(GENEROUS).await.ok_or("the first holder does not get the lock")?;
    println!("the first holder has token {token}, and is stopped");
    first.stop()?;

    // The stopped process cannot renew: the locks are free when its leases have ended.
    let hold = resources.hold().await?;
    println!("the second holder has token {}, and writes:", hold.token());
    for line in resources.write(&hold, "the second holder's").await {
        println!("  {line}");
    }

    first.cont()?;
    first.send("go on")?;
    println!("the first holder goes on, and writes:");
    let mut refused = 0;
    loop {
        let line = first.line(GENEROUS).await.ok_or("the first holder does not go on")?;
        if line == "end" {
            break;
        }
        refused += usize::from(line.contains("refused"));
        println!("  {line}");
    }
    hold.release().await?;
    if refused != GATES {
        return Err(format!("{refused} of {GATES} gates refused the late write").into());
    }
    println!("each gate refused the late write; the resource without a gate accepted it");
    Ok(())
}

/// The locks of a holder, on the three stores.
struct Hold {
    redis: FencedGuard,
    etcd: Guard,
    zookeeper: Guard,
    /// What etcd compares, and ZooKeeper.
    fences: [Fence; 2],
}

impl Hold {
    fn token(&self) -> Token {
        self.redis.token()
    }

    async fn release(self) -> Outcome<()> {
        self.redis.release().await?;
        self.etcd.release().await?;
        Ok(self.zookeeper.release().await?)
    }
}

/// The resources that both holders write to.
struct Resources {
    lock: LockName,
    redis: u16,
    etcd: u16,
    zookeeper: u16,
    postgres: String,
    file: PathBuf,
    http: String,
}

impl Resources {
    fn new(ports: [u16; 3], postgres: &str, folder: &Path, http: &str) -> Outcome<Self> {
        let [redis, etcd, zookeeper] = ports;
        let (lock, file) = (LockName::new(LOCK)?, folder.join("stock"));
        let (postgres, http) = (postgres.to_owned(), http.to_owned());
        Ok(Self { lock, redis, etcd, zookeeper, postgres, file, http })
    }

    /// Waits for the locks.
    async fn hold(&self) -> Outcome<Hold> {
        let server = |port| ("127.0.0.1".to_owned(), port);
        let redis = RedisConfig::new(Topology::Single { server: server(self.redis) });
        let redis = Client::new(Arc::new(RedisStore::connect(redis).await?))?;
        let etcd = EtcdConfig::new(vec![server(self.etcd)]);
        let etcd = Client::new(Arc::new(EtcdStore::connect(etcd).await?))?;
        let zookeeper = ZooKeeperConfig::new(vec![server(self.zookeeper)]);
        let zookeeper = Client::new(Arc::new(ZooKeeperStore::connect(zookeeper).await?))?;
        let options = TTLS.map(|ttl| Options::new().ttl(ttl));
        let [for_redis, for_etcd, for_zookeeper] = options;
        let redis = redis.mutex(LOCK)?.with(for_redis).fenced()?.acquire().await?;
        let etcd = etcd.mutex(LOCK)?.with(for_etcd).acquire().await?;
        let zookeeper = zookeeper.mutex(LOCK)?.with(for_zookeeper).acquire().await?;
        let fence = |guard: &Guard| guard.fence().ok_or("the store gives no fence");
        let fences = [fence(&etcd)?, fence(&zookeeper)?];
        Ok(Hold { redis, etcd, zookeeper, fences })
    }

    async fn prepare(&self) -> Outcome<()> {
        // The server may refuse its first clients while it starts.
        let serves = || async { self.database().await.is_ok() };
        if !eventually(GENEROUS, serves).await {
            return Err("PostgreSQL does not serve".into());
        }
        let database = self.database().await?;
        postgres::create_table(&database).await?;
        let table = "CREATE TABLE stock (value text); INSERT INTO stock VALUES ('')";
        database.batch_execute(table).await?;
        let zookeeper = Bare::connect(self.zookeeper).await?;
        Ok(zookeeper.create("/stock", b"", Kind::Persistent, Rights::All).await.map(drop)?)
    }

    async fn database(&self) -> Outcome<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.postgres, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Writes everywhere, and tells what came of it.
    async fn write(&self, hold: &Hold, value: &str) -> Vec<String> {
        let (token, [etcd, zookeeper]) = (hold.token(), &hold.fences);
        vec![
            told("Redis", self.write_to_redis(token, value)),
            told("PostgreSQL", self.write_to_postgres(token, value).await),
            told("file", self.write_to_file(token, value)),
            told("HTTP", self.write_over_http(token)),
            told("etcd", self.write_to_etcd(etcd, value)),
            told("ZooKeeper", self.write_to_zookeeper(zookeeper, value).await),
            told("no gate", self.write_without_a_gate(value)),
        ]
    }

    fn write_to_redis(&self, token: Token, value: &str) -> Outcome<()> {
        let token_text = token.to_string();
        let words = ["EVAL", redis::SET, "2", "{stock}:fence", "{stock}", &token_text, value];
        let reply = ask_redis(self.redis, &words)?;
        redis::refusal(&reply, &self.lock, token).map_or(Ok(()), |stale| Err(stale.into()))
    }

    async fn write_to_postgres(&self, token: Token, value: &str) -> Outcome<()> {
        let mut database = self.database().await?;
        let transaction = database.transaction().await?;
        postgres::admit(&transaction, &self.lock, token).await?;
        transaction.execute("UPDATE stock SET value = $1", &[&value]).await?;
        Ok(transaction.commit().await?)
    }

    fn write_to_file(&self, token: Token, value: &str) -> Outcome<()> {
        Ok(FileGate::new(&self.file, self.lock.clone()).write(token, value.as_bytes())?)
    }

    fn write_over_http(&self, token: Token) -> Outcome<()> {
        let header = header_value(&self.lock, token)?;
        let mut stream = TcpStream::connect(&self.http)?;
        let header = header.to_str()?;
        write!(stream, "PUT /stock HTTP/1.1\r\nhost: shop\r\n{FENCING_TOKEN}: {header}\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        match response.lines().next().unwrap_or_default() {
            "HTTP/1.1 200 OK" => Ok(()),
            status => Err(status.into()),
        }
    }

    /// One transaction: it puts the value if the lock of this fence is held.
    fn write_to_etcd(&self, fence: &Fence, value: &str) -> Outcome<()> {
        let compare = etcdctl(fence).ok_or("it is no fence of etcd")?;
        let mut command = Command::new("etcdctl");
        let server = format!("127.0.0.1:{}", self.etcd);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &server, "txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().ok_or("etcdctl has no input")?;
        write!(input, "{compare}\n\nput stock \"{value}\"\n\n\n")?;
        drop(input);
        let said = String::from_utf8(child.wait_with_output()?.stdout)?;
        match said.lines().next() {
            Some("SUCCESS") => Ok(()),
            Some("FAILURE") => Err("the comparison failed: the lock is not held".into()),
            _ => Err(format!("etcdctl said {said:?}").into()),
        }
    }

    /// One `multi`: a check of the node of this fence, and the write.
    async fn write_to_zookeeper(&self, fence: &Fence, value: &str) -> Outcome<()> {
        let path = fence.existing_path().ok_or("it is no fence of ZooKeeper")?;
        let zookeeper = Bare::connect(self.zookeeper).await?;
        match zookeeper.set_if_there(path, "/stock", value.as_bytes()).await? {
            true => Ok(()),
            false => Err("the check failed: the lock is not held".into()),
        }
    }

    /// The write to a resource that does not compare tokens.
    fn write_without_a_gate(&self, value: &str) -> Outcome<()> {
        ask_redis(self.redis, &["SET", "unfenced", value]).map(drop)
    }
}

fn told(resource: &str, outcome: Outcome<()>) -> String {
    match outcome {
        Ok(()) => format!("{resource}: accepted"),
        Err(why) => format!("{resource}: refused: {why}"),
    }
}

/// Sends one command, and returns the text of the reply.
fn ask_redis(port: u16, words: &[&str]) -> Outcome<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "*{}\r\n", words.len())?;
    for word in words {
        write!(stream, "${}\r\n{word}\r\n", word.len())?;
    }
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line)?;
    if line.starts_with('$') {
        line.clear();
        reader.read_line(&mut line)?;
    }
    Ok(line.trim_end().trim_start_matches('+').to_owned())
}

/// A service that is behind a gate.
#[derive(Clone)]
struct Shop;

impl Service<http::Request<()>> for Shop {
    type Response = http::Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<()>) -> Self::Future {
        ready(Ok(http::Response::new("written\n".into())))
    }
}

/// Serves the shop on a free port, and returns its address. A program would use its HTTP server here.
fn serve_http() -> Outcome<String> {
    let register = Arc::new(MemoryRegister::new());
    let layer = FencingLayer::new([LockName::new(LOCK)?], register);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, runtime) =
        (listener.local_addr()?.to_string(), tokio::runtime::Handle::current());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(error) = runtime.block_on(answer(stream, layer.layer(Shop))) {
                eprintln!("the shop: {error}");
            }
        }
    });
    Ok(address)
}

async fn answer<S, E>(mut stream: TcpStream, mut service: S) -> Outcome<()>
where
    S: Service<http::Request<()>, Response = http::Response<String>, Error = E>,
    E: Display,
{
    let mut request = http::Request::new(());
    for line in BufReader::new(stream.try_clone()?).lines().skip(1) {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        let name: http::HeaderName = name.parse()?;
        request.headers_mut().insert(name, value.parse()?);
    }
    let response = service.call(request).await.map_err(|error| error.to_string())?;
    let (status, body) = (response.status(), response.body());
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}
