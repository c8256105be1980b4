//! Locks on ZooKeeper.

mod canary;
mod claim;
mod config;
mod connect;
mod create;
mod evict;
mod examine;
mod fault;
mod hold;
mod inner;
mod inspect;
mod keys;
mod line;
mod list;
mod place;
mod record;
mod session;
mod store;
mod tenants;

pub use config::{Access, Neighbours, Tls, ZooKeeperConfig};
pub use store::ZooKeeperStore;
