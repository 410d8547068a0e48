// SPDX-License-Identifier: Apache-2.0
//! The names of all findings: of the audit, of the node, of its receiver and of its deliveries.
//!
//! Each name has a row in the table of `docs/reference/cli.md` (section "Doctor"), and in
//! `docs/operations/finding-tests.md` the test that produces it through the public interface. `cargo xtask check` compares
//! the three lists with each other and with the code.

/// All names, sorted.
pub const FINDING_NAMES: &[&str] = &[
    "address-configured-twice",
    "address-misplaced",
    "adverts-lost",
    "agent-behind",
    "agent-failed",
    "announce-failed",
    "configuration-problem",
    "delivery-failed",
    "duplicate-holder",
    "file-failed",
    "flapping",
    "floating-left",
    "floating-missing",
    "hook-failed",
    "keepalived-crash-loop",
    "keepalived-fault",
    "keepalived-frozen",
    "keepalived-frozen-address-left",
    "keepalived-gone",
    "keepalived-gone-address-left",
    "keepalived-not-readable",
    "keepalived-parent-frozen",
    "keepalived-pid-file-wrong",
    "keepalived-reload-pending",
    "keepalived-vrrp-child-missing",
    "kernel-not-read",
    "link-fault",
    "monitor-gone",
    "namespace-missing",
    "no-primary",
    "node-cluster",
    "node-configuration",
    "node-history",
    "node-history-format",
    "node-hook-runner",
    "node-not-running",
    "node-one-socket",
    "node-receiver",
    "node-socket",
    "node-textfile",
    "node-web-certificate",
    "node-web-files",
    "node-witness",
    "partly-held",
    "peer-configuration-differs",
    "published-role-wrong",
    "receiver-journal",
    "receiver-journal-format",
    "receiver-socket",
    "report-differs",
    "report-for-unknown-instance",
    "report-missing",
    "routes-missing",
    "rules-missing",
    "state-file-differs",
    "state-file-missing",
    "state-file-nonsense",
    "state-file-unreadable",
    "sync-group-split",
    "too-many-advert-sources",
    "two-primaries",
    "vrid-clash",
    "vrid-clash-on-link",
    "webhook-failed",
];

/// The findings with a text that states the fault itself: another text is another fault, and an event. The text of the other
/// findings quotes an error, a count or a process, which may change again and again while the fault is the same.
const WITH_MATERIAL_TEXT: &[&str] = &[
    "address-configured-twice",
    "address-misplaced",
    "configuration-problem",
    "duplicate-holder",
    "keepalived-frozen",
    "keepalived-frozen-address-left",
    "keepalived-parent-frozen",
    "keepalived-pid-file-wrong",
    "link-fault",
    "node-configuration",
    "partly-held",
    "peer-configuration-differs",
    "report-differs",
    "state-file-differs",
    "state-file-nonsense",
    "sync-group-split",
    "two-primaries",
    "vrid-clash",
    "vrid-clash-on-link",
];

/// Whether a finding can have this name.
pub fn is_finding_name(name: &str) -> bool {
    FINDING_NAMES.binary_search(&name).is_ok()
}

/// Whether another text of the finding with this name is a change of the finding. Another severity always is.
pub fn is_text_material(name: &str) -> bool {
    WITH_MATERIAL_TEXT.contains(&name)
}

/// Whether the finding with this name follows from the adverts on the link of an instance.
pub fn is_advert_finding(name: &str) -> bool {
    matches!(
        name,
        "two-primaries"
            | "vrid-clash-on-link"
            | "no-primary"
            | "peer-configuration-differs"
            | "adverts-lost"
            | "keepalived-fault"
            | "too-many-advert-sources"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_sorted_and_each_is_there_once() {
        assert!(FINDING_NAMES.is_sorted_by(|before, after| before < after));
        for name in WITH_MATERIAL_TEXT {
            assert!(is_finding_name(name), "{name}");
        }
    }
}
