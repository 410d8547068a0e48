//! What a monitor is answered: valid HTTP, and a reason where it is no.

use std::borrow::Cow;

use vipwatch_core::escape_untrusted;

/// What nearly everybody is answered.
const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\n\
                       Content-Length: 0\r\nConnection: close\r\n\r\n";

/// The answers there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is in the journal, and will be acted on.
    Taken,
    /// It is not a report, for this reason.
    Refused(String),
    /// Whoever asks may not.
    Forbidden,
    /// It took too long to say it.
    TooSlow,
    /// Nothing can be promised now, for this reason; ask again.
    Unable(String),
}

impl Reply {
    fn status(&self) -> &'static str {
        match self {
            Self::Taken => "200 OK",
            Self::Refused(_) => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::TooSlow => "408 Request Timeout",
            Self::Unable(_) => "503 Service Unavailable",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Taken => String::new(),
            // A reason may hold what a stranger said.
            Self::Refused(why) | Self::Unable(why) => format!("{}\n", escape_untrusted(why)),
            Self::Forbidden => "your user may not report here\n".to_owned(),
            Self::TooSlow => "the request did not end in time\n".to_owned(),
        }
    }

    /// The bytes, and whether the connection is kept.
    pub fn bytes(&self, is_kept: bool) -> Cow<'static, [u8]> {
        if *self == Self::Taken && !is_kept {
            return Cow::Borrowed(TAKEN);
        }
        let (status, text) = (self.status(), self.text());
        let connection = if is_kept { "keep-alive" } else { "close" };
        let again = if matches!(self, Self::Unable(_)) { "Retry-After: 1\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Length: {}\r\n\
             {again}Connection: {connection}\r\n\r\n{text}",
            text.len()
        )
        .into_bytes()
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reply: &Reply, is_kept: bool) -> String {
        String::from_utf8(reply.bytes(is_kept).into_owned()).unwrap()
    }

    #[test]
    fn an_answer_is_whole_and_says_how_long_it_is() {
        let refused = text(&Reply::Refused("a\r\nb".to_owned()), false);
        let (head, body) = refused.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(head.ends_with("Connection: close"));
        assert_eq!(body, "a\\r\\nb\n");
        let taken = text(&Reply::Taken, true);
        assert!(taken.ends_with("Content-Length: 0\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(text(&Reply::Taken, false), taken.replace("keep-alive", "close"));
        assert!(text(&Reply::Unable(String::new()), false).contains("Retry-After"));
    }
}
