//! The `tenure` command from outside: a real binary, a store of its own for every test.

#![allow(clippy::unwrap_used)]

mod child;
mod common;
mod death;
mod doctor;
mod inspection;
mod nested;
mod release;
mod script;
mod secrets;
mod terminal;
mod usage;
mod waiting;
