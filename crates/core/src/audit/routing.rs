// SPDX-License-Identifier: Apache-2.0
//! The findings about virtual routes and rules: keepalived adds them when an instance becomes primary.

use std::fmt::Display;

use super::Finding;
use crate::keepalived::{VirtualRoute, VirtualRule};
use crate::{FindingKind, first_of};

/// Maximum number of routes or rules that a text names.
const MAX_NAMED: usize = 3;

/// The virtual routes and rules of an instance that the kernel does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingFacts {
    /// The missing routes.
    pub routes: Vec<VirtualRoute>,
    /// The missing rules.
    pub rules: Vec<VirtualRule>,
}

impl RoutingFacts {
    /// The findings about an instance that is primary.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> {
        let routes = (!self.routes.is_empty()).then(|| {
            Finding::new(
                FindingKind::RoutesMissing,
                format!(
                    "the instance is primary, but the kernel lacks {}",
                    list("route", &self.routes)
                ),
            )
        });
        let rules = (!self.rules.is_empty()).then(|| {
            Finding::new(
                FindingKind::RulesMissing,
                format!(
                    "the instance is primary, but the kernel lacks {}",
                    list("rule", &self.rules)
                ),
            )
        });
        [routes, rules].into_iter().flatten()
    }
}

/// The number of entries, and the first of them.
fn list(word: &str, entries: &[impl Display]) -> String {
    let (count, plural) = (entries.len(), if entries.len() == 1 { "" } else { "s" });
    format!("{count} virtual {word}{plural}: {}", first_of(entries, MAX_NAMED, ", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use crate::audit::AuditFacts;

    fn route(number: u8) -> VirtualRoute {
        VirtualRoute {
            destination: format!("10.{number}.0.0/16").parse().unwrap(),
            via: None,
            dev: Some("eth0".parse().unwrap()),
            table: Some(100),
            metric: None,
        }
    }

    #[test]
    fn missing_routes_and_rules_of_a_primary_are_found() {
        let mut facts = AuditFacts::new(Role::Primary);
        let rule = VirtualRule { table: Some(100), priority: Some(5), ..VirtualRule::default() };
        facts.routing = RoutingFacts { routes: (0..5).map(route).collect(), rules: vec![rule] };
        let texts: Vec<String> = facts.findings().into_iter().map(|one| one.text).collect();
        let expected = [
            "the instance is primary, but the kernel lacks 5 virtual routes: 10.0.0.0/16 dev eth0 table 100, \
             10.1.0.0/16 dev eth0 table 100, 10.2.0.0/16 dev eth0 table 100 and 2 more",
            "the instance is primary, but the kernel lacks 1 virtual rule: table 100 priority 5",
        ];
        assert_eq!(texts, expected);
        facts.role = Role::Backup;
        assert_eq!(facts.findings(), [], "a backup has none");
    }
}
