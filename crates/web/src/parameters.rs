// SPDX-License-Identifier: Apache-2.0
//! Query parameters, headers and bodies of requests. Anything that is not expected is an error that names it.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Uri, header};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use vipwatch_api::{ErrorCode, ProblemDocument};

/// Maximum size of a body in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;

/// The body of a request must be complete within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The query parameters of a request.
#[derive(Debug)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads the parameters. A parameter that is not one of `known` is an error.
    pub(crate) fn read(uri: &Uri, known: &[&str]) -> Result<Self, ProblemDocument> {
        let query = uri.query().unwrap_or_default().as_bytes();
        let pairs: Vec<_> = form_urlencoded::parse(query).into_owned().collect();
        match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(Self(pairs)),
            Some((name, _)) => {
                let hint = match known {
                    [] => "this route has no parameters".to_owned(),
                    known => format!("the parameters are {}", known.join(", ")),
                };
                let detail = format!("there is no parameter {:?}", shortened(name));
                Err(ProblemDocument::new(ErrorCode::InvalidRequest, detail).with_hint(hint))
            }
        }
    }

    /// All values of a parameter.
    pub(crate) fn all<T: FromStr<Err: Display>>(
        &self,
        name: &str,
    ) -> Result<Vec<T>, ProblemDocument> {
        let values = self.0.iter().filter(|(one, _)| one == name);
        values.map(|(_, value)| parse(name, value)).collect()
    }

    /// The value of a parameter that may occur once.
    pub(crate) fn one<T: FromStr<Err: Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, ProblemDocument> {
        let mut values = self.all(name)?;
        if values.len() > 1 {
            return Err(invalid(format!("the parameter {name} occurs {} times", values.len())));
        }
        Ok(values.pop())
    }
}

fn parse<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, ProblemDocument> {
    let failed = |error| invalid(format!("{name}={:?}: {error}", shortened(value)));
    value.parse().map_err(failed)
}

/// A request that is not valid.
pub(crate) fn invalid(detail: impl Into<String>) -> ProblemDocument {
    ProblemDocument::new(ErrorCode::InvalidRequest, detail)
}

/// The beginning of a text from a client, for messages.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Fails if the client accepts neither the type of the answer nor the type of errors.
pub(crate) fn check_accept(headers: &HeaderMap, answer: &str) -> Result<(), ProblemDocument> {
    let family = answer.split('/').next().unwrap_or_default();
    let fits = |range: &str| {
        let range = range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        range.is_empty() || range == "*/*" || range == answer || range == format!("{family}/*")
    };
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    let is_accepted = values.peek().is_none()
        || values.any(|value| value.to_str().unwrap_or_default().split(',').any(fits));
    if is_accepted {
        return Ok(());
    }
    let detail = format!("this route answers with {answer}");
    Err(ProblemDocument::new(ErrorCode::NotAcceptable, detail))
}

/// Reads a body of JSON.
pub(crate) async fn json_body<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, ProblemDocument> {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let detail = format!("the content type is {:?}", shortened(content_type));
        let problem = ProblemDocument::new(ErrorCode::UnsupportedMediaType, detail);
        return Err(problem.with_hint("send application/json"));
    }
    let bytes = bytes_of(body).await?;
    serde_json::from_slice(&bytes).map_err(|error| invalid(format!("the body: {error}")))
}

/// Reads a body that must be empty.
pub(crate) async fn empty_body(body: Body) -> Result<(), ProblemDocument> {
    if bytes_of(body).await?.is_empty() { Ok(()) } else { Err(invalid("this route has no body")) }
}

async fn bytes_of(body: Body) -> Result<bytes::Bytes, ProblemDocument> {
    match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(invalid(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let detail = "the body was not complete within 10 s";
            Err(ProblemDocument::new(ErrorCode::RequestTimeout, detail))
        }
    }
}

/// A body over the limit.
pub(crate) fn too_large() -> ProblemDocument {
    let detail = format!("the body is larger than {} KiB", MAX_BODY_BYTES >> 10);
    ProblemDocument::new(ErrorCode::TooLarge, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_or_repeated_parameter_is_an_error_that_names_it() {
        let uri: Uri = "/x?id=a%20b&id=c&limit=3".parse().unwrap();
        let parameters = Parameters::read(&uri, &["id", "limit"]).unwrap();
        assert_eq!(parameters.all::<String>("id").unwrap(), ["a b", "c"]);
        assert_eq!(parameters.one::<u64>("limit").unwrap(), Some(3));
        assert!(parameters.one::<String>("id").unwrap_err().detail.contains("id occurs 2 times"));
        let unknown = Parameters::read(&uri, &["id"]).unwrap_err();
        assert!(unknown.detail.contains("\"limit\""), "{unknown:?}");
        let uri: Uri = "/x?limit=-1".parse().unwrap();
        let wrong = Parameters::read(&uri, &["limit"]).unwrap();
        assert!(wrong.one::<u64>("limit").unwrap_err().detail.starts_with("limit=\"-1\""));
    }

    #[test]
    fn a_client_that_accepts_only_other_types_is_refused() {
        let check = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            check_accept(&headers, "application/json").is_ok()
        };
        assert!(check_accept(&HeaderMap::new(), "application/json").is_ok());
        for accept in ["*/*", "application/*", "text/html, application/json;q=0.5"] {
            assert!(check(accept), "{accept}");
        }
        assert!(!check("text/html"));
    }
}
