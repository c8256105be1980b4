//! A write in etcd that fails when the lock is lost, whatever its holder believes.
//!
//! `cargo run -p tenure-etcd --example fenced_write -- 127.0.0.1:2379` with an etcd there, and
//! `etcdctl` to make the transaction; with any other client, compare what
//! [`Fence::create_revision`] says.

use std::error::Error;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tenure_core::store::Eviction;
use tenure_core::{Client, Fence};
use tenure_etcd::{EtcdConfig, EtcdStore, etcdctl};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2379".into());
    let (host, port) = address.rsplit_once(':').ok_or("write host:port")?;
    let config = EtcdConfig::new(vec![(host.into(), port.parse()?)]);
    let client = Client::new(Arc::new(EtcdStore::connect(config).await?))?;

    let guard = client.mutex("accounts")?.acquire().await?;
    let fence = guard.fence().ok_or("etcd gives fences")?;
    println!("held:   {}", write(&address, &fence, "17")?);

    // An operator takes the lock away. The guard hears of it a moment later.
    let order = Eviction::new(guard.name().clone(), guard.owner(), "an example");
    client.store().evict(&order).await?;
    println!("valid:  {}", guard.is_valid());
    println!("stale:  {}", write(&address, &fence, "18")?);
    Ok(())
}

/// Puts a value if the fence holds; `etcdctl` says `SUCCESS` or `FAILURE`.
fn write(address: &str, fence: &Fence, value: &str) -> Result<String, Box<dyn Error>> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", address, "txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let compare = etcdctl(fence).ok_or("it is not a fence of etcd")?;
    write!(input, "{compare}\n\nput balance {value}\n\n\n")?;
    drop(input);
    let said = String::from_utf8(child.wait_with_output()?.stdout)?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}
