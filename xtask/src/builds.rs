//! Builds other than the workspace's own: every feature alone, other systems, the oldest compiler, and
//! the licences of everything that is linked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::packages::is_installed;
use crate::programs::Job;
use crate::steps::cargo;

/// Systems that the library must build on, besides this one. `cargo check` needs no linker there.
const TARGETS: [&str; 2] = ["x86_64-apple-darwin", "x86_64-pc-windows-gnu"];

/// What `cargo metadata` says of the workspace and its dependencies.
pub(crate) struct Metadata(Value);

impl Metadata {
    /// # Errors
    /// If cargo fails, or writes something else than JSON.
    pub(crate) fn read() -> io::Result<Self> {
        let output = cargo(&["metadata", "--format-version", "1", "--locked"]).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(Self(serde_json::from_slice(&output.stdout)?))
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        self.0["packages"].as_array().into_iter().flatten()
    }

    /// The packages of this repository that are published.
    fn published(&self) -> impl Iterator<Item = &Value> {
        self.packages()
            .filter(|package| package["source"].is_null() && package["publish"].is_null())
    }

    /// The features of a package but `default`.
    fn features(&self, name: &str) -> Vec<String> {
        let package = self.published().find(|package| package["name"] == name);
        let features = package.and_then(|package| package["features"].as_object());
        let names = features.into_iter().flat_map(|features| features.keys());
        names.filter(|name| *name != "default").cloned().collect()
    }

    /// Checks of each published package that has features: with none of them, and with each alone.
    fn feature_checks(&self) -> Vec<Job> {
        let mut checks = Vec::new();
        for package in self.published() {
            let Some(name) = package["name"].as_str() else { continue };
            let features = self.features(name);
            if features.is_empty() {
                continue;
            }
            for feature in [""].into_iter().chain(features.iter().map(String::as_str)) {
                let arguments =
                    ["check", "--package", name, "--no-default-features", "--features", feature];
                let shown = if feature.is_empty() { "no features" } else { feature };
                checks.push(check(format!("{name} with {shown}"), cargo(&arguments)));
            }
        }
        checks
    }

    /// What is wrong with the dependencies: licences that `deny.toml` does not allow, packages that it bans,
    /// sources other than the registry, and packages in two versions that `deny.toml` does not name.
    ///
    /// This is the part of `cargo deny check` that needs neither the network nor cargo-deny.
    fn dependency_faults(&self, deny: &str) -> Vec<String> {
        let allowed = strings_after(deny, "\nallow = [");
        let banned = strings_after(deny, "\ndeny = [");
        let skipped = strings_after(deny, "\nskip = [");
        let skipped: BTreeSet<&str> =
            skipped.iter().filter_map(|entry| entry.split(':').next()).collect();
        let mut faults = Vec::new();
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in self.packages() {
            let name = package["name"].as_str().unwrap_or_default();
            let version = package["version"].as_str().unwrap_or_default();
            versions.entry(name).or_default().insert(version);
            let licence = package["license"].as_str().unwrap_or_default();
            if !is_allowed(licence, &allowed) {
                faults.push(format!("{name} {version}: licence {licence:?} is not in deny.toml"));
            }
            if banned.iter().any(|banned| banned == name) {
                faults.push(format!("{name} {version}: deny.toml bans it, and says why"));
            }
            let source = package["source"].as_str();
            if source.is_some_and(|source| !source.starts_with("registry+")) {
                faults.push(format!("{name} {version}: it does not come from the registry"));
            }
        }
        let twice = versions
            .iter()
            .filter(|(name, versions)| versions.len() > 1 && !skipped.contains(**name));
        faults.extend(twice.map(|(name, versions)| {
            let versions: Vec<&str> = versions.iter().copied().collect();
            format!(
                "{name} is here in several versions ({}): unify them, or add it to `skip` in \
                deny.toml with the reason",
                versions.join(", ")
            )
        }));
        faults
    }

    /// The oldest compiler that the manifests promise to work with.
    fn rust_version(&self) -> Option<&str> {
        self.published().find_map(|package| package["rust_version"].as_str())
    }
}

/// The builds that can be done on this machine, and what is wrong or skipped.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) jobs: Vec<Job>,
    pub(crate) skipped: Vec<String>,
    /// Licences, sources and duplicates that `deny.toml` does not allow.
    pub(crate) faults: Vec<String>,
}

/// Plans the check of each feature alone, of the library for macOS and Windows, of everything with the oldest
/// compiler, and of the dependencies.
///
/// # Errors
/// If cargo's metadata or `deny.toml` cannot be read.
pub(crate) fn plan() -> io::Result<Plan> {
    let metadata = Metadata::read()?;
    let deny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    let faults = metadata.dependency_faults(&fs::read_to_string(deny)?);
    let mut plan = Plan { jobs: metadata.feature_checks(), faults, ..Plan::default() };
    plan.dependencies();
    plan.book();
    plan.foreign(&metadata)?;
    Ok(plan)
}

impl Plan {
    /// cargo-deny, where it is installed. It takes minutes to compile, so it is not installed here.
    fn dependencies(&mut self) {
        let deny = |arguments: &[&str]| {
            let mut command = cargo(&["deny", "--all-features"]);
            command.args(arguments);
            command
        };
        if !is_installed("cargo-deny") {
            let why = "known vulnerabilities: `cargo install --locked cargo-deny` first";
            return self.skipped.push(why.into());
        }
        let listed = deny(&["check", "licenses", "bans", "sources"]);
        self.jobs.push(Job::new("cargo-deny: licences, bans, sources", listed));
        if deny(&["fetch", "db"]).output().is_ok_and(|output| output.status.success()) {
            let known = deny(&["check", "--disable-fetch", "advisories"]);
            self.jobs.push(Job::new("cargo-deny: advisories", known));
        } else {
            let why = "known vulnerabilities: the database of advisories cannot be fetched";
            self.skipped.push(why.into());
        }
    }

    /// The pages in docs/ as a book, where mdBook is installed. The links are checked by this crate's tests.
    fn book(&mut self) {
        if !is_installed("mdbook") {
            return self.skipped.push("the book: `cargo install --locked mdbook` first".into());
        }
        let mut build = Command::new("mdbook");
        build.args(["build", "docs"]);
        self.jobs.push(Job::new("the book", build));
    }

    /// What `rustup` can neither find nor install is skipped, with the command that installs it.
    fn foreign(&mut self, metadata: &Metadata) -> io::Result<()> {
        let features = metadata.features("tenure");
        let target_folder = target_folder()?.join("foreign");
        fs::create_dir_all(&target_folder)?;
        let compiler = stand_in_compiler(&target_folder)?;
        for target in TARGETS {
            let installed = || rustup(&["target", "list", "--installed"]);
            let is_there = || installed().lines().any(|line| line == target);
            let install = ["target", "add", target];
            if !self.is_provided(target, is_there, &install) {
                continue;
            }
            let mut command = cargo(&["check", "--target", target, "--package", "tenure"]);
            let variable = target.replace('-', "_");
            command.args(["--features", &features.join(",")]);
            command.env(format!("CC_{variable}"), &compiler).env(format!("AR_{variable}"), "true");
            command.env("CARGO_TARGET_DIR", &target_folder);
            self.jobs.push(check(target, command));
        }
        let Some(version) = metadata.rust_version() else { return Ok(()) };
        let find = || toolchain(version, &rustup(&["toolchain", "list"]));
        let install = ["toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
        let name = format!("Rust {version}");
        if self.is_provided(&name, || find().is_some(), &install)
            && let Some(toolchain) = find()
        {
            let mut command = Command::new("rustup");
            command.args(["run", &toolchain, "cargo", "check", "--all-features"]);
            for package in metadata.published().filter_map(|package| package["name"].as_str()) {
                command.args(["--package", package]);
            }
            command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
            command.env("CARGO_TARGET_DIR", &target_folder);
            self.jobs.push(check(name, command));
        }
        Ok(())
    }

    fn is_provided(&mut self, name: &str, is_there: impl Fn() -> bool, install: &[&str]) -> bool {
        if is_there() {
            return true;
        }
        // Without a network, rustup may try for very long.
        let mut command = Command::new("timeout");
        let _ = command.args(["300", "rustup"]).args(install).output();
        let provided = is_there();
        if !provided {
            let install = install.join(" ");
            self.skipped.push(format!("{name}: `rustup {install}` does not work here"));
        }
        provided
    }
}

/// A check that a warning fails, too: in a build with one feature it is often code that only another feature
/// uses.
fn check(name: impl Into<String>, command: Command) -> Job {
    Job { denies_warnings: true, ..Job::new(name, command) }
}

/// The toolchain of this version among those that `rustup toolchain list` prints.
fn toolchain(version: &str, installed: &str) -> Option<String> {
    let is_it =
        |line: &&str| line.strip_prefix(version).is_some_and(|rest| rest.starts_with(['.', '-']));
    let line = installed.lines().find(is_it)?;
    Some(line.split(' ').next().unwrap_or(line).to_owned())
}

/// This program is `<target>/debug/xtask`.
pub(crate) fn target_folder() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?.to_path_buf())
}

/// A C compiler that writes empty files. `cargo check` runs ring's build script, which compiles C, but
/// nothing is linked: so another system's C compiler and headers are not needed.
fn stand_in_compiler(folder: &Path) -> io::Result<PathBuf> {
    const SCRIPT: &str = "#!/bin/sh\n\
        for word; do [ \"$last\" = -o ] && : > \"$word\"; last=$word; done\n\
        exit 0\n";
    let path = folder.join("stand-in-cc");
    fs::write(&path, SCRIPT)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// What `rustup` prints; nothing where it is not installed.
fn rustup(arguments: &[&str]) -> String {
    let output = Command::new("rustup").args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The strings of the first TOML array that begins with `start`. Comments are left out.
fn strings_after(toml: &str, start: &str) -> Vec<String> {
    let Some((_, rest)) = toml.split_once(start) else { return Vec::new() };
    let lines = rest.lines().map(|line| line.split('#').next().unwrap_or_default());
    let array: String = lines.take_while(|line| !line.starts_with(']')).collect();
    array.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression can be met with the allowed licences alone. `OR` binds weaker than
/// `AND`, and the one use of brackets is around an `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some((before, after)) = expression.split_once(") AND ") {
        return is_allowed(before.trim_start_matches('('), allowed) && is_allowed(after, allowed);
    }
    let is_one = |licence: &str| allowed.iter().any(|allowed| allowed == licence.trim());
    expression.split(" OR ").any(|choice| choice.split(" AND ").all(is_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_is_found_by_its_version_and_not_by_a_longer_one() {
        let installed = "stable-x86_64 (active, default)\n1.910.0-x86_64\n1.91.1-x86_64 (x)\n";
        assert_eq!(toolchain("1.91", installed).as_deref(), Some("1.91.1-x86_64"));
        assert_eq!(toolchain("1.90", installed), None);
    }

    #[test]
    fn a_licence_expression_needs_one_choice_that_is_allowed_in_full() {
        let allowed = ["MIT".to_owned(), "Apache-2.0".to_owned(), "ISC".to_owned()];
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "MIT AND ISC",
            "(MIT OR GPL-3.0) AND ISC",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "MIT-0"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn a_forbidden_licence_a_foreign_source_and_a_second_version_are_faults() {
        let package = |name: &str, version: &str, licence: &str, source: &str| {
            serde_json::json!({"name": name, "version": version, "license": licence,
                "source": source})
        };
        let deny = "\nallow = [\n  \"MIT\", # \"GPL\"\n]\ndeny = [\n \"slow\",\n]\nskip = [\n \"two:1\",\n]\n";
        let sound = [
            package("one", "1.0.0", "MIT", "registry+x"),
            package("two", "1.0.0", "MIT", "registry+x"),
            package("two", "2.0.0", "MIT", "registry+x"),
        ];
        let faults = |packages: &[Value]| {
            Metadata(serde_json::json!({ "packages": packages })).dependency_faults(deny)
        };
        assert_eq!(faults(&sound), Vec::<String>::new());
        for (bad, says) in [
            (package("bad", "1.0.0", "GPL", "registry+x"), "licence"),
            (package("bad", "1.0.0", "MIT", "git+x"), "registry"),
            (package("slow", "1.0.0", "MIT", "registry+x"), "bans"),
            (package("one", "2.0.0", "MIT", "registry+x"), "several versions"),
        ] {
            let faults = faults(&[&sound[..], &[bad]].concat());
            assert!(matches!(&faults[..], [fault] if fault.contains(says)), "{faults:?}");
        }
    }

    #[test]
    fn each_feature_is_checked_alone_and_so_is_none() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "source": null, "publish": null,
                "features": {"default": ["x"], "x": [], "y": []}},
            {"name": "internal", "source": null, "publish": [], "features": {"x": []}},
            {"name": "theirs", "source": "registry+x", "publish": null, "features": {"x": []}},
        ]});
        let checks: Vec<String> =
            Metadata(metadata).feature_checks().into_iter().map(|job| job.name).collect();
        assert_eq!(checks, ["a with no features", "a with x", "a with y"]);
    }
}
