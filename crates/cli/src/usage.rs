//! What is said about a command line that makes no sense.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;

use crate::args::{self, Arguments};
use crate::{exit, output};

/// Reads the command line. Where it asks for help, or makes no sense, that is answered here, and
/// what is left is the exit code.
pub(crate) fn arguments() -> Result<Arguments, ExitCode> {
    parse(std::env::args_os()).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader who has seen enough is no error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            output::report(&line(&error));
            ExitCode::from(exit::USAGE)
        }
    })
}

fn parse<T: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = T>,
) -> Result<Arguments, clap::Error> {
    let matches = args::command().try_get_matches_from(words)?;
    let mut arguments = Arguments::from_arg_matches(&matches)
        .map_err(|error| error.format(&mut args::command()))?;
    if let Some(("hold", hold)) = matches.subcommand() {
        // Not `requires`, which would count a default from the environment, too.
        let given = |id: &str| hold.value_source(id) == Some(ValueSource::CommandLine);
        if !hold.contains_id("fd") && (given("on_lost") || given("grace")) {
            let why = "--on-lost and --grace of hold are about the caller of `hold --fd N`";
            return Err(args::command().error(ErrorKind::MissingRequiredArgument, why));
        }
    }
    let from = matches.value_source("store");
    arguments.global.store_is_visible = from == Some(ValueSource::CommandLine);
    Ok(arguments)
}

/// clap's message in one line: what is wrong, its tips, and where to read on.
fn line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see `tenure --help`".into();
    }
    let text = error.to_string();
    let said = text.strip_prefix("error: ").unwrap_or(&text).trim_start();
    let mut lines = said.lines();
    let what: Vec<_> = lines.by_ref().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let tips = lines.map(str::trim).filter(|line| line.starts_with("tip: "));
    let command = match error.get(ContextKind::Usage) {
        Some(usage) if usage.to_string().contains("tenure run") => "tenure run --help",
        _ => "tenure --help",
    };
    let parts: Vec<_> = std::iter::once(what.join(" ")).chain(tips.map(String::from)).collect();
    let line = format!("{}; see `{command}`", parts.join("; "));
    without_passwords(&line)
}

/// The text with `***` for what may be a password in it: a store's URL at the wrong place of the
/// command line must not be repeated.
fn without_passwords(text: &str) -> String {
    let hide = |word: &str| match (word.find("://"), word.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}://***{}", &word[..scheme], &word[at..])
        }
        (Some(scheme), _) => format!("{}://***", &word[..scheme]),
        (None, Some(at)) => format!("***{}", &word[at..]),
        (None, None) => word.into(),
    };
    text.split(' ').map(hide).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let arguments = [&["tenure"], arguments].concat();
        line(&parse(arguments).unwrap_err())
    }

    #[test]
    fn a_complaint_is_one_line_with_a_way_on() {
        for arguments in [
            &[][..],
            &["run"],
            &["run", "a"],
            &["run", "a", "true"],
            &["run", "-n", "-w", "5s", "a", "--", "true"],
            &["run", "-x", "-s", "a", "--", "true"],
            &["run", "-s", "--permits", "3", "a", "--", "true"],
            &["run", "--take", "3", "a", "--", "true"],
            &["run", "--permits", "0", "a", "--", "true"],
            &["run", "--ttl", "0s", "a", "--", "true"],
            &["run", "--ttl", "25h", "a", "--", "true"],
            &["run", "--ttl", "30", "a", "--", "true"],
            &["run", "a", "-c", "true", "--", "true"],
            &["run", "-E", "256", "a", "--", "true"],
            &["run", "--tll", "5s", "a", "--", "true"],
            &["hold", "--grace", "1s", "a"],
            &["hold", "--fd", "2", "a"],
            &["hold", "--fd", "9", "--stdin", "a"],
            &["release", "a"],
            &["release", "a", "--force"],
            &["release", "a", "--owner", "zz"],
            &["-q", "-v", "ls"],
            &["doctor", "a"],
        ] {
            let line = complaint(arguments);
            assert!(!line.contains('\n') && line.contains("--help`"), "{arguments:?}: {line}");
        }
        let line = complaint(&["run", "--tll", "5s", "a", "--", "true"]);
        assert!(line.contains("'--ttl'"), "{line}");
    }

    #[test]
    fn a_complaint_never_repeats_a_password() {
        for url in ["redis://u:hunter2@h", "redis://u:hunter2@x@h/0?a=b"] {
            let line = complaint(&[url]);
            assert!(!line.contains("hunter2") && line.contains("redis://***@h"), "{line}");
        }
        let all = without_passwords("a://x@b c://y d:z@e @://f g");
        assert_eq!(all, "a://***@b c://*** ***@e @://*** g");
    }
}
