//! The laboratory's verdicts are the expected ones.

#[path = "cli/browser.rs"]
mod browser;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testkit::{GENEROUS, RedisServer, lacks, with_default_signals};

use browser::Browser;

fn tenure(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let output = with_default_signals(command.args(arguments)).stdin(Stdio::null()).output();
    let output = output.expect("the command can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Every hazard against every algorithm, but for servers that start slowly: a specimen that does not break is as
/// wrong as a lock that does.
#[test]
fn every_experiment_ends_as_expected() {
    let test = "every_experiment_ends_as_expected";
    if lacks("redis-server", test) || lacks("cc", test) {
        return;
    }
    let page = tenure_testkit::temp_dir();
    let file = page.path().join("lab.html");
    let file = file.to_str().unwrap();
    let (code, table, wrong) = tenure(&["lab", "matrix", "--quick", "--html", file]);
    assert_eq!(code, Some(0), "{table}\n{wrong}");
    for word in ["one-restarts-empty", "s safe"] {
        assert!(table.contains(word), "{table}");
    }
    let page = std::fs::read_to_string(file).unwrap();
    for part in ["<svg", "class=\"overlap\"", "class=\"rejected\"", "id=\"pause.blind-del\""] {
        assert!(page.contains(part), "{part}");
    }
    let references = references(&page);
    assert!(references.is_empty(), "the page needs no network: {references:?}");
}

/// What a page refers to outside of itself.
fn references(page: &str) -> Vec<String> {
    // A name, which no browser asks for.
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "").to_lowercase();
    let marks = [
        "://", "\"//", "url(", "@import", "<link", "<base", "<iframe", "<object", "src=", "srcset=",
    ];
    let loading = ["fetch(", "import(", "xmlhttprequest", "sendbeacon", "websocket", "eventsource"];
    let mut found: Vec<String> = [&marks[..], &loading]
        .concat()
        .into_iter()
        .filter(|mark| page.contains(mark))
        .map(str::to_owned)
        .collect();
    let links = page.split("href=").skip(1).filter(|link| !link.starts_with("\"#"));
    found.extend(links.map(|link| link.chars().take(40).collect()));
    found
}

#[test]
fn a_reference_to_another_place_is_found_and_one_within_the_page_is_not() {
    for outside in [
        "<link rel=stylesheet href=\"https://a.example/x.css\">",
        "<style>b { background: url(a.png) }</style>",
        "<a href=\"other.html\">",
        "<script src=\"//a.example/x.js\"></script>",
        "<script>fetch('/x')</script>",
    ] {
        assert!(!references(outside).is_empty(), "{outside}");
    }
    assert_eq!(
        references("<a href=\"#pause.redis\"><svg xmlns=\"http://www.w3.org/2000/svg\">").len(),
        0
    );
}

/// A seed changes when the clients get their orders, and not the verdict.
#[test]
fn one_experiment_is_played_with_a_seed_and_shown_on_a_page() {
    if lacks("redis-server", "one_experiment_is_played_with_a_seed_and_shown_on_a_page") {
        return;
    }
    let folder = tenure_testkit::temp_dir();
    let file = folder.path().join("page.html");
    let file = file.to_str().unwrap();
    let run = ["lab", "run", "pause", "--algorithm", "blind-del", "--seed", "7", "--html", file];
    let (code, story, wrong) = tenure(&run);
    assert_eq!(code, Some(0), "{story}\n{wrong}");
    for part in ["pause against blind-del: broken", "stale write", "the servers say that"] {
        assert!(story.contains(part), "{part}: {story}");
    }
    let page = std::fs::read_to_string(file).unwrap();
    for part in
        ["id=\"pause.blind-del\"", "class=\"stored\"", "class=\"overlap\"", "class=\"stale\""]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(references(&page), [""; 0]);
}

/// The tabulator and the arrow keys lead to each verdict and mark, and the colours follow the system.
#[test]
fn the_page_works_with_the_keyboard_and_in_the_dark() {
    let test = "the_page_works_with_the_keyboard_and_in_the_dark";
    if lacks("redis-server", test) {
        return;
    }
    let Some(mut browser) = Browser::start(test) else { return };
    let folder = tenure_testkit::temp_dir();
    let file = folder.path().join("page.html");
    let matrix =
        ["lab", "matrix", "--hazards", "pause", "--algorithms", "blind-del,redis", "--html"];
    let (code, _, wrong) = tenure(&[&matrix[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{wrong}");
    browser.open(&format!("file://{}", file.display()));
    browser.until("document.querySelectorAll('tbody td a').length", "2");
    let press = |browser: &mut Browser, key: &str, code: u8| {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text
            });
            browser.call("Input.dispatchKeyEvent", event);
        }
    };
    const FOCUS: &str = "document.activeElement.title || document.activeElement.ariaLabel || ''";
    press(&mut browser, "Tab", 9);
    browser.until(FOCUS, "pause against blind-del: broken");
    press(&mut browser, "ArrowRight", 39);
    browser.until(FOCUS, "pause against redis: safe");
    press(&mut browser, "ArrowLeft", 37);
    browser.until(FOCUS, "pause against blind-del: broken");
    press(&mut browser, "Enter", 13);
    browser.until("getComputedStyle(document.querySelector('section:target')).display", "block");
    // The next mark, in whatever order the page has them.
    press(&mut browser, "Tab", 9);
    browser.until(
        "document.querySelector('section:target .tell').innerText == document.activeElement.dataset.tell",
        "true",
    );
    for (scheme, paper) in [("dark", "rgb(21, 24, 28)"), ("light", "rgb(255, 255, 255)")] {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.call("Emulation.setEmulatedMedia", media);
        browser.until("getComputedStyle(document.body).backgroundColor", paper);
    }
}

/// The holder is stopped in the middle of its work, so the unfenced set loses updates.
#[test]
fn lock_set_loses_unfenced_updates_and_no_fenced_ones() {
    if lacks("redis-server", "lock_set_loses_unfenced_updates_and_no_fenced_ones") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let store = format!("redis://127.0.0.1:{}", server.port());
    let set = |store: &str| {
        let timing = ["--duration", "8s", "--ttl", "1s", "--pause-every", "2s", "--processes", "3"];
        let (code, figures, wrong) =
            tenure(&[&["--json", "--store", store, "lab", "lock-set"][..], &timing].concat());
        let figures: Value = serde_json::from_str(&figures).expect(&wrong);
        (code, figures, wrong)
    };
    let (code, figures, wrong) = set(&store);
    assert_eq!(code, Some(0), "{figures}\n{wrong}");
    assert_eq!(figures["fenced"]["lost"], 0, "{figures}");
    for lost in [&figures["unfenced"]["lost"], &figures["rejected"], &figures["pauses"]] {
        assert!(lost.as_u64() >= Some(1), "{figures}");
    }
    let (code, figures, wrong) = set(&format!("{store}?fencing=off"));
    assert_eq!(code, Some(1), "{figures}");
    assert!(wrong.contains("acknowledged updates of the fenced set were lost"), "{wrong}");
}

/// Its servers have ended, and their files are gone.
#[test]
fn an_interrupted_laboratory_leaves_nothing_behind() {
    if lacks("redis-server", "an_interrupted_laboratory_leaves_nothing_behind") {
        return;
    }
    let folder = tenure_testkit::temp_dir();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["lab", "matrix", "--hazards", "long-work", "--algorithms", "redis,redlock"]);
    command.env("TMPDIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut lab = with_default_signals(&mut command).spawn().expect("the command can be started");
    // Each server works in its directory.
    let servers = || {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let places = processes.filter_map(|one| std::fs::read_link(one.path().join("cwd")).ok());
        places.filter(|place| place.starts_with(folder.path())).count()
    };
    let until = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() && start.elapsed() < GENEROUS {
            std::thread::sleep(Duration::from_millis(10));
        }
        done()
    };
    assert!(until(&|| servers() >= 6), "{} servers run", servers());
    let pid = i32::try_from(lab.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), rustix::process::Signal::INT)
        .expect("it runs");
    assert_eq!(lab.wait().expect("it was started here").code(), Some(130));
    assert!(until(&|| servers() == 0), "{} servers still run", servers());
    let left = std::fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(left, 0, "files are left in {}", folder.path().display());
}

/// The first seed begins with faults of all kinds, the second one with holders that are stopped past their TTL.
#[test]
fn a_soak_finds_a_fenced_lock_sound_and_a_specimen_broken() {
    if lacks("redis-server", "a_soak_finds_a_fenced_lock_sound_and_a_specimen_broken") {
        return;
    }
    let soak = |algorithm, seed| {
        let time = ["--duration", "14s", "--ttl", "1s", "--rate", "1500", "--seed", seed];
        let (code, figures, wrong) =
            tenure(&[&["--json", "lab", "soak", "-a", algorithm][..], &time].concat());
        let figures: serde_json::Value = serde_json::from_str(&figures).expect(&wrong);
        (code, figures, wrong)
    };
    let (code, figures, wrong) = soak("redis", "118");
    assert_eq!(code, Some(0), "{figures}\n{wrong}");
    for kind in ["holder stopped past the TTL", "server stopped", "server killed and restarted"] {
        assert!(figures["faults"][kind].as_u64() >= Some(1), "{kind}: {figures}");
    }
    assert!(figures["stale_rejected"].as_u64() >= Some(1), "{figures}");
    assert_eq!(figures["stale_attempted"], figures["stale_rejected"], "{figures}");
    assert!(figures["acquisitions"].as_u64() >= Some(100), "{figures}");
    let (code, figures, wrong) = soak("blind-del", "1334");
    assert_eq!(code, Some(1), "{figures}\n{wrong}");
    assert!(wrong.contains("stale write"), "{wrong}");
}

#[test]
fn what_has_no_server_here_is_not_played_and_its_package_is_named() {
    let empty = tenure_testkit::temp_dir();
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).env("PATH", empty.path()).stdin(Stdio::null());
        with_default_signals(&mut command).output().expect("the command can be started")
    };
    for (algorithm, package) in
        [("etcd", "etcd-server"), ("redis", "redis-server"), ("zookeeper", "default-jre-headless")]
    {
        let played = lab(&["lab", "run", "pause", "--algorithm", algorithm]);
        let said = String::from_utf8_lossy(&played.stdout);
        assert!(said.contains(package), "{said}");
        assert_eq!(played.status.code(), Some(69), "{said}");
    }
    let played = lab(&["lab", "run", "client-clock", "--algorithm", "local"]);
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(said.contains("cc is not installed: Debian has it in gcc"), "{said}");
    assert_eq!(played.status.code(), Some(69), "{said}");
    let clocks = ["--hazards", "client-clock,nested-names", "--algorithms", "local"];
    let played = lab(&[&["lab", "matrix"][..], &clocks].concat());
    assert_eq!(played.status.code(), Some(0), "what can be played is as expected");
    assert!(String::from_utf8_lossy(&played.stderr).contains("Debian has it in gcc"));
    let played = lab(&["lab", "matrix", "--hazards", "nested-names", "--algorithms", "etcd,local"]);
    assert_eq!(played.status.code(), Some(0), "what can be played is as expected");
    assert!(String::from_utf8_lossy(&played.stderr).contains("etcd-server"));
}

#[test]
fn the_documentation_leads_to_every_experiment() {
    const PAGE: &str = include_str!("../../../docs/lab.md");
    let (code, listed, _) = tenure(&["--json", "lab", "ls"]);
    assert_eq!(code, Some(0));
    let listed = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let hazards: Vec<Value> = listed.filter(|it| it["hazard"].is_string()).collect();
    assert!(hazards.len() >= 28, "{hazards:?}");
    for hazard in hazards {
        let id = hazard["hazard"].as_str().unwrap();
        assert!(PAGE.contains(&format!("[`{id}`](#")), "no row of the map has {id}");
        assert!(PAGE.contains(&format!("pictures/lab/{id}.svg")), "no section shows {id}");
    }
}

#[test]
fn hazards_and_algorithms_are_listed_and_unknown_ones_refused() {
    let (code, listed, _) = tenure(&["lab", "ls"]);
    assert_eq!(code, Some(0));
    for name in ["pause", "herd", "redlock-incr", "zookeeper"] {
        assert!(listed.contains(name), "{listed}");
    }
    for wrong in [["pause", "nothing"], ["nothing", "local"]] {
        let (code, _, why) = tenure(&["lab", "run", wrong[0], "--algorithm", wrong[1]]);
        assert_eq!(code, Some(64), "{why}");
        assert!(why.contains("\"nothing\"") && why.contains("tenure lab ls"), "{why}");
    }
}
