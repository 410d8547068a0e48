//! Drives Debian's Chromium through its `chromedriver` (W3C `WebDriver`), in the namespace of a node.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{TestNetns, wait_for, wait_within_showing};

use crate::TaskError;

/// The address of `chromedriver`.
const ADDRESS: &str = "127.0.0.1:9515";

/// Maximum time of one command, and until a page shows its content.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The colours that a page is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Scheme {
    Light,
    Dark,
}

/// A browser without a window. It ends when this value is dropped.
pub struct Browser<'a> {
    driver: Child,
    netns: &'a TestNetns,
    session: String,
}

impl<'a> Browser<'a> {
    /// Starts `chromedriver` and a browser in `netns`.
    pub fn start(netns: &'a TestNetns) -> Result<Self, TaskError> {
        // A session of its own: `chromedriver` ends all processes of its group.
        let mut command = netns.command("setsid");
        command.args(["chromedriver", "--port=9515"]).stdin(Stdio::null()).stdout(Stdio::null());
        let driver = command.stderr(Stdio::null()).spawn()?;
        let mut browser = Self { driver, netns, session: String::new() };
        wait_for("chromedriver", || browser.send("GET", "/status", None).ok());
        // The sandbox of the command is one for the browser, too; Chromium's own needs a user other than root.
        let options = json!({ "args": ["--headless=new", "--no-sandbox", "--hide-scrollbars"] });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let answer = browser.send("POST", "/session", Some(&wanted))?;
        let session = answer["sessionId"].as_str().ok_or("chromedriver names no session")?;
        browser.session = format!("/session/{session}");
        Ok(browser)
    }

    /// Opens a page in a window of this size.
    pub fn show(
        &self,
        url: &str,
        width: u32,
        height: u32,
        scheme: Scheme,
    ) -> Result<(), TaskError> {
        let is_phone = width < 600;
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 2, "mobile": is_phone }),
        )?;
        let scheme = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": feature }))?;
        // Another page first: a new fragment alone does not load the page again.
        self.command("/url", &json!({ "url": "about:blank" }))?;
        self.command("/url", &json!({ "url": url })).map(drop)
    }

    /// Waits until the page contains `text`.
    pub fn wait_for_text(&self, text: &str, page: &str) {
        let script = json!({ "script": "return document.documentElement.outerHTML", "args": [] });
        let html = || {
            let answer = self.command("/execute/sync", &script).ok();
            answer.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let what = format!("{text} on the page {page}");
        wait_within_showing(PAGE_TIMEOUT, &what, html, || html().contains(text).then_some(()));
    }

    /// The window as a PNG file.
    pub fn picture(&self) -> Result<Vec<u8>, TaskError> {
        let answer = self.send("GET", &format!("{}/screenshot", self.session), None)?;
        let text = answer.as_str().ok_or("chromedriver returns no picture")?;
        decode_base64(text).ok_or_else(|| TaskError("the picture is not base64".to_owned()))
    }

    /// A command of the `DevTools` protocol, for settings that `WebDriver` does not have.
    fn devtools(&self, command: &str, parameters: &Value) -> Result<Value, TaskError> {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn command(&self, path: &str, body: &Value) -> Result<Value, TaskError> {
        self.send("POST", &format!("{}{path}", self.session), Some(body))
    }

    /// Sends a request, and returns the value of the answer.
    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, TaskError> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut stream = self.netns.visit(|| TcpStream::connect(ADDRESS))?;
        stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {ADDRESS}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let (is_success, body) = read_answer(&mut BufReader::new(stream))?;
        let mut document: Value = serde_json::from_slice(&body)?;
        if is_success {
            return Ok(document["value"].take());
        }
        Err(TaskError(format!("chromedriver: {path}: {}", document["value"]["message"])))
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.send("DELETE", &self.session, None);
        }
        let _ = self.driver.kill();
        let _ = wait_within(Duration::from_secs(10), "the end of chromedriver", || {
            self.driver.try_wait().ok().flatten()
        });
    }
}

/// Reads an answer: whether its status is 200, and its body. `chromedriver` does not close the connection after it.
fn read_answer(stream: &mut impl BufRead) -> Result<(bool, Vec<u8>), TaskError> {
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status.split(' ').nth(1) == Some("200"), body))
}

/// The bytes of a text in base64 (RFC 4648, section 4); `None` if it is not valid.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | u32::from(value(*digit)?);
        }
        bits <<= 6 * (4 - group.len());
        let [_, decoded @ ..] = bits.to_be_bytes();
        bytes.extend_from_slice(&decoded[..group.len().checked_sub(1)?]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body_of_the_given_length() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length:2\r\nother: 1\r\n\r\n{}rest";
        let (is_success, body) = read_answer(&mut text.as_bytes()).ok().unwrap();
        assert_eq!((is_success, body.as_slice()), (true, &b"{}"[..]));
        assert!(read_answer(&mut &b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"[..]).is_err());
    }

    #[test]
    fn base64_of_every_length_is_decoded() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")]
        {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode_base64("Z!=="), None);
    }
}
