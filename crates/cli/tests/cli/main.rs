//! Tests of the `tenure` binary, each with a store of its own.

#![allow(clippy::unwrap_used)]

mod background;
mod child;
mod common;
mod connection;
mod container;
mod death;
mod doctor;
mod guardian;
mod hold;
mod inspection;
mod loss;
mod nested;
mod passwords;
mod privileges;
mod release;
mod terminal;
mod usage;
mod waiting;
