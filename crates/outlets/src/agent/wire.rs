//! The bytes between a monitor and Neutron's agent: HTTP, as far as each side goes.
//!
//! Every server generation looks at two headers only, whatever the method. Since Neutron 27
//! the server reads once, 4,096 bytes at most, and answers with bare line feeds, a stray
//! apostrophe and no blank line; a strict parser calls that incomplete. What all of them
//! get right is the status line.

use vipwatch_core::InstanceId;

/// The request that says `word` about `instance`, small enough for one read at the other end.
///
/// Both come from closed sets (see [`InstanceId`]): there is nothing to escape.
pub fn request(instance: &InstanceId, word: &str) -> Vec<u8> {
    // `Connection: close`: servers up to 26 would keep one of their few workers on an idle
    // connection (bug 1923633).
    format!(
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: vipwatch/{}\r\n\
         X-Neutron-Router-Id: {instance}\r\nX-Neutron-State: {word}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
    )
    .into_bytes()
}

/// How far the answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentAnswer {
    /// Too little to tell.
    Incomplete,
    /// A status line with this code.
    Status(u16),
    /// Not HTTP.
    Garbage,
}

/// Bytes of `HTTP/1.1 200`: all that is ever looked at.
pub const ENOUGH: usize = 12;

/// Reads the status from the first bytes of an answer.
pub fn answer(bytes: &[u8]) -> AgentAnswer {
    // `#` stands for a digit.
    const PATTERN: &[u8; ENOUGH] = b"HTTP/1.# ###";
    let fits = |(byte, pattern): (&u8, &u8)| match pattern {
        b'#' => byte.is_ascii_digit(),
        other => byte == other,
    };
    if !bytes.iter().zip(PATTERN).all(fits) || bytes.get(ENOUGH).is_some_and(u8::is_ascii_digit) {
        return AgentAnswer::Garbage;
    }
    let Some(code) = bytes.get(9..ENOUGH) else {
        return AgentAnswer::Incomplete;
    };
    AgentAnswer::Status(code.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_request_is_one_small_complete_http_message() {
        let id = "a".repeat(InstanceId::LIMIT).parse().unwrap();
        let request = request(&id, "primary");
        assert!(request.len() < 4096);
        let text = String::from_utf8(request).unwrap();
        assert!(text.starts_with("GET / HTTP/1.1\r\n") && text.ends_with("\r\n\r\n"));
        assert!(text.contains("\r\nX-Neutron-State: primary\r\n"));
        assert!(text.contains("\r\nConnection: close\r\n"));
    }

    #[test]
    fn every_server_generation_is_understood() {
        let eventlet = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: 0\r\n\r\n";
        let threaded = b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\nConnection: close\nContent-Location': http://127.0.0.1/";
        assert_eq!(answer(eventlet), AgentAnswer::Status(200));
        assert_eq!(answer(threaded), AgentAnswer::Status(200));
        assert_eq!(answer(b"HTTP/1.0 500 Internal Server Error\r\n"), AgentAnswer::Status(500));
    }

    #[test]
    fn an_answer_is_judged_as_soon_as_it_can_be() {
        let whole = b"HTTP/1.1 404";
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length]), AgentAnswer::Incomplete);
        }
        assert_eq!(answer(whole), AgentAnswer::Status(404));
        for noise in [&b"x"[..], b"HTTP/2 200 OK", b"HTTP/1.1 2000", b"\0\0\0", b"HTTP/1.1 2x0"] {
            assert_eq!(answer(noise), AgentAnswer::Garbage, "{noise:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(noise in prop::collection::vec(any::<u8>(), 0..40)) {
            if let AgentAnswer::Status(code) = answer(&noise) {
                prop_assert!(code < 1000);
            }
        }
    }
}
