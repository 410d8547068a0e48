// SPDX-License-Identifier: Apache-2.0
//! A real browser, driven through `chromedriver` with the `WebDriver` protocol of the W3C.
//!
//! The maintained clients (fantoccini, thirtyfour) are asynchronous and need a runtime. A test needs a dozen commands, each
//! of which is one HTTP request with a JSON document.

mod net_log;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::net_log::PageRequest;

/// Maximum time for one command: the first page on a busy machine is slow.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum time for a script that answers later.
const SCRIPT_TIMEOUT: Duration = Duration::from_mins(1);

/// A program that a browser starts itself is not wanted in a test: updates, synchronisation, reports.
const BROWSER_FLAGS: [&str; 12] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--window-size=1360,900",
];

/// The colour scheme that a page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorScheme {
    /// Dark text on a light ground.
    Light,
    /// Light text on a dark ground.
    Dark,
}

impl ColorScheme {
    /// The word of the media feature `prefers-color-scheme`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A browser with one page. Dropping it ends the browser.
#[derive(Debug)]
pub struct Browser {
    _driver: DriverProcess,
    agent: ureq::Agent,
    /// The URL of the session.
    session: String,
    directory: TempDir,
}

impl Browser {
    /// Starts `chromedriver` and a browser with an empty profile.
    #[track_caller]
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("create a directory");
        let mut driver = DriverProcess::start();
        let port = driver.port();
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(COMMAND_TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .new_agent();
        let root = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { _driver: driver, agent, session: root, directory };
        let profile = browser.directory.path().join("profile");
        let mut flags: Vec<String> = BROWSER_FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", profile.display()));
        flags.push(format!("--log-net-log={}", browser.net_log_file().display()));
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": flags},
            "timeouts": {"script": SCRIPT_TIMEOUT.as_secs() * 1000},
        }}});
        let opened = browser.post("", &capabilities);
        let id = opened["sessionId"].as_str().expect("a session has an id");
        browser.session = format!("{}/{id}", browser.session);
        browser
    }

    /// Opens an address. Another fragment of the same page does not load the page again.
    #[track_caller]
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Goes back, as the button of the browser does.
    #[track_caller]
    pub fn back(&self) {
        self.post("/back", &json!({}));
    }

    /// Loads the page again.
    #[track_caller]
    pub fn reload(&self) {
        self.post("/refresh", &json!({}));
    }

    /// Runs the body of a function in the page; returns its result.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// As [`Self::run`]; the function calls its last argument with the result. `argument` is its first.
    #[track_caller]
    pub fn run_async(&self, script: &str, argument: &Value) -> Value {
        self.post("/execute/async", &json!({"script": script, "args": [argument]}))
    }

    /// The visible text of the first element that a selector matches; empty if there is none.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?})?.innerText ?? ''");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// The number of elements that a selector matches.
    #[track_caller]
    pub fn count(&self, selector: &str) -> u64 {
        let script = format!("return document.querySelectorAll({selector:?}).length");
        self.run(&script).as_u64().unwrap_or_default()
    }

    /// Presses keys one after the other, as a user does. `\u{e004}` is the tabulator key, `\u{e007}` the enter key; the
    /// W3C standard has the others.
    #[track_caller]
    pub fn press(&self, keys: &str) {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                let key = key.to_string();
                [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
            })
            .collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Gives the page another size, in CSS pixels.
    #[track_caller]
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the colour scheme of the operating system, as far as the page can see.
    #[track_caller]
    pub fn set_color_scheme(&self, scheme: ColorScheme) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme.word()});
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// Runs a script before those of each page that is opened from now on.
    #[track_caller]
    pub fn run_at_load(&self, script: &str) {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": script }));
    }

    /// A command of the protocol for developer tools.
    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// The lines of the page's console since the last call, with their level: errors of scripts, of requests, and of the
    /// content security policy.
    #[track_caller]
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().into_iter().flatten();
        let line = |entry: &Value| format!("{} {}", entry["level"], entry["message"]);
        // The empty page with which the browser starts has a log of its own.
        entries.map(line).filter(|line| !line.contains("chrome://")).collect()
    }

    /// The picture of the page as a PNG file in base64.
    #[track_caller]
    pub fn screenshot(&self) -> String {
        let picture = Self::value(self.agent.get(format!("{}/screenshot", self.session)).call());
        picture.as_str().expect("a picture is a text").to_owned()
    }

    /// Ends the browser; returns the requests of its pages, also those of their workers.
    #[track_caller]
    pub fn close(self) -> Vec<PageRequest> {
        Self::value(self.agent.delete(&self.session).call());
        net_log::read(&self.net_log_file())
    }

    fn net_log_file(&self) -> PathBuf {
        self.directory.path().join("net-log.json")
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.agent.post(format!("{}{path}", self.session));
        Self::value(request.content_type("application/json").send(body.to_string()))
    }

    #[track_caller]
    fn value(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Value {
        let mut response = response.expect("the driver answers");
        let text = response.body_mut().with_config().limit(64 << 20).read_to_string();
        let text = text.expect("the driver answers with text");
        let mut answer: Value = serde_json::from_str(&text).expect("the driver answers in JSON");
        assert!(response.status().is_success(), "chromedriver: {}", answer["value"]["message"]);
        answer["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser when its session ends.
        let _ = self.agent.delete(&self.session).call();
    }
}

/// A `chromedriver` process. Dropping it kills the process.
#[derive(Debug)]
struct DriverProcess {
    child: Child,
    /// It stays open: the driver ends if it cannot write its output.
    output: BufReader<ChildStdout>,
}

impl DriverProcess {
    fn start() -> Self {
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", free_port()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn();
        let mut child = child.expect("chromedriver; hint: `cargo xtask test browser` installs it");
        let output = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Self { child, output }
    }

    /// The port of the driver, once the driver accepts connections there.
    fn port(&mut self) -> u16 {
        let mut output = String::new();
        loop {
            let start = output.len();
            let length = self.output.read_line(&mut output).expect("read the output of the driver");
            assert!(length > 0, "chromedriver has ended without a port: {output}");
            if let Some((_, port)) = output[start..].split_once("started successfully on port ") {
                return port.trim().trim_end_matches('.').parse().expect("a port is a number");
            }
        }
    }
}

/// A port that is free in IPv4 and in IPv6, from a range below the one that the kernel uses for connections. With
/// `--port=0` the driver asks the kernel for a free port of IPv6, and ends if a closed connection still uses the same
/// port of IPv4.
fn free_port() -> u16 {
    // Closed connections of an earlier driver may still use its port.
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    let addresses = |port| [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    let is_free = |address: &SocketAddr| match TcpListener::bind(address) {
        Ok(_) => true,
        // Without IPv6, the driver uses IPv4 alone.
        Err(error) => error.kind() == std::io::ErrorKind::AddrNotAvailable,
    };
    let mut ports = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| addresses(*port).iter().all(is_free)).expect("a free port")
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
