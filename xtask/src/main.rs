//! `cargo xtask`: the project's own steps. `cargo xtask test` is the one that decides whether a
//! change is good; everything it needs it installs, or names.

use std::process::ExitCode;

mod interop;
mod packages;
mod programs;
mod steps;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => steps::test(),
        ["clients"] => steps::clients(),
        ["bench", scenarios @ ..] => steps::bench(scenarios),
        ["stubs"] => steps::stubs(),
        _ => {
            eprintln!("usage: cargo xtask test | clients | bench [SCENARIO...] | stubs");
            ExitCode::from(64)
        }
    }
}
