//! Parses the command line, and reports what is wrong with it.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use crate::args::{self, Arguments};
use crate::{exit, output};

/// Parses the command line. If it asks for help or is invalid, prints the help or an error, and
/// returns the exit code.
pub(crate) fn arguments() -> Result<Arguments, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    parse(&words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Fails if the reader has closed the pipe, which is not an error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            output::report(&line(&error, &words));
            ExitCode::from(exit::USAGE)
        }
    })
}

fn parse(words: &[OsString]) -> Result<Arguments, clap::Error> {
    let matches = args::command().try_get_matches_from(words)?;
    let mut arguments = Arguments::from_arg_matches(&matches)
        .map_err(|error| error.format(&mut args::command()))?;
    if let Some(("hold", hold)) = matches.subcommand() {
        // Not `requires`, which would also apply to values from the environment.
        let given = |id: &str| hold.value_source(id) == Some(ValueSource::CommandLine);
        if !hold.contains_id("fd") && (given("on_lost") || given("grace")) {
            let why = "--on-lost and --grace of `tenure hold` require --fd N";
            return Err(args::command().error(ErrorKind::MissingRequiredArgument, why));
        }
    }
    let from = matches.value_source("store");
    arguments.global.store_is_visible = from == Some(ValueSource::CommandLine);
    Ok(arguments)
}

/// clap's message in one line: the error, its tips, and the command that prints the help.
fn line(error: &clap::Error, words: &[OsString]) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see `tenure --help`".into();
    }
    let text = error.to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text).trim_start();
    // clap shows the two ways to give a command as one required argument.
    let message = message.replace("<-c <SHELL LINE>|COMMAND>", "-- COMMAND, or -c 'SHELL LINE'");
    let mut lines = message.lines();
    let what: Vec<_> = lines.by_ref().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let tips = lines.map(str::trim).filter(|line| line.starts_with("tip: "));
    let command = help_command(words);
    let parts: Vec<_> = std::iter::once(what.join(" ")).chain(tips.map(String::from)).collect();
    let line = format!("{}; see `{command}`", parts.join("; "));
    without_passwords(&line)
}

/// The command that prints the help on these words: that of their subcommand, if they have one.
fn help_command(words: &[OsString]) -> String {
    let command = args::command();
    let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
    let mut words = words.iter().filter_map(|word| word.to_str());
    match words.find(|word| names.contains(word)) {
        Some(name) => format!("tenure {name} --help"),
        None => "tenure --help".into(),
    }
}

/// Replaces what may be a password by `***`: the text may contain a store's URL that was given in the
/// wrong place of the command line.
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

    fn error_line(arguments: &[&str]) -> String {
        let words = [&["tenure"], arguments].concat();
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        line(&parse(&words).unwrap_err(), &words)
    }

    #[test]
    fn an_error_is_one_line_that_names_the_help_command() {
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
            let line = error_line(arguments);
            assert!(!line.contains('\n') && line.contains("--help`"), "{arguments:?}: {line}");
        }
        let line = error_line(&["run", "--tll", "5s", "a", "--", "true"]);
        assert!(line.contains("'--ttl'") && line.contains("`tenure run --help`"), "{line}");
        let line = error_line(&["hold", "--fd", "2", "a"]);
        assert!(line.contains("`tenure hold --help`"), "{line}");
        let line = error_line(&["run", "a"]);
        assert!(line.contains("-- COMMAND, or -c 'SHELL LINE'"), "{line}");
    }

    #[test]
    fn an_error_never_contains_a_password() {
        for url in ["redis://u:hunter2@h", "redis://u:hunter2@x@h/0?a=b"] {
            let line = error_line(&[url]);
            assert!(!line.contains("hunter2") && line.contains("redis://***@h"), "{line}");
        }
        let all = without_passwords("a://x@b c://y d:z@e @://f g");
        assert_eq!(all, "a://***@b c://*** ***@e @://*** g");
    }
}
