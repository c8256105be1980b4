//! `ui`: the page over HTTP, and in headless Chromium where there is one.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use tenure_testkit::{GENEROUS, Process};

use crate::browser::Browser;
use crate::common::*;

/// Starts `tenure ui` and returns the URL that it prints.
async fn start(store: &Store, options: &[&str]) -> (Process, String) {
    let options = [&["ui", "--listen", "127.0.0.1:0", "--every", "50ms"], options].concat();
    let mut ui = store.start(&options);
    let url = line(&mut ui).await;
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    (ui, url)
}

/// The host and port, and the token.
fn parts(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, rest) = rest.split_once('/').unwrap();
    (host, rest.strip_prefix("?token=").unwrap_or_default())
}

/// The status and the whole reply to a request, with these headers besides.
fn ask(host: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(host).unwrap();
    connection.set_read_timeout(Some(GENEROUS)).unwrap();
    let named = if headers.contains("Host:") { String::new() } else { format!("Host: {host}\r\n") };
    let length = body.len();
    write!(
        connection,
        "{request} HTTP/1.1\r\n{named}{headers}Connection: close\r\nContent-Length: {length}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
    (status, reply)
}

#[tokio::test]
async fn the_page_lists_locks_and_shows_hostile_names_harmlessly() {
    let store = Store::new();
    let name = "<script>alert(1)</script>\u{202e}gnp";
    let (_holder, ..) =
        store.hold(&["--label", "<img src=x onerror=alert(2)>\u{1b}[2J"], name).await;
    let (mut ui, url) = start(&store, &[]).await;
    let (host, token) = parts(&url);
    assert_eq!(token, "", "a page of this machine that releases nothing needs none");
    let listed = || async { ask(host, "GET /", "", "").1.contains("alert(1)") };
    assert!(tenure_testkit::eventually(GENEROUS, listed).await);
    let (status, page) = ask(host, "GET /", "", "");
    assert_eq!(status, 200);
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;\u{fffd}gnp"), "{page}");
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    assert!(!page.contains(['\u{202e}', '\u{1b}']));
    for part in ["content-security-policy: default-src 'none'", "referrer-policy: no-referrer"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "no address elsewhere: {page}"
    );
    assert!(ask(host, "GET /?filter=nothing", "", "").1.contains("No lock matches &quot;nothing"));
    signal(&ui, Signal::INT);
    assert_eq!(code(&mut ui).await, Some(0));
}

#[tokio::test]
async fn requests_that_another_site_leads_here_are_refused() {
    let store = Store::new();
    let (holder, _, owner) = store.hold(&[], "a").await;
    let (_ui, url) = start(&store, &[]).await;
    let (host, _) = parts(&url);
    // A name of another site that points to this machine.
    assert_eq!(ask(host, "GET /", "Host: evil.example\r\n", "").0, 403);
    assert_eq!(ask(host, "GET /", "Host: localhost:1\r\n", "").0, 200);
    let form = "token=&lock=a&reason=r&name=a";
    assert_eq!(ask(host, "POST /release", "", form).0, 403, "it may release nothing");

    let (_ui, url) = start(&store, &["--allow-release"]).await;
    let (host, token) = parts(&url);
    for request in ["GET /", "GET /live", "HEAD /", "HEAD /live", "OPTIONS /"] {
        assert_eq!(ask(host, request, "", "").0, 403, "{request} without the token");
    }
    let wrong = format!("/?token={}", "0".repeat(token.len()));
    assert_eq!(ask(host, &format!("GET {wrong}"), "", "").0, 403);
    assert_eq!(ask(host, &format!("GET /?token={token}"), "", "").0, 200);
    let form =
        |token: &str, name: &str| format!("token={token}&lock=a&reason=it+hangs&name={name}");
    for (headers, body) in [
        ("", form("", "a")),
        ("", form(&"0".repeat(token.len()), "a")),
        ("Origin: http://evil.example\r\n", form(token, "a")),
        ("Sec-Fetch-Site: cross-site\r\n", form(token, "a")),
        ("Host: evil.example\r\n", form(token, "a")),
    ] {
        assert_eq!(ask(host, "POST /release", headers, &body).0, 403, "{headers} {body}");
    }
    let (status, reply) = ask(host, "POST /release", "", &form(token, "b"));
    assert!(status == 303 && reply.contains("said=misnamed"), "{reply}");
    assert_eq!(store.status("a")["holders"][0]["owner"], owner);
    let same = format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n");
    let body = format!("{}&owner={owner}", form(token, "a"));
    assert_eq!(ask(host, "POST /release", &same, &body).0, 303);
    assert!(store.is_free("a"));
    assert!(store.run(&["audit", "a"]).ok().contains("it hangs"));
    drop(holder);
}

#[tokio::test]
async fn a_release_evicts_only_the_holder_that_the_form_showed() {
    let store = Store::new();
    let (mut first, _, owner) = store.hold(&[], "a").await;
    let (_ui, url) = start(&store, &["--allow-release"]).await;
    let (host, token) = parts(&url);
    let page = || ask(host, &format!("GET /?token={token}&lock=a"), "", "").1;
    let input = format!("name=\"owner\" value=\"{owner}\"");
    let shown = || async { page().contains(&input) };
    assert!(tenure_testkit::eventually(GENEROUS, shown).await, "{}", page());
    assert!(!page().contains("http-equiv"), "a reload would lose what was typed");
    signal(&first, Signal::TERM);
    assert_eq!(code(&mut first).await, Some(0));
    let (_second, _, next) = store.hold(&[], "a").await;
    let post = |owner: &str| {
        let form = format!("token={token}&lock=a&owner={owner}&reason=it+hangs&name=a");
        ask(host, "POST /release", "", &form)
    };
    let (status, reply) = post(&owner);
    assert!(status == 303 && reply.contains("said=changed"), "{reply}");
    assert_eq!(store.status("a")["holders"][0]["owner"], next);
    let said = |word: &str| ask(host, &format!("GET /?token={token}&lock=a&said={word}"), "", "").1;
    assert!(said("changed").contains("the holder has changed: nothing was released"));
    assert!(!said("call+0800").contains("0800"), "a link cannot make the page say anything");
    assert_eq!(ask(host, &format!("GET /?token={token}&page=x"), "", "").0, 400);
    assert!(post(&next).1.contains("said=evicted"));
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn another_address_is_warned_of_and_needs_the_token() {
    let store = Store::new();
    let stderr = store.scratch().join("stderr");
    let mut command = store.tenure(&["ui", "--listen", "0.0.0.0:0"]);
    command.stderr(std::fs::File::create(&stderr).unwrap());
    let mut ui = Process::spawn(command).unwrap();
    let url = line(&mut ui).await;
    let (host, token) = parts(&url);
    let here = host.replace("0.0.0.0", "127.0.0.1");
    assert!(token.len() >= 32, "{url}");
    assert!(std::fs::read_to_string(&stderr).unwrap().contains("other machines can reach"));
    assert_eq!(ask(&here, "GET /", "", "").0, 403);
    assert_eq!(ask(&here, &format!("GET /?token={token}"), "", "").0, 200);
}

/// The steps: rows appear, move and vanish as locks do; the filter works; a release by force is refused without
/// the name, and works with it.
#[tokio::test]
async fn the_page_follows_the_locks_in_a_browser() {
    let Some(mut browser) = Browser::start("the_page_follows_the_locks_in_a_browser") else {
        return;
    };
    let store = Store::new();
    let (cold, ..) = store.hold(&[], "cold").await;
    let (_ui, url) = start(&store, &["--allow-release"]).await;
    browser.open(&url);
    const NAMES: &str =
        "[...document.querySelectorAll('tbody th')].map(one => one.innerText).join()";
    browser.until(NAMES, "cold");
    let (_hot, ..) = store.hold(&["--label", "nightly"], "hot").await;
    browser.until(NAMES, "cold,hot");
    let waiter = store.start(&["hold", "hot"]);
    // The contended lock moves to the top.
    browser.until(NAMES, "hot,cold");
    browser.until("document.querySelector('tbody .number[data-label=Waiters]').innerText", "1");
    signal(&cold, Signal::TERM);
    browser.until(NAMES, "hot");

    browser.run("document.getElementById('filter').value = 'nothing', document.querySelector('form').submit()");
    browser.until("document.querySelector('.none')?.innerText", "No lock matches \"nothing\".");
    browser.run("document.getElementById('filter').value = 'NIGHT', document.querySelector('form').submit()");
    browser.until(NAMES, "hot");

    browser.run("document.querySelector('tbody a').click()");
    browser.until("document.querySelector('h2')?.innerText", "hot");
    let fill = |name: &str| {
        format!(
            "document.querySelector('[name=reason]').value = 'it hangs', \
             document.querySelector('[name=name]').value = '{name}', \
             document.querySelector('form.release button').click()"
        )
    };
    browser.run(&fill("cold"));
    browser.until(
        "document.querySelector('.said')?.innerText.includes('nothing was released')",
        "true",
    );
    assert!(store.run(&["audit", "hot"]).ok().is_empty());
    browser.run(&fill("hot"));
    browser.until("document.querySelector('.said')?.innerText.includes('evicted')", "true");
    let held =
        format!("document.querySelector('main > ul')?.innerText.includes(':{}')", waiter.pid());
    browser.until(&held, "true");
    browser.until(
        "[...document.querySelectorAll('main b')].some(one => one.innerText == 'evicted')",
        "true",
    );
}
