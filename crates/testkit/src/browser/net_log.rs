// SPDX-License-Identifier: Apache-2.0
//! The requests in Chromium's log of its network stack. Unlike the developer tools of a page, it has those of workers too.

use std::path::Path;

use serde_json::Value;

/// A request that a page has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// The complete address.
    pub url: String,
    /// The origin of the page or worker that made it.
    pub initiator: String,
}

/// The requests of pages. Requests of the browser itself have no initiator.
pub(super) fn read(file: &Path) -> Vec<PageRequest> {
    let log = std::fs::read_to_string(file).expect("read the log of the network stack");
    log.lines().filter_map(request).collect()
}

/// The request in one line of the log: an event is a line.
fn request(line: &str) -> Option<PageRequest> {
    let event: Value = serde_json::from_str(line.trim_end_matches([',', '\r'])).ok()?;
    let parameters = &event["params"];
    let initiator = parameters["initiator"].as_str().filter(|text| text.starts_with("http"))?;
    let url = parameters["url"].as_str()?.to_owned();
    Some(PageRequest { url, initiator: initiator.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_page_is_recognized_by_its_initiator() {
        let of_page = r#"{"params":{"initiator":"http://127.0.0.1:1","url":"http://127.0.0.1:1/x"},"type":2},"#;
        let read = request(of_page).unwrap();
        assert_eq!(
            (read.url.as_str(), read.initiator.as_str()),
            ("http://127.0.0.1:1/x", "http://127.0.0.1:1")
        );
        for other in [
            r#"{"params":{"initiator":"not an origin","url":"http://a/"},"type":2},"#,
            r#"{"params":{"url":"http://a/"},"type":2},"#,
            r#"{"constants": {"#,
            "",
        ] {
            assert_eq!(request(other), None, "{other}");
        }
    }
}
