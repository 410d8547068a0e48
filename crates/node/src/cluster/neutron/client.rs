// SPDX-License-Identifier: Apache-2.0
//! Asks Neutron on which hosts a router is, and in which state (`GET /v2.0/routers/ID/l3-agents`).

use serde::Deserialize;
use vipwatch_cluster::neutron::{HaState, NeutronAnswer, NeutronHost};
use vipwatch_core::InstanceId;

use super::error::NeutronError;
use super::http::{HttpAnswer, HttpClient, server_of};
use super::keystone::KeystoneToken;
use crate::config::NeutronApiConfig;

/// The maximum number of hosts of a router, and the maximum length of their names in bytes. A longer answer is not one of Neutron.
const MAX_HOSTS: usize = 1000;
const MAX_HOST_BYTES: usize = 255;

/// A client of Neutron with a token.
pub(super) struct NeutronClient {
    config: NeutronApiConfig,
    /// `None` before the first request, and while the authorities cannot be read.
    http: Option<HttpClient>,
    token: Option<KeystoneToken>,
}

#[derive(Deserialize)]
struct AgentList {
    agents: Vec<Agent>,
}

#[derive(Deserialize)]
struct Agent {
    host: String,
    /// Null for a router that is not an HA router.
    ha_state: Option<String>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    #[serde(rename = "NeutronError")]
    error: ErrorType,
}

#[derive(Deserialize)]
struct ErrorType {
    r#type: String,
}

impl NeutronClient {
    pub(super) fn new(config: NeutronApiConfig) -> Self {
        Self { config, http: None, token: None }
    }

    /// The hosts of a router.
    pub(super) fn hosts_of(&mut self, router: &InstanceId) -> Result<NeutronAnswer, NeutronError> {
        let url = format!("{}/v2.0/routers/{router}/l3-agents", self.config.url);
        let is_fresh = self.renew_token()?;
        let mut answer = self.get(&url)?;
        if answer.status == 401 && self.config.keystone.is_some() && !is_fresh {
            // The token was revoked, or Keystone has lost its keys.
            self.token = None;
            self.renew_token()?;
            answer = self.get(&url)?;
        }
        if answer.status == 401 {
            self.token = None;
        }
        read_answer(server_of(&url), &answer)
    }

    /// Requests a token if one is needed. Returns whether it did.
    fn renew_token(&mut self) -> Result<bool, NeutronError> {
        let Some(keystone) = self.config.keystone.clone() else { return Ok(false) };
        if self.token.as_ref().is_some_and(|token| !token.is_to_be_renewed()) {
            return Ok(false);
        }
        self.token = None;
        self.token = Some(KeystoneToken::request(self.http()?, &keystone)?);
        Ok(true)
    }

    fn get(&mut self, url: &str) -> Result<HttpAnswer, NeutronError> {
        let token = self.token.as_ref().map(|token| token.text.clone());
        self.http()?.get(url, token.as_deref())
    }

    fn http(&mut self) -> Result<&mut HttpClient, NeutronError> {
        match &mut self.http {
            Some(http) => Ok(http),
            none => Ok(none.insert(HttpClient::new(&self.config)?)),
        }
    }
}

fn read_answer(url: String, answer: &HttpAnswer) -> Result<NeutronAnswer, NeutronError> {
    match answer.status {
        200 => read_hosts(url, &answer.body),
        401 => Err(NeutronError::Token),
        status @ 403 => Err(NeutronError::Access(status)),
        404 if is_router_missing(&answer.body) => Ok(NeutronAnswer::default()),
        status => Err(NeutronError::Status { url, status }),
    }
}

/// Whether Neutron says that it has no such router. It answers an unknown path with 404 too.
fn is_router_missing(body: &str) -> bool {
    let answer = serde_json::from_str::<ErrorAnswer>(body);
    answer.is_ok_and(|answer| answer.error.r#type == "RouterNotFound")
}

/// The hosts with a state. A router without any is not an HA router.
fn read_hosts(url: String, body: &str) -> Result<NeutronAnswer, NeutronError> {
    let Ok(list) = serde_json::from_str::<AgentList>(body) else {
        let reason = "it is not a list of agents with host and ha_state";
        return Err(NeutronError::Answer { url, reason });
    };
    let is_name = |host: &str| {
        let is_short = (1..=MAX_HOST_BYTES).contains(&host.len());
        is_short && host.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if list.agents.len() > MAX_HOSTS || !list.agents.iter().all(|agent| is_name(&agent.host)) {
        let reason = "it has a host with an invalid name, or too many hosts";
        return Err(NeutronError::Answer { url, reason });
    }
    let hosts = list.agents.into_iter().filter_map(|agent| {
        let state = agent.ha_state?.parse().unwrap_or(HaState::Unknown);
        Some(NeutronHost { host: agent.host, state })
    });
    Ok(NeutronAnswer::new(hosts.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Result<NeutronAnswer, String> {
        let answer = HttpAnswer { status, body: body.to_owned(), token: None };
        read_answer("http://n".to_owned(), &answer).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_without_a_state_are_left_out() {
        let body = r#"{"agents": [{"host": "a", "ha_state": "standby", "alive": true}, {"host": "b", "ha_state": null},
                       {"host": "c", "ha_state": "active"}]}"#;
        let hosts = answer(200, body).unwrap();
        let hosts: Vec<(&str, HaState)> =
            hosts.hosts().iter().map(|one| (one.host.as_str(), one.state)).collect();
        assert_eq!(hosts, [("c", HaState::Active), ("a", HaState::Standby)]);
    }

    #[test]
    fn a_missing_router_differs_from_a_wrong_address() {
        let missing =
            r#"{"NeutronError": {"type": "RouterNotFound", "message": "m", "detail": ""}}"#;
        assert_eq!(answer(404, missing), Ok(NeutronAnswer::default()));
        let wrong = r#"{"NeutronError": {"type": "HTTPNotFound", "message": "m", "detail": ""}}"#;
        for body in [wrong, "<html>", ""] {
            assert_eq!(answer(404, body).unwrap_err(), "http://n answers with status 404");
        }
    }

    #[test]
    fn an_answer_that_is_not_of_neutron_is_an_error() {
        let long =
            format!(r#"{{"agents": [{{"host": "{}", "ha_state": "active"}}]}}"#, "x".repeat(256));
        let control = r#"{"agents": [{"host": "a\u001b[2J", "ha_state": "active"}]}"#;
        for body in ["", "<html>", "{}", r#"{"agents": 1}"#, r#"{"agents": [{}]}"#, &long, control]
        {
            assert!(answer(200, body).unwrap_err().contains("cannot be used"), "{body}");
        }
        assert!(answer(403, "").unwrap_err().contains("does not permit"));
        assert!(answer(500, "").unwrap_err().contains("status 500"));
    }
}
