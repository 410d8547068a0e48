// SPDX-License-Identifier: Apache-2.0
//! Which findings of the cluster concern this node.

use vipwatch_cluster::key::{Bucket, ClusterName};
use vipwatch_cluster::view::ClusterView;
use vipwatch_core::InstanceId;

/// What a finding has to do with this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnPart {
    /// Whether the finding is about this node, or about a group of one of its instances.
    pub(crate) is_concerned: bool,
    /// The instance of this node in the group.
    pub(crate) instance: Option<InstanceId>,
}

impl OwnPart {
    /// `group` and `nodes` are those of the finding.
    pub(super) fn of(
        own: &ClusterName,
        view: &ClusterView,
        group: Option<&str>,
        nodes: &[String],
    ) -> Self {
        let is_named = nodes.iter().any(|node| node == own.as_str());
        let groups = group.and_then(bucket_of).map(|bucket| view.groups_of(&bucket));
        let group = groups.into_iter().flatten().find(|one| Some(one.id.as_str()) == group);
        let members = group.into_iter().flat_map(|group| group.members);
        let member = members.into_iter().find(|member| member.node == *own);
        let instance = member.and_then(|member| member.record.instance.parse().ok());
        Self { is_concerned: is_named || instance.is_some(), instance }
    }
}

/// The bucket of a group; `None` if the text is not the id of a group. That of a VRID ends with an address.
fn bucket_of(group: &str) -> Option<Bucket> {
    let Some(rest) = group.strip_prefix("vrrp:") else { return group.parse().ok() };
    let mut parts = rest.splitn(3, ':');
    let (family, vrid) = (parts.next()?, parts.next()?);
    format!("vrrp:{family}:{vrid}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_of_a_group_is_in_its_id() {
        let bucket = |text: &str| bucket_of(text).map(|bucket| bucket.to_string());
        assert_eq!(bucket("vrrp:ipv6:51:2001:db8::1").as_deref(), Some("vrrp:ipv6:51"));
        assert_eq!(bucket("vrrp:ipv4:7:192.0.2.1").as_deref(), Some("vrrp:ipv4:7"));
        assert_eq!(bucket("router:8b1c").as_deref(), Some("router:8b1c"));
        assert_eq!(bucket("group:web").as_deref(), Some("group:web"));
        assert_eq!(bucket("nonsense"), None);
    }
}
