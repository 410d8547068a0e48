// SPDX-License-Identifier: Apache-2.0
//! Parses the HTTP request of a monitor of any Neutron release, in however many pieces it arrives.
//!
//! Only two headers matter, with any method: `X-Neutron-Router-Id` and `X-Neutron-State`. Like Neutron's own
//! server, the parser accepts lines that end with LF or CRLF, and header names in any case. Unlike Neutron's
//! server, it waits for the blank line, and an error names the invalid part.

use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;

/// Maximum length of a request's head. Neutron's server reads 4 KiB.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// Maximum length of a body, which the receiver skips. A monitor sends none.
const MAX_BODY_BYTES: usize = 64 << 10;

/// A report from a monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The router that the report is about.
    pub instance: InstanceId,
    /// The state that the monitor reports.
    pub state: ReportedState,
    /// Whether the monitor may send another request on this connection.
    pub is_keep_alive: bool,
}

/// Why a request is not a valid report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The first line is not `METHOD TARGET HTTP/VERSION`.
    #[error("invalid request line, expected METHOD TARGET HTTP/VERSION")]
    RequestLine,
    /// A header line has no colon.
    #[error("invalid header line: no colon")]
    HeaderLine,
    /// The head is not UTF-8.
    #[error("invalid head: not UTF-8")]
    NotText,
    /// The head has no end within [`MAX_HEAD_BYTES`].
    #[error("HTTP head longer than {MAX_HEAD_BYTES} bytes")]
    HeadTooLong,
    /// The body is too long or chunked, or its length is not a number.
    #[error("body longer than {MAX_BODY_BYTES} bytes, or without a valid Content-Length")]
    Body,
    /// A required header is missing.
    #[error("missing header {0}")]
    MissingHeader(&'static str),
    /// A header occurs twice.
    #[error("duplicate header {0}")]
    DuplicateHeader(&'static str),
    /// The router id is not a valid instance id.
    #[error("invalid X-Neutron-Router-Id: {0}")]
    RouterId(String),
    /// The state word is unknown.
    #[error("invalid X-Neutron-State, expected primary, backup, fault or unknown")]
    State,
}

impl RequestError {
    /// The label under which rejected requests are counted.
    pub fn label(&self) -> &'static str {
        match self {
            Self::RequestLine => "start_line",
            Self::HeaderLine => "header_line",
            Self::NotText => "not_text",
            Self::HeadTooLong => "too_long",
            Self::Body => "body",
            Self::MissingHeader(_) => "missing_header",
            Self::DuplicateHeader(_) => "header_twice",
            Self::RouterId(_) => "bad_id",
            Self::State => "unknown_word",
        }
    }
}

/// Result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// The request is not complete.
    Incomplete,
    /// A complete report, and the length of its request in bytes.
    Report(Report, usize),
    /// The request is not a report.
    Rejected(RequestError),
}

const ROUTER_ID: &str = "X-Neutron-Router-Id";
const STATE: &str = "X-Neutron-State";

/// Parses the request at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> RequestProgress {
    let Some(head) = head_length(bytes) else {
        return match bytes.len() {
            length if length >= MAX_HEAD_BYTES => {
                RequestProgress::Rejected(RequestError::HeadTooLong)
            }
            _ => RequestProgress::Incomplete,
        };
    };
    if head > MAX_HEAD_BYTES {
        return RequestProgress::Rejected(RequestError::HeadTooLong);
    }
    match parse_head(&bytes[..head]) {
        Ok((report, body)) if bytes.len() >= head + body => {
            RequestProgress::Report(report, head + body)
        }
        Ok(_) => RequestProgress::Incomplete,
        Err(error) => RequestProgress::Rejected(error),
    }
}

/// Length of the head in bytes, including the blank line that ends it; `None` if it has no end yet.
fn head_length(bytes: &[u8]) -> Option<usize> {
    let mut begin = 0;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        let line = bytes[begin..at].strip_suffix(b"\r").unwrap_or(&bytes[begin..at]);
        // A blank line before the request line does not end the head.
        if line.is_empty() && begin > 0 {
            return Some(at + 1);
        }
        begin = at + 1;
    }
    None
}

/// The report in a complete head, and the length of the body in bytes.
fn parse_head(head: &[u8]) -> Result<(Report, usize), RequestError> {
    let text = std::str::from_utf8(head).map_err(|_error| RequestError::NotText)?;
    let mut lines = text.lines().skip_while(|line| line.is_empty());
    let start: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let [_, _, version] = *start.as_slice() else { return Err(RequestError::RequestLine) };
    if !version.starts_with("HTTP/") {
        return Err(RequestError::RequestLine);
    }
    let (mut id, mut state, mut body) = (None, None, 0);
    // RFC 9112, section 9.3: connections persist from HTTP/1.1 on, unless one side sends "Connection: close".
    let mut is_keep_alive = version == "HTTP/1.1";
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(RequestError::HeaderLine)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case(ROUTER_ID) {
            set_once(&mut id, value, ROUTER_ID)?;
        } else if name.eq_ignore_ascii_case(STATE) {
            set_once(&mut state, value, STATE)?;
        } else if name.eq_ignore_ascii_case("Connection") {
            is_keep_alive = !value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("Content-Length") {
            let length = value.parse().ok().filter(|length| *length <= MAX_BODY_BYTES);
            body = length.ok_or(RequestError::Body)?;
        } else if name.eq_ignore_ascii_case("Transfer-Encoding") {
            return Err(RequestError::Body);
        }
    }
    let id = id.ok_or(RequestError::MissingHeader(ROUTER_ID))?;
    let state = state.ok_or(RequestError::MissingHeader(STATE))?;
    let instance = id.parse().map_err(|error| RequestError::RouterId(format!("{error}")))?;
    let state = ReportedState::parse(state).ok_or(RequestError::State)?;
    Ok((Report { instance, state, is_keep_alive }, body))
}

/// Stores a header's value; an error if the header had a value already.
fn set_once<'t>(
    field: &mut Option<&'t str>,
    value: &'t str,
    header: &'static str,
) -> Result<(), RequestError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(RequestError::DuplicateHeader(header)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CURL: &str = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\
                        X-Neutron-Router-Id: 5c7d-1\r\nX-Neutron-State: primary\r\nConnection: close\r\n\r\n";
    const HTTPLIB2: &str = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx-neutron-router-id: 5c7d-1\r\n\
                            x-neutron-state: master\r\nuser-agent: Python-httplib2/0.9 (gzip)\r\n\
                            accept-encoding: gzip, deflate\r\n\r\n";

    fn report(state: ReportedState, is_keep_alive: bool) -> Report {
        Report { instance: "5c7d-1".parse().unwrap(), state, is_keep_alive }
    }

    #[test]
    fn a_report_of_every_monitor_generation_is_parsed() {
        let parse = |text: &str| parse(text.as_bytes());
        assert_eq!(
            parse(CURL),
            RequestProgress::Report(report(ReportedState::Primary, false), CURL.len())
        );
        assert_eq!(
            parse(HTTPLIB2),
            RequestProgress::Report(report(ReportedState::Primary, true), HTTPLIB2.len())
        );
        let bare = HTTPLIB2.replace("\r\n", "\n").replace("master", "backup");
        assert_eq!(
            parse(&bare),
            RequestProgress::Report(report(ReportedState::Backup, true), bare.len())
        );
    }

    #[test]
    fn an_incomplete_request_is_awaited_and_a_following_one_is_not_consumed() {
        for length in 0..CURL.len() {
            assert_eq!(parse(&CURL.as_bytes()[..length]), RequestProgress::Incomplete, "{length}");
        }
        let first = || report(ReportedState::Primary, false);
        // The report of another router after it changes nothing.
        let two = format!("{CURL}{}", HTTPLIB2.replace("5c7d-1", "5c7d-2"));
        assert_eq!(parse(two.as_bytes()), RequestProgress::Report(first(), CURL.len()));
        let body = CURL.replace("Accept: */*", "Content-Length: 3");
        assert_eq!(parse(body.as_bytes()), RequestProgress::Incomplete);
        let whole = format!("{body}abc");
        assert_eq!(parse(whole.as_bytes()), RequestProgress::Report(first(), whole.len()));
    }

    #[test]
    fn each_kind_of_invalid_request_has_its_label() {
        let cases = [
            ("hello\r\n\r\n", "start_line"),
            ("GET / FTP/1\r\n\r\n", "start_line"),
            ("GET / HTTP/1.1\r\nnonsense\r\n\r\n", "header_line"),
            ("GET / HTTP/1.1\r\n\r\n", "missing_header"),
            ("GET / HTTP/1.1\nX-Neutron-Router-Id: a\n\n", "missing_header"),
            ("GET / HTTP/1.1\nX-Neutron-Router-Id: a\nX-Neutron-Router-Id: b\n\n", "header_twice"),
            ("GET / HTTP/1.1\nX-Neutron-Router-Id: a/b\nX-Neutron-State: backup\n\n", "bad_id"),
            ("GET / HTTP/1.1\nX-Neutron-Router-Id: a\nX-Neutron-State: boss\n\n", "unknown_word"),
            ("GET / HTTP/1.1\nContent-Length: 99999999\n\n", "body"),
            ("GET / HTTP/1.1\nTransfer-Encoding: chunked\n\n", "body"),
        ];
        for (text, expected) in cases {
            match parse(text.as_bytes()) {
                RequestProgress::Rejected(error) => {
                    assert_eq!(error.label(), expected, "{text:?}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let endless = vec![b'x'; MAX_HEAD_BYTES];
        assert_eq!(parse(&endless), RequestProgress::Rejected(RequestError::HeadTooLong));
        assert_eq!(parse(b"\xff\xfe\n\n"), RequestProgress::Rejected(RequestError::NotText));
    }

    /// Damages one byte outside the id and the two characters around it, and truncates the request in three ways.
    #[test]
    fn a_damaged_byte_outside_the_id_never_changes_router_or_state() {
        let id = CURL.find("5c7d-1").unwrap();
        // A character that replaces the space before the id, or the line end after it, becomes part of the id.
        let id_with_ends = id - 1..id + "5c7d-1\n".len();
        let original = CURL.as_bytes();
        for at in (0..original.len()).filter(|at| !id_with_ends.contains(at)) {
            for byte in 0..=u8::MAX {
                let mut bytes = original.to_vec();
                bytes[at] = byte;
                for cut in [bytes.len(), bytes.len() - 1, at + 1] {
                    if let RequestProgress::Report(report, length) = parse(&bytes[..cut]) {
                        assert!(length <= cut);
                        assert_eq!(report.instance.as_str(), "5c7d-1", "{at} {byte}");
                        assert_eq!(report.state, ReportedState::Primary, "{at} {byte}");
                    }
                }
            }
        }
    }

    /// Any byte; separators are more frequent than in random bytes.
    fn damage() -> impl Strategy<Value = u8> {
        let separators = proptest::sample::select(b"\r\n: \t\0".to_vec());
        prop_oneof![any::<u8>(), separators]
    }

    proptest! {
        #[test]
        fn random_bytes_never_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
        }

        /// Damages one byte of the id: the request is rejected, or the report is about the damaged id.
        #[test]
        fn a_damaged_id_is_rejected_or_reported_unchanged(at in 0..6_usize, byte in damage()) {
            let begin = CURL.find("5c7d-1").unwrap();
            let mut bytes = CURL.as_bytes().to_vec();
            bytes[begin + at] = byte;
            if let RequestProgress::Report(report, _) = parse(&bytes) {
                let rest = std::str::from_utf8(&bytes[begin..]).unwrap();
                prop_assert_eq!(report.instance.as_str(), rest.split('\n').next().unwrap().trim());
            }
        }
    }
}
