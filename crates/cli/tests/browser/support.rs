// SPDX-License-Identifier: Apache-2.0
//! A node with its dashboard in a browser.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vipwatch_testkit::wait::wait_within_showing;
use vipwatch_testkit::{Browser, Lab, NodeFixture, TestNetns};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_vipwatch");

/// Time limit for a fact on the page: the browser shares the processors with everything else.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);

/// The tabulator key and the enter key in the protocol of the driver.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";

/// A namespace with the link `eth0`, and a node with these instances of that namespace, which listens on a free port.
pub(crate) fn node_with_instances(lab: &Lab, instances: &str) -> (TestNetns, NodeFixture) {
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let fixture = node_fixture(lab);
    let text = format!("net_namespace {}\n{instances}", netns.name());
    write(&fixture.keepalived_conf(), &text);
    configure(&fixture, "127.0.0.1:0", "");
    (netns, fixture)
}

pub(crate) fn node_fixture(lab: &Lab) -> NodeFixture {
    NodeFixture::new(Path::new(PROGRAM), lab.path())
}

/// Replaces a file in one step, so that no reader sees an incomplete file.
pub(crate) fn write(path: &Path, text: &str) {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.persist(path).unwrap();
}

/// Writes the configuration of a node that listens on `address`.
pub(crate) fn configure(fixture: &NodeFixture, address: &str, more: &str) {
    fixture.configure(&format!("[web]\nlisten = \"{address}\"\n{more}"));
}

/// The text of a keepalived instance with one address, on `link`.
pub(crate) fn instance(name: &str, vrid: usize, link: &str, address: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n interface {link}\n virtual_router_id {vrid}\n priority 100\n \
         virtual_ipaddress {{\n  {address}\n }}\n}}\n"
    )
}

/// The address on which the node listens, from the log of its last start.
pub(crate) fn web_address(fixture: &NodeFixture) -> SocketAddr {
    fixture.wait_for_log("node is ready");
    let log = fixture.log();
    let line = log.lines().rfind(|line| line.contains("web server listens")).unwrap();
    let word = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
    word.unwrap().trim_matches('"').parse().unwrap()
}

/// The numbers of the transitions in the node's history, the newest first.
pub(crate) fn recorded(fixture: &NodeFixture) -> Vec<String> {
    let output = fixture.run(&["history", "-n", "1000", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = answer["items"].as_array().unwrap().iter().rev();
    items.filter(|item| item["type"] == "transition").map(|item| item["seq"].to_string()).collect()
}

/// A browser with the dashboard of a node.
pub(crate) struct Page {
    pub(crate) browser: Browser,
    address: SocketAddr,
}

impl Page {
    /// Starts a browser and opens a view, for example `#/history`.
    #[track_caller]
    pub(crate) fn open(address: SocketAddr, view: &str) -> Self {
        let page = Self::open_before_live(address, view);
        page.wait_for_text("#link-text", "live");
        page
    }

    /// As [`Self::open`], without waiting for the events.
    #[track_caller]
    pub(crate) fn open_before_live(address: SocketAddr, view: &str) -> Self {
        let page = Self { browser: Browser::start(), address };
        page.visit(view);
        page
    }

    /// Opens a view of the page.
    #[track_caller]
    pub(crate) fn visit(&self, view: &str) {
        self.browser.open(&format!("http://{}/{view}", self.address));
    }

    /// Waits until a script returns true.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, script: &str) {
        wait_within_showing(
            PAGE_TIMEOUT,
            what,
            || format!("{}\n{:?}", self.browser.text("body"), self.browser.console()),
            || (self.browser.run(&format!("return Boolean({script})")) == true).then_some(()),
        );
    }

    /// Waits until the first element that a selector matches has this text.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, selector: &str, expected: &str) {
        let script = format!(
            "document.querySelector({selector:?})?.innerText.replace(/\\s+/g, ' ').trim() === {expected:?}"
        );
        self.wait_for(&format!("{selector} to be {expected:?}"), &script);
    }

    /// Waits until the page shows a text somewhere.
    #[track_caller]
    pub(crate) fn wait_for_content(&self, expected: &str) {
        let script = format!("document.body.innerText.includes({expected:?})");
        self.wait_for(&format!("{expected:?} on the page"), &script);
    }

    /// Clicks the first element that a selector matches.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.wait_for(selector, &format!("document.querySelector({selector:?})"));
        self.browser.run(&format!("document.querySelector({selector:?}).click()"));
    }

    /// The fragment of the address: the view and its parameters.
    #[track_caller]
    pub(crate) fn fragment(&self) -> String {
        self.browser.run("return location.hash").as_str().unwrap().to_owned()
    }

    /// The texts of all elements that a selector matches.
    #[track_caller]
    pub(crate) fn texts(&self, selector: &str) -> Vec<String> {
        let script = format!(
            "return [...document.querySelectorAll({selector:?})].map((one) => one.innerText.trim())"
        );
        let found = self.browser.run(&script);
        found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    /// Marks the page: a page that is loaded again has no mark.
    pub(crate) fn mark(&self) {
        self.browser.run("window.isSamePage = true");
    }

    #[track_caller]
    pub(crate) fn check_mark(&self) {
        assert_eq!(self.browser.run("return window.isSamePage"), Value::Bool(true), "loaded again");
    }

    /// Fails if something is wider than the page.
    #[track_caller]
    pub(crate) fn check_width(&self) {
        let widths = self.browser.run(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]",
        );
        assert!(widths[0].as_u64() <= widths[1].as_u64(), "{}: {widths}", self.fragment());
    }

    /// Ends the browser. Fails if the console has an error, or if a request went to another host.
    #[track_caller]
    pub(crate) fn close(self) {
        let console = self.browser.console();
        let errors: Vec<&String> = console
            .iter()
            .filter(|line| line.contains("SEVERE") || line.contains("WARN"))
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
        self.close_after_errors();
    }

    /// As [`Self::close`], for a test in which the node was not reachable for a time.
    #[track_caller]
    pub(crate) fn close_after_errors(self) {
        let own = format!("http://{}/", self.address);
        let requests = self.browser.close();
        let foreign: Vec<_> =
            requests.iter().filter(|request| !request.url.starts_with(&own)).collect();
        assert!(foreign.is_empty(), "requests to other hosts: {foreign:?}");
        for path in ["assets/main.js", "assets/worker.js", "v1/instances", "v1/events"] {
            let url = format!("{own}{path}");
            assert!(requests.iter().any(|request| request.url == url), "{url}: {requests:?}");
        }
    }
}
