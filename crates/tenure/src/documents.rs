//! The Rust in the documents, as tests. Compiled for `cargo test --doc` only.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/library.md")]
struct Library;

#[doc = include_str!("../../../docs/testing.md")]
struct Testing;
