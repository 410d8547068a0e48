//! Reads what a monitor says, of any generation: the whole of it, however it was cut into pieces.
//!
//! Two headers matter, whatever the method: `X-Neutron-Router-Id` and `X-Neutron-State`. As Neutron's own
//! server, this takes lines that end with LF or CRLF, and names in any case. Unlike it, it waits for the
//! blank line, and says what is wrong.

use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;

/// The longest head that is read: Neutron's server reads 4 KiB of it.
pub const LONGEST: usize = 8 << 10;

/// The longest body that is skipped; a report has none.
const LONGEST_BODY: usize = 64 << 10;

/// A report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// About whom.
    pub instance: InstanceId,
    /// What is claimed.
    pub state: ReportedState,
    /// Whether more may come on this connection.
    pub is_kept: bool,
}

/// Why a request is not a report; each is counted by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The first line is not that of a request.
    #[error("the first line is not METHOD TARGET VERSION")]
    StartLine,
    /// A line is not a header.
    #[error("a header line has no colon")]
    HeaderLine,
    /// Something that is no text.
    #[error("the head is not text")]
    NotText,
    /// The head does not end.
    #[error("the head is longer than {LONGEST} bytes")]
    TooLong,
    /// The body is too long, or its length is no number.
    #[error("the body is longer than {LONGEST_BODY} bytes, or has no proper length")]
    Body,
    /// A header is missing.
    #[error("there is no {0}")]
    Missing(&'static str),
    /// A header is there twice.
    #[error("{0} is there twice")]
    Twice(&'static str),
    /// The router's id is none.
    #[error("X-Neutron-Router-Id is no id: {0}")]
    Id(String),
    /// The word means nothing.
    #[error("X-Neutron-State is not primary, backup, fault or unknown")]
    Word,
}

impl RequestError {
    /// One word for it, to count by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::StartLine => "start_line",
            Self::HeaderLine => "header_line",
            Self::NotText => "not_text",
            Self::TooLong => "too_long",
            Self::Body => "body",
            Self::Missing(_) => "missing_header",
            Self::Twice(_) => "header_twice",
            Self::Id(_) => "bad_id",
            Self::Word => "unknown_word",
        }
    }
}

/// What has come so far.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// More is to come.
    Incomplete,
    /// A report, of so many bytes.
    Report(Report, usize),
    /// Not a report.
    Refused(RequestError),
}

const ID: &str = "X-Neutron-Router-Id";
const STATE: &str = "X-Neutron-State";

/// Reads `bytes`, which begin where a request does.
pub fn read(bytes: &[u8]) -> RequestProgress {
    let Some(head) = head_length(bytes) else {
        return match bytes.len() {
            length if length >= LONGEST => RequestProgress::Refused(RequestError::TooLong),
            _ => RequestProgress::Incomplete,
        };
    };
    if head > LONGEST {
        return RequestProgress::Refused(RequestError::TooLong);
    }
    match parse(&bytes[..head]) {
        Ok((report, body)) if bytes.len() >= head + body => {
            RequestProgress::Report(report, head + body)
        }
        Ok(_) => RequestProgress::Incomplete,
        Err(refusal) => RequestProgress::Refused(refusal),
    }
}

/// How long the head is, with the blank line that ends it.
fn head_length(bytes: &[u8]) -> Option<usize> {
    let mut begin = 0;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        let line = bytes[begin..at].strip_suffix(b"\r").unwrap_or(&bytes[begin..at]);
        // Blank lines before a request are not its end.
        if line.is_empty() && begin > 0 {
            return Some(at + 1);
        }
        begin = at + 1;
    }
    None
}

fn parse(head: &[u8]) -> Result<(Report, usize), RequestError> {
    let text = std::str::from_utf8(head).map_err(|_error| RequestError::NotText)?;
    let mut lines = text.lines().skip_while(|line| line.is_empty());
    let start: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let [_, _, version] = *start.as_slice() else { return Err(RequestError::StartLine) };
    if !version.starts_with("HTTP/") {
        return Err(RequestError::StartLine);
    }
    let (mut id, mut state, mut body) = (None, None, 0);
    // As HTTP has it: kept open from 1.1 on, unless one side says otherwise.
    let mut is_kept = version == "HTTP/1.1";
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(RequestError::HeaderLine)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case(ID) {
            once(&mut id, value, ID)?;
        } else if name.eq_ignore_ascii_case(STATE) {
            once(&mut state, value, STATE)?;
        } else if name.eq_ignore_ascii_case("Connection") {
            is_kept = !value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("Content-Length") {
            let length = value.parse().ok().filter(|length| *length <= LONGEST_BODY);
            body = length.ok_or(RequestError::Body)?;
        } else if name.eq_ignore_ascii_case("Transfer-Encoding") {
            return Err(RequestError::Body);
        }
    }
    let id = id.ok_or(RequestError::Missing(ID))?;
    let state = state.ok_or(RequestError::Missing(STATE))?;
    let instance = id.parse().map_err(|error| RequestError::Id(format!("{error}")))?;
    let state = ReportedState::parse(state).ok_or(RequestError::Word)?;
    Ok((Report { instance, state, is_kept }, body))
}

fn once<'t>(
    place: &mut Option<&'t str>,
    value: &'t str,
    name: &'static str,
) -> Result<(), RequestError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(RequestError::Twice(name)),
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

    fn report(state: ReportedState, is_kept: bool) -> Report {
        Report { instance: "5c7d-1".parse().unwrap(), state, is_kept }
    }

    #[test]
    fn every_generation_of_monitors_is_understood() {
        let read = |text: &str| read(text.as_bytes());
        assert_eq!(
            read(CURL),
            RequestProgress::Report(report(ReportedState::Primary, false), CURL.len())
        );
        assert_eq!(
            read(HTTPLIB2),
            RequestProgress::Report(report(ReportedState::Primary, true), HTTPLIB2.len())
        );
        let bare = HTTPLIB2.replace("\r\n", "\n").replace("master", "backup");
        assert_eq!(
            read(&bare),
            RequestProgress::Report(report(ReportedState::Backup, true), bare.len())
        );
    }

    #[test]
    fn a_request_in_pieces_is_waited_for_and_a_second_one_is_left() {
        for length in 0..CURL.len() {
            assert_eq!(read(&CURL.as_bytes()[..length]), RequestProgress::Incomplete, "{length}");
        }
        let first = || report(ReportedState::Primary, false);
        // Another router's report behind it changes nothing.
        let two = format!("{CURL}{}", HTTPLIB2.replace("5c7d-1", "5c7d-2"));
        assert_eq!(read(two.as_bytes()), RequestProgress::Report(first(), CURL.len()));
        let body = CURL.replace("Accept: */*", "Content-Length: 3");
        assert_eq!(read(body.as_bytes()), RequestProgress::Incomplete);
        let whole = format!("{body}abc");
        assert_eq!(read(whole.as_bytes()), RequestProgress::Report(first(), whole.len()));
    }

    #[test]
    fn what_is_wrong_is_named() {
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
            match read(text.as_bytes()) {
                RequestProgress::Refused(refusal) => {
                    assert_eq!(refusal.name(), expected, "{text:?}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let endless = vec![b'x'; LONGEST];
        assert_eq!(read(&endless), RequestProgress::Refused(RequestError::TooLong));
        assert_eq!(read(b"\xff\xfe\n\n"), RequestProgress::Refused(RequestError::NotText));
    }

    /// One damaged byte outside the id and the characters that enclose it, and any truncation.
    #[test]
    fn damage_elsewhere_never_reports_another_router_or_state() {
        let id = CURL.find("5c7d-1").unwrap();
        // A character in the place of the space before the id, or of the line end behind it, belongs to the id.
        let id_with_ends = id - 1..id + "5c7d-1\n".len();
        let original = CURL.as_bytes();
        for at in (0..original.len()).filter(|at| !id_with_ends.contains(at)) {
            for byte in 0..=u8::MAX {
                let mut bytes = original.to_vec();
                bytes[at] = byte;
                for cut in [bytes.len(), bytes.len() - 1, at + 1] {
                    if let RequestProgress::Report(read, length) = read(&bytes[..cut]) {
                        assert!(length <= cut);
                        assert_eq!(read.instance.as_str(), "5c7d-1", "{at} {byte}");
                        assert_eq!(read.state, ReportedState::Primary, "{at} {byte}");
                    }
                }
            }
        }
    }

    /// Any byte, and more often one that separates something.
    fn damage() -> impl Strategy<Value = u8> {
        let separators = proptest::sample::select(b"\r\n: \t\0".to_vec());
        prop_oneof![any::<u8>(), separators]
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
        }

        /// One damaged byte of the id: no report, or one about the id that now stands there.
        #[test]
        fn a_damaged_id_is_read_as_it_stands(at in 0..6_usize, byte in damage()) {
            let begin = CURL.find("5c7d-1").unwrap();
            let mut bytes = CURL.as_bytes().to_vec();
            bytes[begin + at] = byte;
            if let RequestProgress::Report(read, _) = read(&bytes) {
                let rest = std::str::from_utf8(&bytes[begin..]).unwrap();
                prop_assert_eq!(read.instance.as_str(), rest.split('\n').next().unwrap().trim());
            }
        }
    }
}
