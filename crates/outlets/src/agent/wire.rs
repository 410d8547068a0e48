// SPDX-License-Identifier: Apache-2.0
//! The HTTP request to Neutron's agent, and the part of its answer that is read: the status.
//!
//! Every version of the agent reads only two headers, with any method. Since Neutron 27 the agent reads once, at most
//! 4,096 bytes, and answers with bare line feeds, a wrong apostrophe and no blank line; a strict parser waits for the
//! rest. The status line is correct in all versions.

use vipwatch_core::InstanceId;

/// The request that reports the state `word` of `instance`. It is small enough for one read of the agent.
///
/// Neither argument needs escaping: `word` is one of a few constants, and [`InstanceId`] allows only safe characters.
pub fn request(instance: &InstanceId, word: &str) -> Vec<u8> {
    // `Connection: close`: agents up to Neutron 26 would block one of their few workers with an idle connection
    // (bug 1923633).
    format!(
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: vipwatch/{}\r\n\
         X-Neutron-Router-Id: {instance}\r\nX-Neutron-State: {word}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
    )
    .into_bytes()
}

/// The status in the bytes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentAnswer {
    /// More bytes are needed.
    Incomplete,
    /// A status line with this code.
    Status(u16),
    /// Not HTTP.
    Garbage,
}

/// Length of `HTTP/1.1 200`; later bytes of an answer are ignored.
pub const STATUS_BYTES: usize = 12;

/// Reads the status from the first bytes of an answer.
pub fn answer(bytes: &[u8]) -> AgentAnswer {
    // `#` matches any digit.
    const PATTERN: &[u8; STATUS_BYTES] = b"HTTP/1.# ###";
    let fits = |(byte, pattern): (&u8, &u8)| match pattern {
        b'#' => byte.is_ascii_digit(),
        other => byte == other,
    };
    if !bytes.iter().zip(PATTERN).all(fits)
        || bytes.get(STATUS_BYTES).is_some_and(u8::is_ascii_digit)
    {
        return AgentAnswer::Garbage;
    }
    let Some(code) = bytes.get(9..STATUS_BYTES) else {
        return AgentAnswer::Incomplete;
    };
    AgentAnswer::Status(code.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_request_is_a_complete_http_message_of_less_than_4096_bytes() {
        let id = "a".repeat(InstanceId::LIMIT).parse().unwrap();
        let request = request(&id, "primary");
        assert!(request.len() < 4096);
        let text = String::from_utf8(request).unwrap();
        assert!(text.starts_with("GET / HTTP/1.1\r\n") && text.ends_with("\r\n\r\n"));
        assert!(text.contains("\r\nX-Neutron-State: primary\r\n"));
        assert!(text.contains("\r\nConnection: close\r\n"));
    }

    #[test]
    fn the_status_of_every_agent_version_is_read() {
        let eventlet = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: 0\r\n\r\n";
        let threaded = b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\nConnection: close\nContent-Location': http://127.0.0.1/";
        assert_eq!(answer(eventlet), AgentAnswer::Status(200));
        assert_eq!(answer(threaded), AgentAnswer::Status(200));
        assert_eq!(answer(b"HTTP/1.0 500 Internal Server Error\r\n"), AgentAnswer::Status(500));
    }

    #[test]
    fn the_status_is_read_as_soon_as_it_is_complete() {
        let whole = b"HTTP/1.1 404";
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length]), AgentAnswer::Incomplete);
        }
        assert_eq!(answer(whole), AgentAnswer::Status(404));
        for garbage in [&b"x"[..], b"HTTP/2 200 OK", b"HTTP/1.1 2000", b"\0\0\0", b"HTTP/1.1 2x0"] {
            assert_eq!(answer(garbage), AgentAnswer::Garbage, "{garbage:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let AgentAnswer::Status(code) = answer(&bytes) {
                prop_assert!(code < 1000);
            }
        }
    }
}
