//! A headless Chromium, for tests of pages.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tenure_testkit::{GENEROUS, TempDir};

/// A headless Chromium, which is told what to do over a pipe.
pub(crate) struct Browser {
    chromium: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    _folder: TempDir,
}

impl Browser {
    /// Starts one, or says that `test` is skipped without it.
    pub(crate) fn start(test: &str) -> Option<Self> {
        if tenure_testkit::lacks("chromium", test) {
            return None;
        }
        let folder = tenure_testkit::temp_dir();
        // It reads from descriptor 3 and writes to 4.
        let line = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                    --remote-debugging-pipe --user-data-dir=\"$0\" about:blank 3<&0 4>&1 >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.args(["-c", line]).arg(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut chromium = command.spawn().unwrap();
        let to = chromium.stdin.take().unwrap();
        let from = BufReader::new(chromium.stdout.take().unwrap());
        let mut browser = Self { chromium, to, from, session: None, sent: 0, _folder: folder };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        Some(browser)
    }

    /// Calls a method of the DevTools protocol.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut reply = Vec::new();
            self.from.read_until(0, &mut reply).unwrap();
            reply.pop().expect("chromium runs");
            let reply: Value = serde_json::from_slice(&reply).unwrap();
            if reply["id"] == self.sent {
                return reply["result"].clone();
            }
        }
    }

    /// Shows another page.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// The value of an expression, as text.
    pub(crate) fn run(&mut self, expression: &str) -> String {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression }));
        let value = &found["result"]["value"];
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Waits until an expression has this value.
    pub(crate) fn until(&mut self, expression: &str, expected: &str) {
        let limit = Instant::now() + GENEROUS;
        loop {
            let found = self.run(expression);
            if found == expected {
                return;
            }
            if Instant::now() > limit {
                let page = self.run("document.body?.innerText");
                panic!("{expression} is {found:?}, not {expected:?}, in {page}");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.chromium.kill();
        let _ = self.chromium.wait();
    }
}
