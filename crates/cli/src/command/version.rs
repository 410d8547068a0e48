// SPDX-License-Identifier: Apache-2.0
//! `vipwatch version`: prints the version of this program and of the running node.

use serde::Serialize;
use vipwatch_api::VersionDocument;
use vipwatch_api::client::Client;

use crate::args::VersionArgs;
use crate::failure::CommandError;
use crate::output::{self, Page, Style, push_line};
use crate::source::query_node;

/// The commit that this program was built from; `None` if it is not known.
pub(crate) fn commit() -> Option<&'static str> {
    Some(env!("VIPWATCH_COMMIT")).filter(|commit| !commit.is_empty())
}

pub(crate) fn run(options: &VersionArgs) -> Result<(), CommandError> {
    let client = ClientVersion { version: env!("CARGO_PKG_VERSION"), commit: commit() };
    if options.client {
        output::show(&options.node.output, &Versions { client, server: None });
        return Ok(());
    }
    let server = query_node(&options.node, Client::version);
    let (server, failure) = match server {
        Ok(server) => (Some(server), None),
        Err(failure) => (None, Some(failure)),
    };
    output::show(&options.node.output, &Versions { client, server });
    failure.map_or(Ok(()), Err)
}

/// The versions of both programs.
#[derive(Debug, Serialize)]
struct Versions {
    client: ClientVersion,
    /// The running node; null if it was not queried or did not answer.
    server: Option<VersionDocument>,
}

/// The version of this program.
#[derive(Debug, Serialize)]
struct ClientVersion {
    version: &'static str,
    /// The commit that it was built from; null if it is not known.
    commit: Option<&'static str>,
}

impl Page for Versions {
    fn text(&self, style: &Style) -> String {
        let commit_text = |commit: Option<&str>| {
            commit.map(|commit| format!(", commit {commit}")).unwrap_or_default()
        };
        let ClientVersion { version, commit } = self.client;
        let mut page = format!("client: {version}{}\n", commit_text(commit));
        let Some(server) = &self.server else { return page };
        let commit = commit_text(server.commit.as_deref());
        let mut line = |name: &str, text: &str| {
            push_line(&mut page, &format!("{name}: {text}"));
        };
        let VersionDocument { service, node, version, pid, .. } = server;
        line("server", &format!("{version}{commit}, {service} {node}, process {pid}"));
        line("started", &style.time(server.started_at));
        line("configuration", server.config_file.as_deref().unwrap_or("none"));
        if let Some(reload) = &server.last_reload {
            let outcome = match &reload.error {
                Some(error) => format!("rejected: {error}"),
                None => "applied".to_owned(),
            };
            line("reloaded", &format!("{}, {outcome}", style.time(reload.at)));
        }
        page
    }

    fn names(&self) -> Vec<String> {
        let server = self.server.iter().map(|server| server.version.clone());
        [self.client.version.to_owned()].into_iter().chain(server).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn both_versions_and_the_last_reload_are_printed() {
        let client = ClientVersion { version: "1.2.3", commit: Some("0a1b2c3") };
        let versions = Versions { client, server: Some(samples::version()) };
        insta::assert_snapshot!(versions.text(&Style::of_tests()));
    }
}
