// SPDX-License-Identifier: Apache-2.0
//! The query parameters of the routes: which instances, transitions or events a client asks for.

use std::fmt::{Display, Write};
use std::net::IpAddr;

use jiff::Timestamp;

use crate::{EventId, GroupState, RoleKind};

/// Selects instances: `GET /v1/instances`. An empty filter selects all.
///
/// An instance is selected if it matches one value of every list that is not empty; `ids` and `addresses` count as one
/// list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceFilter {
    /// Ids, beginnings of ids, or addresses: `id`. An id that equals the text has precedence over ids that begin with it.
    pub ids: Vec<String>,
    /// Addresses of instances, floating ones too: `address`.
    pub addresses: Vec<IpAddr>,
    /// Roles: `role`.
    pub roles: Vec<RoleKind>,
    /// Network namespaces: `netns`. An empty name is the node's own namespace.
    pub netns: Vec<String>,
    /// `neutron`, `keepalived`, `container` or `vipwatch`: `origin`.
    pub origins: Vec<String>,
}

/// Selects entries of the history: `GET /v1/history`. An empty filter selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// The earliest time: `since`.
    pub since: Option<Timestamp>,
    /// The latest time: `until`.
    pub until: Option<Timestamp>,
    /// Only entries after this event: `after`. With `limit`, the oldest of them are selected.
    pub after: Option<EventId>,
    /// An id, the beginning of ids, or an address: `id`.
    pub id: Option<String>,
    /// The maximum number of transitions: `limit`. Without `after`, the newest are selected.
    pub limit: Option<u64>,
}

/// Selects events: `GET /v1/events`. An empty filter selects all events from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Ids, beginnings of ids, or addresses: `id`. Events about the node itself are not selected by any of them.
    pub ids: Vec<String>,
    /// The last event that the client has: `after`.
    pub after: Option<EventId>,
}

/// Selects groups of the cluster: `GET /v1/cluster/groups`. An empty filter selects all.
///
/// A group is selected if it matches one value of every list that is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterFilter {
    /// States: `state`.
    pub states: Vec<GroupState>,
    /// Nodes with an instance in the group: `node`.
    pub nodes: Vec<String>,
    /// Ids of groups, or beginnings of ids: `group`.
    pub groups: Vec<String>,
    /// Virtual addresses: `address`.
    pub addresses: Vec<IpAddr>,
}

impl ClusterFilter {
    /// The query part of the URL, with `?`; empty for an empty filter.
    pub fn query(&self) -> String {
        let mut query = QueryText::default();
        self.states.iter().for_each(|state| query.add("state", state.word()));
        self.nodes.iter().for_each(|node| query.add("node", node));
        self.groups.iter().for_each(|group| query.add("group", group));
        self.addresses.iter().for_each(|address| query.add("address", address));
        query.0
    }
}

impl InstanceFilter {
    /// The query part of the URL, with `?`; empty for an empty filter.
    pub fn query(&self) -> String {
        let mut query = QueryText::default();
        self.ids.iter().for_each(|id| query.add("id", id));
        self.addresses.iter().for_each(|address| query.add("address", address));
        self.roles.iter().for_each(|role| query.add("role", role.word()));
        self.netns.iter().for_each(|netns| query.add("netns", netns));
        self.origins.iter().for_each(|origin| query.add("origin", origin));
        query.0
    }
}

impl HistoryFilter {
    /// The query part of the URL, with `?`; empty for an empty filter.
    pub fn query(&self) -> String {
        let mut query = QueryText::default();
        query.add_some("since", self.since);
        query.add_some("until", self.until);
        query.add_some("after", self.after.as_ref());
        query.add_some("id", self.id.as_ref());
        query.add_some("limit", self.limit);
        query.0
    }
}

impl EventFilter {
    /// The query part of the URL, with `?`; empty for an empty filter.
    pub fn query(&self) -> String {
        let mut query = QueryText::default();
        self.ids.iter().for_each(|id| query.add("id", id));
        query.add_some("after", self.after.as_ref());
        query.0
    }
}

/// `?NAME=VALUE&NAME=VALUE`, with values escaped.
#[derive(Debug, Default)]
struct QueryText(String);

impl QueryText {
    fn add(&mut self, name: &str, value: impl Display) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&escape(&value.to_string()));
    }

    fn add_some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

/// Escapes a text for a path segment or a query value (RFC 3986, section 2.3: all but unreserved characters).
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_becomes_an_escaped_query() {
        assert_eq!(InstanceFilter::default().query(), "");
        let filter = InstanceFilter {
            ids: vec!["a&b c".to_owned(), "ü".to_owned()],
            addresses: vec!["2001:db8::1".parse().unwrap()],
            roles: vec![RoleKind::Fault],
            ..InstanceFilter::default()
        };
        let expected = "?id=a%26b%20c&id=%C3%BC&address=2001%3Adb8%3A%3A1&role=fault";
        assert_eq!(filter.query(), expected);
        let after = "5f-3".parse().ok();
        let filter = HistoryFilter { after, limit: Some(7), ..HistoryFilter::default() };
        assert_eq!(filter.query(), "?after=5f-3&limit=7");
        let states = vec![GroupState::NoPrimary, GroupState::Unknown];
        let groups = vec!["vrrp:ipv4:5".to_owned()];
        let filter = ClusterFilter { states, groups, ..ClusterFilter::default() };
        assert_eq!(filter.query(), "?state=no-primary&state=unknown&group=vrrp%3Aipv4%3A5");
    }
}
