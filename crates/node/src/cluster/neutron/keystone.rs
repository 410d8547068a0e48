// SPDX-License-Identifier: Apache-2.0
//! Tokens of Keystone (Identity API v3, `POST /v3/auth/tokens`).

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use vipwatch_api::Timestamp;

use super::error::NeutronError;
use super::http::{HttpAnswer, HttpClient, server_of};
use crate::config::{FileContent, KeystoneConfig, KeystoneIdentity, WebFile};

/// The lifetime of a token without valid times.
const UNKNOWN_LIFETIME: Duration = Duration::from_mins(5);

/// A token for requests to Neutron.
pub(super) struct KeystoneToken {
    pub(super) text: String,
    /// When the token is to be replaced: before its end, so that no request fails.
    renewal: Instant,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: TokenTimes,
}

/// The difference of the two times is the lifetime, also if the clock of this node is wrong.
#[derive(Deserialize)]
struct TokenTimes {
    issued_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

impl KeystoneToken {
    /// Requests a token. The secret is read each time, so that a changed file needs no restart.
    pub(super) fn request(
        http: &mut HttpClient,
        keystone: &KeystoneConfig,
    ) -> Result<Self, NeutronError> {
        let body = request_body(&keystone.identity)?;
        let url = format!("{}/auth/tokens", keystone.url);
        let requested = Instant::now();
        let answer = http.post(&url, &body.to_string())?;
        Self::of_answer(answer, server_of(&url), requested)
    }

    fn of_answer(
        answer: HttpAnswer,
        url: String,
        requested: Instant,
    ) -> Result<Self, NeutronError> {
        match answer.status {
            201 => {}
            status @ (401 | 403) => return Err(NeutronError::Login(status)),
            status => return Err(NeutronError::Status { url, status }),
        }
        let Some(text) = answer.token else {
            return Err(NeutronError::Answer { url, reason: "it has no header X-Subject-Token" });
        };
        let renewal = requested + lifetime(&answer.body).mul_f64(0.9);
        Ok(Self { text, renewal })
    }

    pub(super) fn is_to_be_renewed(&self) -> bool {
        Instant::now() >= self.renewal
    }
}

fn lifetime(body: &str) -> Duration {
    let times = serde_json::from_str::<TokenAnswer>(body).ok().map(|answer| answer.token);
    let lifetime = times.and_then(|times| {
        let lifetime = times.expires_at?.duration_since(times.issued_at?);
        Duration::try_from(lifetime).ok()
    });
    lifetime.unwrap_or(UNKNOWN_LIFETIME)
}

fn request_body(identity: &KeystoneIdentity) -> Result<Value, NeutronError> {
    Ok(match identity {
        KeystoneIdentity::ApplicationCredential { id, secret } => json!({"auth": {"identity": {
            "methods": ["application_credential"],
            "application_credential": {"id": id, "secret": read_secret(secret)?},
        }}}),
        KeystoneIdentity::Password(user) => json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user.name,
                "domain": {"name": user.domain},
                "password": read_secret(&user.password)?,
            }}},
            "scope": {"project": {
                "name": user.project,
                "domain": {"name": user.project_domain},
            }},
        }}),
    })
}

fn read_secret(file: &WebFile) -> Result<String, NeutronError> {
    let failed = |source| NeutronError::Secret { file: file.clone(), source };
    let text = file.read(FileContent::Secret).map_err(failed)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_token_names_the_header_of_keystone() {
        let answer = HttpAnswer { status: 201, body: "{}".to_owned(), token: None };
        let url = "https://k.example:5000".to_owned();
        let error = KeystoneToken::of_answer(answer, url, Instant::now()).err().unwrap();
        let expected =
            "the answer of https://k.example:5000 cannot be used: it has no header X-Subject-Token";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_lifetime_of_a_token_does_not_depend_on_the_clock_of_this_node() {
        let body = |issued: &str, expires: &str| {
            json!({"token": {"issued_at": issued, "expires_at": expires, "methods": []}})
                .to_string()
        };
        let hour = body("2015-11-07T01:58:43.578929Z", "2015-11-07T02:58:43.578887Z");
        assert_eq!(lifetime(&hour).as_secs(), 3599);
        let backwards = body("2015-11-07T02:58:43Z", "2015-11-07T01:58:43Z");
        for body in ["", "{}", "{\"token\": {}}", &backwards, &body("x", "y")] {
            assert_eq!(lifetime(body), UNKNOWN_LIFETIME, "{body}");
        }
    }
}
