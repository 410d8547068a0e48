// SPDX-License-Identifier: Apache-2.0
//! The fields of records that the content needs, and the names in keys.

use serde::Deserialize;
use vipwatch_api::RoleKind;
use vipwatch_core::FindingKind;

use super::Subject;
use crate::etcd::messages::KeyValue;
use crate::record::MemberState;
use crate::simulation::{GROUPS, NAMES};

#[derive(Deserialize)]
pub(super) struct NodePart {
    pub(super) seen: i64,
}

#[derive(Deserialize)]
pub(super) struct RolePart {
    pub(super) role: RoleKind,
}

#[derive(Deserialize)]
pub(super) struct MemberPart {
    pub(super) state: MemberState,
}

#[derive(Deserialize)]
pub(super) struct FindingPart {
    name: String,
    group: Option<String>,
    nodes: Vec<String>,
}

impl FindingPart {
    pub(super) fn subject(&self) -> Option<Subject> {
        let kind = FindingKind::from_name(&self.name)?;
        let number = match &self.group {
            Some(group) => group_number(group.strip_prefix("router:")?)?,
            None => node_number(self.nodes.first()?)?,
        };
        Some(Subject { kind, number })
    }
}

pub(super) fn parse<T: for<'a> Deserialize<'a>>(value: &KeyValue) -> Option<T> {
    serde_json::from_slice(&value.value).ok()
}

pub(super) fn node_number(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// The number of the group `r7`.
pub(super) fn group_number(name: &str) -> Option<usize> {
    name.strip_prefix('r')?.parse().ok().filter(|number| *number < GROUPS)
}

/// The group and the node of `router:r7/a/r7`.
pub(super) fn role_numbers(key: &str) -> Option<(usize, usize)> {
    let mut parts = key.split('/');
    let group = group_number(parts.next()?.strip_prefix("router:")?)?;
    Some((group, node_number(parts.next()?)?))
}
