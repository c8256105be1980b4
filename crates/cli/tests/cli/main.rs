//! Tests of the `tenure` binary, each with a store of its own.

#![allow(clippy::unwrap_used)]

mod background;
mod bench;
mod blame;
mod browser;
mod child;
mod common;
mod connection;
mod container;
mod death;
mod demo;
mod doctor;
mod elect;
mod guardian;
mod hold;
mod inspection;
mod loss;
mod nested;
mod passwords;
mod periods;
mod privileges;
mod redisson;
mod release;
mod revoke;
mod terminal;
mod top;
mod ui;
mod usage;
mod waiting;
