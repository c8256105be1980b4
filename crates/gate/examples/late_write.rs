//! A holder is stopped in the middle of its work, loses its lock, and writes too late. Each gate refuses it.
//!
//! ```text
//! cargo run -p tenure-gate --example late_write
//! ```
//!
//! The first holder is a process of its own. It is stopped (SIGSTOP) while it holds the lock, until its lease has
//! ended and a second holder has written; then it goes on (SIGCONT) and writes without a look at its guard,
//! as a program does that was stopped between the look and the write. The example starts the Redis and the
//! PostgreSQL server that it needs on free ports, and stops them.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::future::{Ready, ready};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::{Client, FencedMutex, LockName, Options, Token};
use tenure_gate::http::{FENCING_TOKEN, FencingLayer, header_value};
use tenure_gate::{FileGate, MemoryRegister, postgres, redis};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, PostgresServer, Process, RedisServer, eventually, temp_dir};
use tokio_postgres::NoTls;
use tower_layer::Layer;
use tower_service::Service;

type Outcome<T> = Result<T, Box<dyn Error>>;

const LOCK: &str = "stock";
const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => second_holder().await,
        [redis, postgres, folder, http] => {
            first_holder(Resources::new(redis.parse()?, postgres, Path::new(folder), http)?).await
        }
        _ => Err("this example takes no arguments".into()),
    }
}

/// The process that is stopped.
async fn first_holder(resources: Resources) -> Outcome<()> {
    let guard = resources.lock().await?.acquire().await?;
    println!("{}", guard.token());
    // Here it is stopped. When it is told to go on, it has no time to look at its guard.
    io::stdin().read_line(&mut String::new())?;
    for line in resources.write(guard.token(), "the first holder's").await {
        println!("{line}");
    }
    println!("end");
    Ok(())
}

/// Starts the first holder, stops it, takes the lock over, and lets the first holder go on.
async fn second_holder() -> Outcome<()> {
    let (redis, postgres, folder) =
        (RedisServer::start(&[])?, PostgresServer::start()?, temp_dir());
    let http = serve_http()?;
    let folder = folder.path();
    let resources = Resources::new(redis.port(), &postgres.settings(), folder, &http)?;
    resources.prepare().await?;

    let mut command = Command::new(std::env::current_exe()?);
    command.args([&redis.port().to_string(), &postgres.settings()]).arg(folder).arg(&http);
    let mut first = Process::spawn(command)?;
    let token = first.line(GENEROUS).await.ok_or("the first holder does not get the lock")?;
    println!("the first holder has token {token}, and is stopped");
    first.stop()?;

    // It cannot renew: the lock is free when its lease has ended.
    let guard = resources.lock().await?.acquire().await?;
    println!("the second holder has token {}, and writes:", guard.token());
    for line in resources.write(guard.token(), "the second holder's").await {
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
    guard.release().await?;
    if refused != 4 {
        return Err(format!("{refused} of 4 gates refused the late write").into());
    }
    println!("each gate refused the late write; what has no gate took it");
    Ok(())
}

/// What both holders write to.
struct Resources {
    lock: LockName,
    redis: u16,
    postgres: String,
    file: PathBuf,
    http: String,
}

impl Resources {
    fn new(redis: u16, postgres: &str, folder: &Path, http: &str) -> Outcome<Self> {
        let (lock, file) = (LockName::new(LOCK)?, folder.join("stock"));
        Ok(Self { lock, redis, postgres: postgres.to_owned(), file, http: http.to_owned() })
    }

    async fn lock(&self) -> Outcome<FencedMutex> {
        let server = ("127.0.0.1".into(), self.redis);
        let store = RedisStore::connect(RedisConfig::new(Topology::Single { server })).await?;
        let options = Options::new().ttl(TTL);
        Ok(Client::new(Arc::new(store))?.mutex(LOCK)?.with(options).fenced()?)
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
        Ok(database.batch_execute(table).await?)
    }

    async fn database(&self) -> Outcome<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.postgres, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Writes everywhere, and tells what came of it.
    async fn write(&self, token: Token, value: &str) -> Vec<String> {
        vec![
            told("Redis", self.write_to_redis(token, value)),
            told("PostgreSQL", self.write_to_postgres(token, value).await),
            told("file", self.write_to_file(token, value)),
            told("HTTP", self.write_over_http(token)),
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

    /// What happens where the resource does not compare tokens.
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
