//! Debian packages that tests need.

use std::process::{Command, Stdio};

/// What the tests need beyond Rust: a program or file, and the package that contains it.
const NEEDED: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("bindfs", "bindfs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
    ("chromium", "chromium"),
    ("redis-server", "redis-server"),
    ("redis-sentinel", "redis-sentinel"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("java", "default-jre-headless"),
    ("javac", "default-jdk-headless"),
    ("/usr/share/java/zookeeper.jar", "libzookeeper-java"),
    ("/usr/share/java/curator-recipes.jar", "libcurator-recipes-java"),
];

/// Installs missing packages where that is allowed (root, with `apt-get`); otherwise prints the command
/// that installs them. Returns the packages that are still missing.
pub(crate) fn provide() -> Vec<String> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !is_installed(program)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    println!("missing packages: {}", packages.join(" "));
    if may_install() && install(&packages) {
        return Vec::new();
    }
    println!("install them with: apt-get install {}", packages.join(" "));
    packages.into_iter().map(str::to_owned).collect()
}

pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

fn may_install() -> bool {
    let identity = Command::new("id").arg("-u").output();
    let root = identity.is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    root && is_installed("apt-get")
}

fn install(packages: &[&str]) -> bool {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    let _quiet = NoServices::ensure();
    apt(&["update"]) && apt(&arguments)
}

/// Keeps packages from starting services while they are installed: the tests start their own.
struct NoServices(bool);

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";

    fn ensure() -> Self {
        if std::path::Path::new(Self::POLICY).exists() {
            return Self(false);
        }
        let written = std::fs::write(Self::POLICY, "#!/bin/sh\nexit 101\n").is_ok()
            && Command::new("chmod").args(["755", Self::POLICY]).status().is_ok();
        Self(written)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.0 {
            let _ = std::fs::remove_file(Self::POLICY);
        }
    }
}
