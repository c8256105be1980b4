//! The `tenure` command from outside: a real binary, a store of its own for every test.

#![allow(clippy::unwrap_used)]

mod child;
mod common;
mod container;
mod death;
mod doctor;
mod inheritance;
mod inspection;
mod limits;
mod loss;
mod nested;
mod reach;
mod release;
mod rights;
mod script;
mod secrets;
mod terminal;
mod usage;
mod waiting;
