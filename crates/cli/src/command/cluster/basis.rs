// SPDX-License-Identifier: Apache-2.0
//! What an answer about the cluster rests on: its source, its age, and what it cannot know.

use vipwatch_api::{ClusterBasis, ClusterConnectionState, ClusterScope, ClusterSource};

use crate::failure::{CommandError, ExitStatus};
use crate::output::{Style, push_line};

/// An error if the node has no cluster: its documents are empty.
pub(super) fn check_configured(basis: &ClusterBasis) -> Result<(), CommandError> {
    match basis.connection {
        ClusterConnectionState::Connected
        | ClusterConnectionState::Stale
        | ClusterConnectionState::Connecting => Ok(()),
        ClusterConnectionState::Off => {
            let message = "no cluster is configured on this node";
            let hint = "set `endpoints` in [cluster] of the node's configuration, or give the address of etcd with --etcd";
            Err(CommandError::new(ExitStatus::NotFound, message).hint(hint))
        }
    }
}

/// An error if the view is old or was never read, or if etcd rejects records: a favourable result would not be certain.
pub(super) fn check_current(basis: &ClusterBasis) -> Result<(), CommandError> {
    let reconnects =
        "the node connects again by itself; with --etcd, the command reads etcd directly";
    let (message, hint) = match basis.connection {
        ClusterConnectionState::Connected if basis.error.is_none() => return Ok(()),
        ClusterConnectionState::Connected => (
            "etcd rejects the records of this node",
            "the node tries again by itself; `vipwatch doctor` shows since when",
        ),
        ClusterConnectionState::Stale => ("the view of the cluster is stale", reconnects),
        ClusterConnectionState::Connecting | ClusterConnectionState::Off => {
            ("the node has not read etcd yet", reconnects)
        }
    };
    let cause = basis.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    Err(CommandError::new(ExitStatus::NotKnown, format!("{message}{cause}")).hint(hint))
}

/// Adds a warning to the beginning of a page, if the view is not current.
pub(in crate::command) fn push_warning(page: &mut String, basis: &ClusterBasis, style: &Style) {
    let cause = basis.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match basis.connection {
        ClusterConnectionState::Connected if basis.error.is_some() => {
            let text = "etcd rejects the records of this node, and roles of other nodes may be old";
            push_line(page, &format!("{text}{cause}"));
        }
        ClusterConnectionState::Connected | ClusterConnectionState::Off => {}
        ClusterConnectionState::Connecting => {
            push_line(page, &format!("connecting: the node has not read etcd yet{cause}"));
        }
        ClusterConnectionState::Stale => {
            let since = basis
                .stale_since
                .map(|since| format!(" since {} ({})", style.time(since), style.age(since)));
            let since = since.unwrap_or_default();
            push_line(
                page,
                &format!("stale{since}: the roles below are those of that time{cause}"),
            );
        }
    }
}

/// Adds the source of the answer, and what it cannot know, to the end of a page.
pub(super) fn push_basis(page: &mut String, basis: &ClusterBasis) {
    let source = match (basis.source, &basis.node) {
        (ClusterSource::Node, Some(node)) => format!("view of {node}"),
        (ClusterSource::Node, None) => "view of a node".to_owned(),
        (ClusterSource::Etcd, _) => "read from etcd".to_owned(),
    };
    let scope = match basis.scope {
        ClusterScope::Full => "all groups",
        ClusterScope::Own => "only the groups of its own instances",
    };
    let domain = basis.domain.as_deref().unwrap_or("none");
    push_line(page, &format!("{source}: domain {domain}, revision {}, {scope}", basis.revision));
    for sentence in &basis.unknown {
        push_line(page, &format!("not known: {sentence}"));
    }
}
