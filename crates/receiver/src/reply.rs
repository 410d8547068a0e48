// SPDX-License-Identifier: Apache-2.0
//! The receiver's HTTP replies to monitors.

use std::borrow::Cow;

use vipwatch_core::escape_untrusted;

/// The reply to nearly every report, ready to send.
const STORED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\n\
                        Content-Length: 0\r\nConnection: close\r\n\r\n";

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 200: the report is in the journal.
    Stored,
    /// 400: the request is not a valid report, for this reason.
    BadRequest(String),
    /// 403: the peer's user may not report.
    Forbidden,
    /// 408: the request was not complete in time.
    Timeout,
    /// 503: the report could not be stored, for this reason. The monitor keeps it and tries again.
    Unavailable(String),
}

impl Reply {
    fn status(&self) -> &'static str {
        match self {
            Self::Stored => "200 OK",
            Self::BadRequest(_) => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::Timeout => "408 Request Timeout",
            Self::Unavailable(_) => "503 Service Unavailable",
        }
    }

    fn body(&self) -> String {
        match self {
            Self::Stored => String::new(),
            // The reason may contain text from the request.
            Self::BadRequest(reason) => {
                format!("report rejected: {}\n", escape_untrusted(reason))
            }
            Self::Forbidden => "report rejected: user not in \"allow\"\n".to_owned(),
            Self::Timeout => "report rejected: request not complete in time\n".to_owned(),
            Self::Unavailable(reason) => {
                format!("report not stored: {}\n", escape_untrusted(reason))
            }
        }
    }

    /// The bytes to send. `is_keep_alive`: the connection stays open for the next request.
    pub fn bytes(&self, is_keep_alive: bool) -> Cow<'static, [u8]> {
        if *self == Self::Stored && !is_keep_alive {
            return Cow::Borrowed(STORED);
        }
        let (status, body) = (self.status(), self.body());
        let connection = if is_keep_alive { "keep-alive" } else { "close" };
        let is_temporary = matches!(self, Self::Unavailable(_));
        let retry = if is_temporary { "Retry-After: 1\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Length: {}\r\n\
             {retry}Connection: {connection}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reply: &Reply, is_keep_alive: bool) -> String {
        String::from_utf8(reply.bytes(is_keep_alive).into_owned()).unwrap()
    }

    #[test]
    fn a_reply_has_its_content_length_and_an_escaped_body() {
        let rejected = text(&Reply::BadRequest("a\r\nb".to_owned()), false);
        let (head, body) = rejected.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(head.ends_with("Connection: close"));
        assert_eq!(body, "report rejected: a\\r\\nb\n");
        let stored = text(&Reply::Stored, true);
        assert!(stored.ends_with("Content-Length: 0\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(text(&Reply::Stored, false), stored.replace("keep-alive", "close"));
        assert!(text(&Reply::Unavailable(String::new()), false).contains("Retry-After"));
    }
}
