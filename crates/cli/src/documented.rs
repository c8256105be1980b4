//! Test: the `tenure` commands in README.md and docs/ are valid.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use crate::args::Arguments;
use crate::stores::registry;

#[test]
fn every_command_in_the_documents_is_valid() {
    let mut invalid = Vec::new();
    let mut found = 0;
    for page in pages() {
        for line in shell_lines(&fs::read_to_string(&page).unwrap()) {
            for command in commands(line) {
                found += 1;
                let parsed = Arguments::try_parse_from(&command);
                let error = match parsed {
                    Ok(parsed) => {
                        registry().parse(&parsed.global.store).err().map(|e| e.to_string())
                    }
                    Err(error) => Some(error.to_string()),
                };
                invalid.extend(error.map(|why| format!("{}: {line}\n{why}", page.display())));
            }
        }
    }
    assert!(invalid.is_empty(), "{}", invalid.join("\n"));
    assert!(found > 30, "only {found} commands were found");
}

#[test]
fn commands_are_found_in_shell_lines() {
    let of = |line| commands(line).into_iter().map(|words| words.join(" ")).collect::<Vec<_>>();
    assert_eq!(of("( tenure hold -n a || exit; b ) 9>f"), ["tenure hold -n a"]);
    assert_eq!(of("x || exec tenure run a -- \"$0\" \"$@\""), ["tenure run a -- $0 $@"]);
    assert_eq!(of("tenure run a -c 'b && c' # tenure run d"), ["tenure run a -c b && c"]);
    assert_eq!(of("cargo run --release -- run a -- b"), ["tenure run a -- b"]);
    assert_eq!(of("cargo add tenure"), [""; 0]);
    assert_eq!(of("[ x = deploy ] || ls tenure"), [""; 0]);
}

/// README.md and the pages of docs/.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    for directory in ["docs", "docs/engines"] {
        let entries = fs::read_dir(root.join(directory)).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    pages
}

/// The lines of the blocks that are marked as shell.
fn shell_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut shell = false;
    text.lines().filter(move |line| {
        if let Some(language) = line.strip_prefix("```") {
            shell = language == "sh";
            return false;
        }
        shell
    })
}

/// The words of each `tenure` command in a line.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for words in simple_commands(line) {
        let names: Vec<&str> = words.iter().map(String::as_str).collect();
        let arguments = match names.as_slice() {
            ["tenure", rest @ ..] | ["exec", "tenure", rest @ ..] => rest,
            ["cargo", "run", "--release", "--", rest @ ..] | ["cargo", "run", "--", rest @ ..] => {
                rest
            }
            ["xargs", rest @ ..] => match rest.iter().position(|word| *word == "tenure") {
                Some(at) => &rest[at + 1..],
                None => continue,
            },
            _ => continue,
        };
        let whole = ["tenure"].iter().chain(arguments);
        found.push(whole.map(|word| (*word).to_owned()).collect());
    }
    found
}

/// Splits a line as a shell would, as far as the documents need it: quotes, comments, `;`, `|`, `&`,
/// brackets and redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in line.chars().chain([' ', ';']) {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, ';' | '|' | '&' | '(' | ')' | '<') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    commands.push(words);
    commands
}
