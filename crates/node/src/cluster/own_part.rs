// SPDX-License-Identifier: Apache-2.0
//! Which findings of the cluster concern this node.

use std::collections::BTreeMap;

use vipwatch_cluster::group::Group;
use vipwatch_cluster::key::{Bucket, ClusterName};
use vipwatch_cluster::record::FindingRecord;
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

/// The parts of many findings. The groups of each bucket are made once: any number of findings can name one bucket.
pub(crate) struct OwnParts<'a> {
    own: &'a ClusterName,
    view: &'a ClusterView,
    /// The groups of a bucket with an instance of this node.
    buckets: BTreeMap<Bucket, Vec<(String, InstanceId)>>,
}

impl<'a> OwnParts<'a> {
    pub(super) fn new(own: &'a ClusterName, view: &'a ClusterView) -> Self {
        Self { own, view, buckets: BTreeMap::new() }
    }

    /// What a finding has to do with this node.
    pub(crate) fn of(&mut self, record: &FindingRecord) -> OwnPart {
        let is_named = record.nodes.iter().any(|node| node == self.own.as_str());
        let instance = record.group.as_deref().and_then(|group| self.instance(group));
        OwnPart { is_concerned: is_named || instance.is_some(), instance }
    }

    /// An instance of this node in a group; `None` if it has none.
    pub(crate) fn instance(&mut self, group: &str) -> Option<InstanceId> {
        self.instances(group).into_iter().next()
    }

    /// The instances of this node in a group.
    pub(super) fn instances(&mut self, group: &str) -> Vec<InstanceId> {
        let Some(bucket) = Bucket::of_group(group) else { return Vec::new() };
        let Self { own, view, buckets } = self;
        if !view.has_member(&bucket, own) {
            return Vec::new();
        }
        let groups = buckets.entry(bucket).or_insert_with_key(|bucket| {
            let own_instances = |Group { id, members, .. }: Group| {
                let own = members.into_iter().filter(|member| member.node == **own);
                let instances = own.filter_map(|member| member.record.instance.parse().ok());
                instances.map(|instance| (id.clone(), instance)).collect::<Vec<_>>()
            };
            view.groups_of(bucket).into_iter().flat_map(own_instances).collect()
        });
        let of_group = groups.iter().filter(|(id, _)| id == group);
        of_group.map(|(_, instance)| instance.clone()).collect()
    }
}
