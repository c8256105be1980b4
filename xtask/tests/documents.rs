//! The documents: no dead links, no page left out of the book, every metric described, and pictures
//! that are as their script writes them.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut dead = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for target in links(&text) {
            if let Err(why) = follow(&page, target) {
                dead.push(format!("{}: {target}: {why}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut absent = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for line in prose(&text) {
            let code = line.split('`').skip(1).step_by(2);
            let paths = code.filter(|code| code.starts_with("crates/") && !code.contains(' '));
            absent.extend(
                paths
                    .filter(|path| !root().join(path).exists())
                    .map(|path| format!("{}: {path}", page.display())),
            );
        }
    }
    assert!(absent.is_empty(), "no such files:\n{}", absent.join("\n"));
}

/// What users read is written for the crate that they depend on. A crate that users do not depend on may name
/// itself.
#[test]
fn examples_in_the_documentation_use_the_public_crate() {
    const INTERNAL: [&str; 8] = [
        "tenure_core",
        "tenure_local",
        "tenure_redis",
        "tenure_etcd",
        "tenure_zookeeper",
        "tenure_ordered",
        "tenure_gate",
        "tenure_tls",
    ];
    let mut found = Vec::new();
    for folder in
        ["core", "local", "redis", "etcd", "zookeeper", "ordered", "gate", "tls", "tenure"]
    {
        for file in rust_below(&root().join("crates").join(folder).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            for line in
                examples(&text).filter(|line| INTERNAL.iter().any(|name| line.contains(name)))
            {
                found.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert!(found.is_empty(), "write `tenure::…`:\n{}", found.join("\n"));
    let text =
        "/// ```\n/// use tenure_core::Client;\n/// ```\n/// see tenure_core\nuse tenure_core::X;";
    assert_eq!(examples(text).collect::<Vec<_>>(), ["use tenure_core::Client;"]);
}

#[test]
fn every_page_is_in_the_book() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> =
        links(&summary).into_iter().map(|link| Path::new("docs").join(link)).collect();
    let mut expected: BTreeSet<PathBuf> = markdown_below(Path::new("docs")).into_iter().collect();
    expected.remove(Path::new("docs/SUMMARY.md"));
    assert_eq!(listed, expected, "docs/SUMMARY.md lists other pages than docs/ has");
}

#[test]
fn the_readme_and_the_map_are_short() {
    for (page, limit) in [("README.md", 120), ("ARCHITECTURE.md", 250)] {
        let lines = fs::read_to_string(root().join(page)).unwrap().lines().count();
        assert!(
            lines <= limit,
            "{page} has {lines} lines: move details to docs/ or a crate's lib.rs"
        );
    }
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let code = fs::read_to_string(root().join("crates/core/src/metric.rs")).unwrap();
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    assert_eq!(names(&page), names(&code), "docs/metrics.md names other metrics than are recorded");
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let code = fs::read_to_string(root().join("crates/core/src/metric.rs")).unwrap();
    let dashboard = fs::read_to_string(root().join("docs/grafana/tenure.json")).unwrap();
    let shown: BTreeSet<&str> =
        names(&dashboard).into_iter().map(|name| name.trim_end_matches("_bucket")).collect();
    assert_eq!(
        shown,
        names(&code),
        "docs/grafana/tenure.json shows other metrics than are recorded"
    );
    // An import into Grafana needs valid JSON with panels.
    let braces = |c: char| dashboard.matches(c).count();
    assert!(braces('{') == braces('}') && dashboard.contains("\"panels\""));
}

#[test]
fn the_pictures_are_as_their_script_writes_them() {
    let mut command = Command::new("python3");
    command.arg(root().join("docs/pictures/make.py")).arg("--check");
    match command.output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => {
            // Past the capture of the test harness, for the summary.
            writeln!(std::io::stdout(), "skipped: the pictures' script: python3: {error}").unwrap();
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents, relative to the repository.
fn pages() -> Vec<PathBuf> {
    let mut pages = markdown_below(Path::new("docs"));
    let top = fs::read_dir(root()).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    pages.extend(top.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    pages
}

fn markdown_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            found.extend(markdown_below(&path));
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    found
}

fn rust_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |path: PathBuf| if path.is_dir() { rust_below(&path) } else { vec![path] };
    let files = entries.flat_map(of_entry);
    files.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The lines of fenced code in the doc comments of a source file.
fn examples(source: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    let comments = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
    });
    comments.filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        fenced && !fence
    })
}

/// The text outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The targets of links and pictures that are not addresses on the web.
fn links(text: &str) -> Vec<&str> {
    let of_line = |line| str::split(line, "](").skip(1).filter_map(|rest| rest.split(')').next());
    prose(text).flat_map(of_line).filter(|target| !target.contains("://")).collect()
}

/// Whether a link on `page` leads somewhere.
fn follow(page: &Path, target: &str) -> Result<(), String> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => page.to_owned(),
        _ => normal(&page.parent().unwrap().join(path)),
    };
    if page.starts_with("docs") && !file.starts_with("docs") {
        return Err("leads out of the book".into());
    }
    if !root().join(&file).exists() {
        return Err("no such file".into());
    }
    if heading.is_empty() {
        return Ok(());
    }
    let text = fs::read_to_string(root().join(&file)).map_err(|error| error.to_string())?;
    let mut headings = prose(&text).filter(|line| line.starts_with('#')).map(anchor);
    if headings.any(|known| known == heading) { Ok(()) } else { Err("no such heading".into()) }
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if parts.pop() => {}
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    words.filter(|word| word.starts_with("tenure_")).collect()
}

#[test]
fn a_dead_link_is_found() {
    let page = Path::new("docs/engines/redis.md");
    assert_eq!(follow(page, "redlock.md"), Ok(()));
    assert_eq!(follow(page, "../urls.md"), Ok(()));
    assert_eq!(follow(page, "#rights"), Ok(()));
    assert!(follow(page, "#no-such-heading").is_err());
    assert!(follow(page, "no-such-page.md").is_err());
    assert!(follow(page, "../../README.md").is_err());
    let text = "See [a](b.md) and ![c](d.svg#e)\n```\n[x](y)\n```\n[web](https://example.org)";
    assert_eq!(links(text), ["b.md", "d.svg#e"]);
    assert_eq!(anchor("## How it's tested: `all`"), "how-its-tested-all");
}
