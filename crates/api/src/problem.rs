// SPDX-License-Identifier: Apache-2.0
//! Errors as problem documents (RFC 9457), with a stable code.

use serde::{Deserialize, Serialize};

/// An error as the server sends it, with the content type `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProblemDocument {
    /// `urn:vipwatch:problem:CODE`, the identifier of the kind of error.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short description of the kind of error.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code. Programs decide by this field only.
    pub code: ErrorCode,
    /// What happened, with the names of the things involved.
    pub detail: String,
    /// What to do; absent if there is nothing to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ProblemDocument {
    /// A problem document with the status and the title of `code`.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:vipwatch:problem:{}", code.word()),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: detail.into(),
            hint: None,
        }
    }

    /// The same problem with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $variant:ident = $word:literal, $status:literal, $title:literal;)*) => {
        /// The stable code of an error.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[doc = $doc])* #[serde(rename = $word)] $variant,)*
            /// A code of a later release.
            #[serde(other, rename = "other")]
            Other,
        }

        // The derive macro does not see names that come from this macro.
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for ErrorCode {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                crate::openapi::words("The stable code of an error.", &[$($word,)* "other"])
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for ErrorCode {}

        impl ErrorCode {
            /// The code as it is written in documents.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* Self::Other => "other" }
            }

            /// The HTTP status.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* Self::Other => 500 }
            }

            /// A short description.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* Self::Other => "error" }
            }
        }
    };
}

codes! {
    /// A parameter, a header or the body is not valid.
    InvalidRequest = "invalid-request", 400, "the request is not valid";
    /// Over TCP, the request has no valid token.
    Unauthorized = "unauthorized", 401, "the request has no valid token";
    /// The user of the client may not use the socket.
    NotPermitted = "not-permitted", 403, "not permitted";
    /// A page of another server made the request.
    ForeignOrigin = "foreign-origin", 403, "a page of another server made the request";
    /// There is no such route.
    UnknownRoute = "unknown-route", 404, "there is no such route";
    /// No instance has this id, and no id begins with it.
    UnknownInstance = "unknown-instance", 404, "there is no such instance";
    /// No silence has this number.
    UnknownSilence = "unknown-silence", 404, "there is no such silence";
    /// This process runs no receiver.
    NoReceiver = "no-receiver", 404, "this process runs no receiver";
    /// The history file does not exist.
    NoHistory = "no-history", 404, "there is no history";
    /// The route does not support the method.
    MethodNotAllowed = "method-not-allowed", 405, "the method is not allowed";
    /// Over TCP, only requests that read are possible.
    ReadOnly = "read-only", 405, "this address is read-only";
    /// Nothing in `Accept` fits.
    NotAcceptable = "not-acceptable", 406, "no acceptable content type";
    /// The client took too long to send the request.
    RequestTimeout = "request-timeout", 408, "the request took too long";
    /// The beginning of an id matches several instances.
    AmbiguousId = "ambiguous-id", 409, "the id matches several instances";
    /// The request is too large.
    TooLarge = "too-large", 413, "the request is too large";
    /// The content type of the body is not JSON.
    UnsupportedMediaType = "unsupported-media-type", 415, "the content type is not supported";
    /// The header `Host` is not a name of this server.
    UnknownHost = "unknown-host", 421, "this server has another name";
    /// A handler of the server failed.
    Internal = "internal", 500, "internal error";
    /// The node has not published all roles yet.
    NotReady = "not-ready", 503, "the node is not ready";
    /// Too many connections are open.
    TooManyConnections = "too-many-connections", 503, "too many connections";
    /// The history cannot be read.
    HistoryUnavailable = "history-unavailable", 503, "the history cannot be read";
    /// The audit did not end in time.
    AuditTimeout = "audit-timeout", 504, "the audit did not end in time";
    /// The reload did not end in time.
    ReloadTimeout = "reload-timeout", 504, "the reload did not end in time";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_its_code_and_a_later_code_is_still_readable() {
        let problem =
            ProblemDocument::new(ErrorCode::UnknownInstance, "there is no instance \"x\"");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], "urn:vipwatch:problem:unknown-instance");
        assert_eq!((&json["status"], &json["code"]), (&404.into(), &"unknown-instance".into()));
        let later = r#"{"type":"t","title":"t","status":418,"code":"teapot","detail":"d"}"#;
        let later: ProblemDocument = serde_json::from_str(later).unwrap();
        assert_eq!((later.code, later.status), (ErrorCode::Other, 418));
    }
}
