// SPDX-License-Identifier: Apache-2.0
//! Selects the instances of a query by their ids, by the beginnings of ids, by the ids of their groups, or by their addresses.
//!
//! An exact match has precedence: `VI_1` selects the instance `VI_1` if it exists, and otherwise every id that
//! begins with `VI_1`, such as `VI_10`.

use std::net::IpAddr;

use crate::state::{InstanceEntry, PublishedState};

/// The selected instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Empty to select all instances.
    patterns: Vec<Pattern>,
}

/// An id, or the beginning of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    /// Whether an instance has exactly this id.
    is_exact: bool,
}

impl Selection {
    /// Selects by `texts`, where `ids` are the existing instances. Without texts, all are selected.
    pub fn new<'a>(texts: &[String], ids: impl IntoIterator<Item = &'a str>) -> Self {
        let patterns = texts.iter().map(|text| Pattern { text: text.clone(), is_exact: false });
        let mut selection = Self { patterns: patterns.collect() };
        if !selection.patterns.is_empty() {
            ids.into_iter().for_each(|id| selection.notice(id));
        }
        selection
    }

    /// Selects by `texts`, each an id, the beginning of ids, a group's id or an address, and by `addresses`. An address
    /// selects the instances that have it now; one that no instance has is [missing](Self::missing).
    pub fn of_instances(texts: &[String], addresses: &[IpAddr], view: &PublishedState) -> Self {
        let mut selection = Self { patterns: Vec::new() };
        for text in texts {
            let is_exact = view.entries.keys().any(|id| id.as_str() == text);
            match text.parse() {
                Ok(address) if !is_exact => selection.add_address(address, view),
                _ if !is_exact && selection.add_group(text, view) => {}
                _ => selection.patterns.push(Pattern { text: text.clone(), is_exact }),
            }
        }
        for address in addresses {
            selection.add_address(*address, view);
        }
        selection
    }

    /// Selects the instances of a group; false if no instance is in it.
    fn add_group(&mut self, group: &str, view: &PublishedState) -> bool {
        let members = view.entries.iter().filter(|(_, entry)| &*entry.group == group);
        let count = self.patterns.len();
        self.patterns
            .extend(members.map(|(id, _)| Pattern { text: id.to_string(), is_exact: true }));
        self.patterns.len() > count
    }

    fn add_address(&mut self, address: IpAddr, view: &PublishedState) {
        let has_address = |entry: &InstanceEntry| {
            entry.instance.vrrp.addresses.iter().any(|one| one.cidr.addr() == address)
        };
        let holders = view.entries.iter().filter(|(_, entry)| has_address(entry));
        let count = self.patterns.len();
        self.patterns
            .extend(holders.map(|(id, _)| Pattern { text: id.to_string(), is_exact: true }));
        if self.patterns.len() == count {
            self.patterns.push(Pattern { text: address.to_string(), is_exact: true });
        }
    }

    /// Reports that the instance `id` exists: a text that equals the id selects only this instance from now on.
    pub fn notice(&mut self, id: &str) {
        for pattern in self.patterns.iter_mut().filter(|pattern| pattern.text == id) {
            pattern.is_exact = true;
        }
    }

    /// Whether the instance `id` is selected.
    pub fn covers(&self, id: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.covers(id))
    }

    /// Whether all instances are selected.
    pub fn covers_all(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The first text that selects none of `ids`.
    pub fn missing<'a>(&self, ids: &(impl Iterator<Item = &'a str> + Clone)) -> Option<&str> {
        let is_missing = |pattern: &&Pattern| !ids.clone().any(|id| pattern.covers(id));
        self.patterns.iter().find(is_missing).map(|pattern| pattern.text.as_str())
    }
}

impl Pattern {
    fn covers(&self, id: &str) -> bool {
        if self.is_exact { id == self.text } else { id.starts_with(&self.text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(texts: &[&str], ids: &[&str]) -> Selection {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        Selection::new(&texts, ids.iter().copied())
    }

    #[test]
    fn an_address_or_a_group_selects_its_instance_and_an_unknown_address_is_missing() {
        let store = crate::state::StateStore::default();
        let config = std::sync::Arc::new(crate::discovery::example());
        let id = config.id.to_string();
        let entry = InstanceEntry::new(config, vipwatch_core::Role::Backup, [].into());
        store.insert(entry);
        let view = store.view();
        let known = Selection::of_instances(&["192.0.2.1".to_owned()], &[], &view);
        assert!(known.covers(&id) && !known.covers("other"));
        let group = Selection::of_instances(&["vrrp:ipv4:1:192.0.2.1".to_owned()], &[], &view);
        assert!(group.covers(&id) && !group.covers("other"));
        let missing = ["192.0.2.2".parse().unwrap()];
        let unknown = Selection::of_instances(&[], &missing, &view);
        assert_eq!(unknown.missing(&[id.as_str()].into_iter()), Some("192.0.2.2"));
    }

    #[test]
    fn an_exact_id_does_not_select_ids_that_only_begin_with_it() {
        let ids = ["VI_1", "VI_10", "VI_2"];
        let selection = select(&["VI_1"], &ids);
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
        let selection = select(&["VI_1", "VI_10"], &ids);
        assert!(selection.covers("VI_1") && selection.covers("VI_10") && !selection.covers("VI_2"));
    }

    #[test]
    fn a_prefix_selects_all_ids_that_begin_with_it_until_an_instance_has_exactly_this_id() {
        let mut selection = select(&["VI_1"], &["VI_10", "VI_11"]);
        assert!(selection.covers("VI_10") && selection.covers("VI_11"));
        selection.notice("VI_1");
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
    }

    #[test]
    fn no_text_selects_all_instances_and_a_text_without_a_match_is_reported() {
        let ids = ["a", "b"];
        assert!(select(&[], &ids).covers("a"));
        assert_eq!(select(&["a", "x"], &ids).missing(&ids.iter().copied()), Some("x"));
        assert_eq!(select(&["a"], &ids).missing(&ids.iter().copied()), None);
    }
}
