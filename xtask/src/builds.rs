//! Builds other than the workspace's own: every feature alone, other systems, the oldest compiler, and
//! the licences of everything that is linked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

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

    /// Checks of each published package that has features: with none of them, and with each alone.
    pub(crate) fn feature_checks(&self) -> Vec<(String, Command)> {
        let mut checks = Vec::new();
        for package in self.published() {
            let (Some(name), Some(features)) =
                (package["name"].as_str(), package["features"].as_object())
            else {
                continue;
            };
            let features = features.keys().map(String::as_str).filter(|name| *name != "default");
            let features: Vec<&str> = features.collect();
            if features.is_empty() {
                continue;
            }
            for feature in [""].into_iter().chain(features) {
                let arguments =
                    ["check", "--package", name, "--no-default-features", "--features", feature];
                let shown = if feature.is_empty() { "no features" } else { feature };
                checks.push((format!("{name} with {shown}"), cargo(&arguments)));
            }
        }
        checks
    }

    /// What is wrong with the dependencies: licences that `deny.toml` does not allow, sources other
    /// than the registry, and packages in two versions that `deny.toml` does not name.
    ///
    /// This is the part of `cargo deny check` that needs neither the network nor cargo-deny. Known
    /// vulnerabilities need both: the hosted workflow looks for them.
    pub(crate) fn dependency_faults(&self, deny: &str) -> Vec<String> {
        let allowed = strings_after(deny, "\nallow = [");
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

/// A build for another system, or with another compiler.
pub(crate) enum Foreign {
    Check(String, Command),
    /// It cannot be done here, for this reason.
    Skipped(String),
}

/// Checks of the library for macOS and Windows, and of everything with the oldest compiler. What
/// `rustup` has not installed is skipped with the command that installs it.
pub(crate) fn foreign(metadata: &Metadata) -> io::Result<Vec<Foreign>> {
    let target_folder = target_folder()?.join("foreign");
    fs::create_dir_all(&target_folder)?;
    let compiler = stand_in_compiler(&target_folder)?;
    let installed = rustup(&["target", "list", "--installed"]);
    let mut builds: Vec<Foreign> = TARGETS
        .iter()
        .map(|target| {
            if !installed.lines().any(|line| line == *target) {
                return Foreign::Skipped(format!("{target}: `rustup target add {target}` first"));
            }
            let mut check = cargo(&["check", "--target", target, "--package", "tenure"]);
            let variable = target.replace('-', "_");
            check.args(["--features", "etcd,zookeeper"]);
            check.env(format!("CC_{variable}"), &compiler).env(format!("AR_{variable}"), "true");
            check.env("CARGO_TARGET_DIR", &target_folder);
            Foreign::Check((*target).to_owned(), check)
        })
        .collect();
    if let Some(version) = metadata.rust_version() {
        let toolchains = rustup(&["toolchain", "list"]);
        let matches = |line: &&str| {
            line.strip_prefix(version).is_some_and(|rest| rest.starts_with(['.', '-']))
        };
        builds.push(match toolchains.lines().find(matches) {
            Some(line) => {
                let toolchain = line.split(' ').next().unwrap_or(line);
                let mut check = Command::new("rustup");
                check.args(["run", toolchain, "cargo", "check", "--package", "tenure-cli"]);
                check.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
                check.env("CARGO_TARGET_DIR", &target_folder);
                Foreign::Check(format!("Rust {version}"), check)
            }
            None => Foreign::Skipped(format!(
                "Rust {version}: `rustup toolchain install {version} --profile minimal` first"
            )),
        });
    }
    Ok(builds)
}

/// Runs a check and shows what the compiler says. A warning fails it, too: in a build with one feature
/// it is often code that only another feature uses.
pub(crate) fn passes(mut check: Command) -> bool {
    let output = match check.output() {
        Ok(output) => output,
        Err(error) => {
            println!("cannot start {check:?}: {error}");
            return false;
        }
    };
    let messages = String::from_utf8_lossy(&output.stderr);
    let is_clean = output.status.success() && !messages.contains("warning:");
    if !is_clean {
        println!("{messages}");
    }
    is_clean
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
        let deny = "\nallow = [\n  \"MIT\", # \"GPL\"\n]\nskip = [\n \"two:1\",\n]\n";
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
            Metadata(metadata).feature_checks().into_iter().map(|(name, _)| name).collect();
        assert_eq!(checks, ["a with no features", "a with x", "a with y"]);
    }
}
