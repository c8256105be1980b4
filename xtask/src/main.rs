//! `cargo xtask`: the repository's own commands. A change is good when `cargo xtask test` passes. It
//! installs what it needs, or says what to install.

use std::process::ExitCode;

mod builds;
mod interop;
mod neighbours;
mod packages;
mod programs;
mod steps;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => steps::test(),
        ["builds"] => steps::builds(),
        ["clients"] => steps::clients(),
        ["neighbours"] => steps::neighbours(),
        ["bench", scenarios @ ..] => steps::bench(scenarios),
        ["stubs"] => steps::stubs(),
        _ => {
            eprintln!(
                "usage: cargo xtask test | builds | clients | neighbours | bench [SCENARIO...] | stubs"
            );
            ExitCode::from(64)
        }
    }
}
